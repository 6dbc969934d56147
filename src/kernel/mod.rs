//! Kernels of our own for Burn's CPU backends, on flex through a backend extension. Each has a twin made of plain tensor
//! operations, which all other backends and autodiff use and which tests hold it to.

#[cfg(any(feature = "flex", feature = "ndarray"))]
mod elementwise;

use burn::tensor::{Tensor, activation};

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
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    if x.dtype() == burn::tensor::DType::F32 {
        match crate::backend::host_memory(&x.device()) {
            #[cfg(feature = "flex")]
            Some(HostMemory::InPlace) => return elementwise::gelu_in_place(x),
            #[cfg(feature = "ndarray")]
            Some(HostMemory::Copied) => return elementwise::gelu_of_data(x),
            _ => {}
        }
    }
    activation::gelu(x)
}

/// How the numbers of a tensor of a CPU backend are reached from here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// In the tensor's own storage, through a backend extension (flex).
    InPlace,
    /// By reading them out and building a new tensor (ndarray), which pays for functions that are slow there.
    Copied,
}
