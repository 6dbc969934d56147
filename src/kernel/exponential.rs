//! The exponential function of one number, without branches and calls, so that a loop over it vectorises.

/// `eˣ`, within 1.2e-7 of its size; saturates at e^±87.3 so that it is neither zero nor infinite.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (less_one, two_n) = parts(x);
    (less_one + 1.0) * two_n
}

/// The hyperbolic tangent, within 3e-7 of its size.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    // e^2x − 1 without the rounding that a difference from one would have near zero.
    let (less_one, two_n) = parts((2.0 * x).clamp(-20.0, 20.0));
    let less_one = less_one * two_n + (two_n - 1.0);
    less_one / (less_one + 2.0)
}

/// `eʳ − 1` and `2ⁿ`, with `eˣ = 2ⁿ · eʳ`, a whole n and |r| ≤ ln 2 / 2.
#[inline(always)]
fn parts(x: f32) -> (f32, f32) {
    /// Adding it rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³
    /// ln 2 in two parts; the first has so few bits that its product with a whole number is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// Of (eʳ − 1 − r) / r², interpolated at the Chebyshev points of |r| ≤ ln 2 / 2: good to 1.5e-8 of eʳ.
    const COEFFICIENTS: [f32; 5] = [0.499_999_5, 0.166_665_77, 0.041_683_68, 0.008_363_173, 0.001_278_554_2];
    let x = x.clamp(-87.3, 87.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let p = COEFFICIENTS.iter().rev().fold(0.0, |sum, coefficient| sum * r + coefficient);
    // n stands in the lowest bits of `shifted`, the exponent of a float above its 23 lowest ones.
    let two_n = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    (p * r * r + r, two_n)
}

#[cfg(test)]
mod tests {
    use super::{exp, tanh};

    /// One rounding of a number near one and the error of the polynomial: 1.2e-7 of the result. With r rounded as well
    /// (to 2⁻²⁵ of ln 2 / 2) a tenth more.
    const TOLERANCE: f64 = 1.5e-7;

    #[test]
    fn the_exponential_is_exact_to_rounding() {
        for i in -87_000..=87_000 {
            let x = i as f32 * 1e-3;
            let (found, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found / exact - 1.0).abs() <= TOLERANCE, "exp({x}) = {found}, expected {exact}");
        }
    }

    #[test]
    fn the_exponential_saturates() {
        assert!(exp(1000.0).is_finite() && exp(1000.0) > 1e37);
        assert!(exp(-1000.0) > 0.0 && exp(-1000.0) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn the_tangent_is_exact_to_rounding_near_zero_too() {
        for i in -40_000..=40_000_i32 {
            let x = (i as f32 * 1e-4) * (i as f32 * 1e-4).abs();
            let (found, exact) = (f64::from(tanh(x)), f64::from(x).tanh());
            // A quotient of two numbers with two roundings each.
            assert!((found - exact).abs() <= 3e-7 * exact.abs(), "tanh({x}) = {found}, expected {exact}");
        }
    }
}
