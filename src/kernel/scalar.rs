//! The activation functions and their derivatives of one number, without branches and calls, so that loops over them
//! vectorise.

use super::exponential::exp;

/// GELU with the error function.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    x * normal_cdf(x)
}

/// `Φ(x) + x · φ(x)`.
#[inline(always)]
pub(super) fn gelu_derivative(x: f32) -> f32 {
    const DENSITY_AT_0: f32 = 0.398_942_3; // 1/√(2π)
    normal_cdf(x) + x * DENSITY_AT_0 * exp(-0.5 * x * x)
}

/// `2 · √(2/π)`: with tanh, GELU is `x/2 · (1 + tanh(z))`, which is `x · σ(2z)`.
const TWICE_ROOT: f32 = 1.595_769;

/// GELU with tanh.
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    x * sigmoid(TWICE_ROOT * x * (1.0 + 0.044_715 * x * x))
}

#[inline(always)]
pub(super) fn gelu_tanh_derivative(x: f32) -> f32 {
    let (gate, slope) = sigmoid_and_slope(TWICE_ROOT * x * (1.0 + 0.044_715 * x * x));
    gate + slope * TWICE_ROOT * x * (1.0 + 3.0 * 0.044_715 * x * x)
}

/// `x · σ(1.702 x)`.
#[inline(always)]
pub(super) fn quick_gelu(x: f32) -> f32 {
    x * sigmoid(1.702 * x)
}

#[inline(always)]
pub(super) fn quick_gelu_derivative(x: f32) -> f32 {
    let (gate, slope) = sigmoid_and_slope(1.702 * x);
    gate + 1.702 * x * slope
}

/// `x · σ(x)`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
pub(super) fn silu_derivative(x: f32) -> f32 {
    let (gate, slope) = sigmoid_and_slope(x);
    gate + x * slope
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `σ(x)` and `σ(x) · (1 − σ(x))`, without the rounding of a difference from one.
#[inline(always)]
fn sigmoid_and_slope(x: f32) -> (f32, f32) {
    let e = exp(-x);
    let gate = 1.0 / (1.0 + e);
    (gate, e * gate * gate)
}

/// The distribution function of the normal distribution.
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function as a quotient of polynomials in `t²`, fitted to least largest error on `|t| ≤ 3.925`, beyond which
/// it is 1 in 32 bits. The fit is good to 4.4e-8; with rounding, GELU is within 2.3e-7 · max(1, |x|) of its exact value.
#[inline(always)]
fn erf(t: f32) -> f32 {
    const P: [f32; 7] =
        [1.128_378_8, 0.206_566_33, 0.051_456_693, 0.003_991_080_5, 0.000_149_333_98, -1.993_395_2e-6, 1.987_063_2e-8];
    const Q: [f32; 5] = [1.0, 0.516_393_36, 0.117_750_93, 0.014_927_098, 0.001_028_242_3];
    let t = t.clamp(-3.925, 3.925);
    let u = t * t;
    let p = P.iter().rev().fold(0.0, |sum, coefficient| sum * u + coefficient);
    let q = Q.iter().rev().fold(0.0, |sum, coefficient| sum * u + coefficient);
    t * p / q
}
