//! The activation functions of feed-forward networks. GELU with the error function and GELU with tanh are two functions
//! (they differ by up to 4.7e-4) and have two names.

use burn::tensor::{DType, Tensor, activation};
use serde::{Deserialize, Serialize};

use crate::kernel;

/// An activation function, applied to each element.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
    /// `x · Φ(x)` with the error function ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
    #[default]
    Gelu,
    /// The tanh approximation of GELU: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x · σ(1.702 x)`.
    QuickGelu,
    /// `x · σ(x)`, also called swish ([Ramachandran et al. 2017](https://arxiv.org/abs/1710.05941)).
    Silu,
    /// `max(0, x)²` ([So et al. 2021](https://arxiv.org/abs/2109.08668)).
    ReluSquared,
    /// `tanh(x)`; used by poolers.
    Tanh,
}

impl Activation {
    /// Applies the function to each element.
    ///
    /// # Shapes
    ///
    /// - x: any
    /// - output: as x
    pub fn forward<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Relu => activation::relu(x),
            Self::Gelu => kernel::gelu(x),
            Self::GeluTanh => {
                let inner = (x.clone().square() * 0.044_715 + 1.0) * x.clone() * (2.0 / std::f64::consts::PI).sqrt();
                x * 0.5 * (inner.tanh() + 1.0)
            }
            Self::QuickGelu => {
                let gate = sigmoid(x.clone() * 1.702);
                x * gate
            }
            Self::Silu => x.clone() * sigmoid(x),
            Self::ReluSquared => activation::relu(x).square(),
            Self::Tanh => x.tanh(),
        }
    }
}

/// `1 / (1 + exp(−x))`. Burn's own goes through 32 bits on every backend but flex and libtorch; a model in 64 bits is an
/// oracle and must not.
pub(crate) fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F64 { (x.neg().exp() + 1.0).recip() } else { activation::sigmoid(x) }
}
