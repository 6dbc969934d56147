//! Kernels of our own for Burn's CPU backends, on flex through a backend extension. Each has a twin made of plain tensor
//! operations, which all other backends and autodiff use and which tests hold it to.
//!
//! The arithmetic is on slices, in files that know nothing of Burn; beside it stands what binds it to tensors. With the
//! environment variable `BURNFORMER_KERNEL=composed` every function takes its twin.

#[cfg(any(feature = "flex", feature = "ndarray"))]
mod elementwise;
#[cfg(feature = "flex")]
mod flex;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod parallel;
mod switch;

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
    match host_memory(&x) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) => elementwise::gelu_in_place(x),
        #[cfg(feature = "ndarray")]
        Some(HostMemory::Copied) => elementwise::gelu_of_data(x),
        _ => activation::gelu(x),
    }
}

/// How kernels reach the numbers of `x`; `None` where the composed twin is to be taken: under autodiff, for numbers
/// that do not have 32 bits, on all other backends, and where kernels are turned off.
fn host_memory<const D: usize>(x: &Tensor<D>) -> Option<HostMemory> {
    if x.is_autodiff() || x.dtype() != DType::F32 || !switch::is_on() {
        return None;
    }
    crate::backend::host_memory(&x.device())
}

/// How the numbers of a tensor of a CPU backend are reached from here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// In the tensor's own storage, through a backend extension (flex).
    InPlace,
    /// By reading them out and building a new tensor (ndarray), which pays for functions that are slow there.
    Copied,
}
