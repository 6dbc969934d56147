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
        match (self.kernel(), self) {
            (Some(function), _) => kernel::apply(function, x),
            (None, Self::Relu) => activation::relu(x),
            (None, Self::ReluSquared) => activation::relu(x).square(),
            (None, _) => x.tanh(),
        }
    }

    /// The function of `x + bias`, a bias over the last axis.
    pub(crate) fn forward_biased<const D: usize>(self, x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
        match self.kernel() {
            Some(function) => kernel::apply_biased(function, x, bias),
            None => self.forward(x + bias.unsqueeze()),
        }
    }

    /// The function of `gate`, times `up`.
    ///
    /// # Shapes
    ///
    /// - gate and up: any, the same
    /// - output: as both
    pub fn forward_gated<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
        match self.kernel() {
            Some(function) => kernel::gate(function, gate, up),
            None => self.forward(gate) * up,
        }
    }

    fn kernel(self) -> Option<Function> {
        match self {
            Self::Gelu => Some(Function::Gelu),
            Self::GeluTanh => Some(Function::GeluTanh),
            Self::QuickGelu => Some(Function::QuickGelu),
            Self::Silu => Some(Function::Silu),
            Self::Relu | Self::ReluSquared | Self::Tanh => None,
        }
    }
}
