//! The activation functions of feed-forward networks. GELU with the error function and GELU with tanh are two functions
//! (they differ by up to 4.7e-4) and have two names.

use burn::tensor::{Tensor, activation};
use serde::{Deserialize, Serialize};

use crate::kernel::{self, Function};

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
            Self::Gelu => kernel::apply(Function::Gelu, x),
            Self::GeluTanh => kernel::apply(Function::GeluTanh, x),
            Self::QuickGelu => kernel::apply(Function::QuickGelu, x),
            Self::Silu => kernel::apply(Function::Silu, x),
            Self::ReluSquared => activation::relu(x).square(),
            Self::Tanh => x.tanh(),
        }
    }

    /// The function of `gate`, times `up`.
    ///
    /// # Shapes
    ///
    /// - gate and up: any, the same
    /// - output: as both
    pub fn forward_gated<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => kernel::gate(Function::Gelu, gate, up),
            Self::GeluTanh => kernel::gate(Function::GeluTanh, gate, up),
            Self::QuickGelu => kernel::gate(Function::QuickGelu, gate, up),
            Self::Silu => kernel::gate(Function::Silu, gate, up),
            Self::Relu | Self::ReluSquared | Self::Tanh => self.forward(gate) * up,
        }
    }
}
