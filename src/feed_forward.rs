//! The position-wise feed-forward network, plain or gated.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor, assert_shape};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::attention::is_zero;
use crate::error::{ConfigError, Faults};
use crate::projection::Projection;

/// Configuration of a [`FeedForward`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct FeedForwardConfig {
    /// Width of input and output. In a model file it may be left out: it is the model's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub d_model: usize,
    /// Inner width.
    pub d_ff: usize,
    /// The activation. Default: `gelu`.
    #[serde(default)]
    pub activation: Activation,
    /// Whether a gate multiplies the inner features ([Shazeer 2020](https://arxiv.org/abs/2002.05202)). Default: no.
    #[serde(default)]
    pub gated: bool,
    /// Whether the projections have biases. Default: yes.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Dropout on the inner features while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

fn yes() -> bool {
    true
}

impl burn::config::Config for FeedForwardConfig {}

impl FeedForwardConfig {
    /// A plain network with exact GELU and biases.
    pub fn new(d_model: usize, d_ff: usize) -> Self {
        Self { d_model, d_ff, activation: Activation::Gelu, gated: false, bias: true, dropout: 0.0 }
    }

    setters! {
        with_activation => activation: Activation,
        with_gated => gated: bool,
        with_bias => bias: bool,
        with_dropout => dropout: f64,
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// All sizes that are zero, and a dropout that is no probability.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.d_model, "d_model");
        faults.positive(self.d_ff, "d_ff");
        faults.probability(self.dropout, "dropout");
    }

    /// How many parameters the module has.
    pub fn n_parameters(&self) -> u64 {
        let inner = if self.gated { 2 } else { 1 };
        let weights = (inner + 1) * self.d_model * self.d_ff;
        let biases = if self.bias { inner * self.d_ff + self.d_model } else { 0 };
        (weights + biases) as u64
    }

    /// Builds the module; weights are drawn when they are first used.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    pub fn init(&self, device: &Device) -> FeedForward {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let linear = |input, output| Projection::new(input, output, self.bias, device);
        FeedForward {
            gate: self.gated.then(|| linear(self.d_model, self.d_ff)),
            up: linear(self.d_model, self.d_ff),
            down: linear(self.d_ff, self.d_model),
            dropout: DropoutConfig::new(self.dropout).init(),
            activation: self.activation,
        }
    }
}

/// `down(act(up(x)))`, or with a gate `down(act(gate(x)) · up(x))`.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// The gate projection, `d_model → d_ff`; it, not `up`, is activated.
    pub gate: Option<Projection>,
    /// The inner projection, `d_model → d_ff`.
    pub up: Projection,
    /// The output projection, `d_ff → d_model`.
    pub down: Projection,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl FeedForward {
    /// Applies the network to each position.
    ///
    /// # Shapes
    ///
    /// - x: `[.., d_model]`
    /// - output: `[.., d_model]`
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_model`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [d_model, _] = self.up.weight.lazy_shape().dims();
        assert_shape!(x, [.., d_model]);
        if x.shape().num_elements() == 0 {
            return x;
        }
        let inner = match &self.gate {
            Some(gate) => {
                let [gate, up] = Projection::forward_each([gate, &self.up], x);
                self.activation.forward_gated(gate, up)
            }
            None => self.up.forward_activated(x, self.activation),
        };
        self.down.forward(self.dropout.forward(inner))
    }
}
