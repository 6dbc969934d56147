//! The activation functions that have a kernel.

use burn::tensor::{DType, Tensor, activation};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// GELU with the error function.
    Gelu,
    /// GELU with tanh.
    GeluTanh,
    /// `x · σ(1.702 x)`.
    QuickGelu,
    /// `x · σ(x)`.
    Silu,
}

impl Function {
    /// The function from plain tensor operations.
    pub(super) fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            // D14: Burn's own `gelu` has the exact value on every backend but, on ndarray and on the GPU backends, the
            // derivative of the tanh form (off by up to 8.7e-4). Under autodiff the function is therefore composed from
            // `erf`, whose derivative is exact everywhere.
            Self::Gelu if x.is_autodiff() => {
                let gate = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
                x * 0.5 * gate
            }
            Self::Gelu => activation::gelu(x),
            Self::GeluTanh => {
                let inner = (x.clone().square() * 0.044_715 + 1.0) * x.clone() * (2.0 / std::f64::consts::PI).sqrt();
                x * 0.5 * (inner.tanh() + 1.0)
            }
            Self::QuickGelu => {
                let gate = sigmoid(x.clone() * 1.702);
                x * gate
            }
            Self::Silu => x.clone() * sigmoid(x),
        }
    }
}

/// `1 / (1 + exp(−x))`. Burn's own goes through 32 bits on every backend but flex and libtorch; a model in 64 bits is an
/// oracle and must not.
pub(crate) fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F64 { (x.neg().exp() + 1.0).recip() } else { activation::sigmoid(x) }
}
