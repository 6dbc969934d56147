//! Functions of one element over numbers in host memory, vectorised for the machine at run time.

#[cfg(feature = "ndarray")]
use burn::tensor::Tensor;
use multiversion::multiversion;

use super::parallel;

/// Elements that one thread takes at a time: 64 KiB, which stay in the nearest cache.
const CHUNK: usize = 16 << 10;

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, Dispatch, Flex};
    use burn::tensor::Tensor;

    #[burn::backend::backend_extension(Flex)]
    pub trait ElementwiseKernels: Backend {
        /// GELU with the error function, of 32-bit numbers.
        fn gelu_kernel(x: FloatTensor<Self>) -> FloatTensor<Self>;
    }

    impl ElementwiseKernels for Flex {
        fn gelu_kernel(x: FloatTensor<Self>) -> FloatTensor<Self> {
            let is_whole = x.is_contiguous() && x.layout().start_offset() == 0;
            let mut x = if is_whole { x } else { x.to_contiguous() };
            super::gelu(x.storage_mut::<f32>());
            x
        }
    }

    /// GELU of a flex tensor of 32-bit numbers, in its own storage where it is the only owner.
    pub(in super::super) fn gelu_in_place<const D: usize>(x: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::gelu_kernel(x.into_dispatch()))
    }
}
#[cfg(feature = "flex")]
pub(super) use flex::gelu_in_place;

/// GELU of a tensor of 32-bit numbers of a backend without such an extension.
#[cfg(feature = "ndarray")]
pub(super) fn gelu_of_data<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let device = x.device();
    let mut data = x.into_data();
    gelu(data.as_mut_slice::<f32>().expect("the numbers have 32 bits"));
    Tensor::from_data(data, &device)
}

fn gelu(x: &mut [f32]) {
    parallel::pieces(x, CHUNK, |_, piece| gelu_slice(piece));
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn gelu_slice(x: &mut [f32]) {
    for value in x {
        *value *= 0.5 * (1.0 + erf(*value * std::f32::consts::FRAC_1_SQRT_2));
    }
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

#[cfg(test)]
mod tests {
    use super::{CHUNK, gelu_slice};

    /// The fit and its rounding, see [`super::erf`].
    const TOLERANCE: f64 = 2.5e-7;

    #[test]
    fn gelu_is_exact_to_rounding() {
        let inputs: Vec<f32> = (0..2 * CHUNK).map(|i| (i as f32 / CHUNK as f32 - 1.0) * 9.0).collect();
        let mut outputs = inputs.clone();
        gelu_slice(&mut outputs);
        for (x, y) in inputs.into_iter().zip(outputs) {
            let x = f64::from(x);
            let exact = 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2));
            let error = (f64::from(y) - exact).abs() / x.abs().max(1.0);
            assert!(error <= TOLERANCE, "gelu({x}) = {y}, expected {exact}");
        }
    }

    #[test]
    fn gelu_keeps_what_is_not_a_number() {
        let mut values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        gelu_slice(&mut values);
        assert!(values[0].is_nan());
        assert_eq!(values[1], f32::INFINITY);
        assert_eq!(values[3], 0.0);
    }
}
