//! Kernels of our own for Burn's flex backend, reached through a backend extension. Each has a twin made of plain tensor
//! operations, which all other backends and autodiff use and which tests hold it to.

#[cfg(feature = "flex")]
mod elementwise;

use burn::tensor::{DType, Tensor, activation};

/// GELU with the error function.
///
/// D14: Burn's own `gelu` has the exact value on every backend but, on ndarray and on the GPU backends, the derivative of
/// the tanh form (off by up to 8.7e-4). Under autodiff the function is therefore composed from `erf`, whose derivative is
/// exact everywhere.
pub(crate) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.is_autodiff() {
        let gate = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
        return x * 0.5 * gate;
    }
    #[cfg(feature = "flex")]
    if x.dtype() == DType::F32 && crate::backend::is_flex(&x.device()) {
        return elementwise::gelu(x);
    }
    let _ = DType::F32;
    activation::gelu(x)
}
