//! What stands on top of a model: the language-model head and the pooler.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::blocks::Blocks;
use crate::embedding::Embedding;
use crate::error::Faults;
use crate::kernel;
use crate::norm::{Norm, NormConfig};
use crate::projection::Projection;

/// Configuration of a [`LanguageModelHead`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Whether the head multiplies with the token table instead of a matrix of its own
    /// ([Press and Wolf 2017](https://arxiv.org/abs/1608.05859)). Default: yes.
    #[serde(default = "yes")]
    pub tied: bool,
    /// Whether logits have a bias. Default: no.
    #[serde(default)]
    pub bias: bool,
    /// A dense layer with this activation and a norm before the logits (BERT's masked-language head). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Activation>,
    /// Factor on logits (Cohere, Granite). Default: 1.
    #[serde(default = "one")]
    pub scale: f64,
    /// Logits become `cap · tanh(logit / cap)` (Gemma 2). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self { tied: true, bias: false, transform: None, scale: 1.0, softcap: None }
    }
}

impl HeadConfig {
    /// A head that is tied to the token table, or has its own matrix.
    pub fn new(tied: bool) -> Self {
        Self { tied, ..Self::default() }
    }

    setters! {
        with_bias => bias: bool,
        with_transform => transform: Activation,
        with_scale => scale: f64,
        with_softcap => softcap: f64,
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.require(self.scale.is_finite(), "scale", || format!("must be a number, got {}", self.scale));
        if let Some(softcap) = self.softcap {
            faults.positive_number(softcap, "softcap");
        }
    }

    pub(crate) fn n_parameters(&self, vocab_size: usize, width: usize, norm: NormConfig) -> u64 {
        let matrix = if self.tied { 0 } else { vocab_size * width };
        let bias = if self.bias { vocab_size } else { 0 };
        let transform = self.transform.map_or(0, |_| (width * width + width) as u64 + norm.n_parameters(width));
        (matrix + bias) as u64 + transform
    }

    pub(crate) fn init(&self, vocab_size: usize, width: usize, norm: NormConfig, device: &Device) -> LanguageModelHead {
        let init = Initializer::Normal { mean: 0.0, std: 0.02 };
        LanguageModelHead {
            dense: self.transform.map(|_| Projection::new(width, width, true, device)),
            norm: self.transform.map(|_| norm.init(width, device)),
            weight: (!self.tied).then(|| init.init([vocab_size, width], device)),
            bias: self.bias.then(|| Initializer::Zeros.init([vocab_size], device)),
            transform: self.transform,
            scale: self.scale,
            softcap: self.softcap,
            blocks: Blocks::default(),
        }
    }
}

/// From hidden states to logits: `softcap(scale · (transform(x) · weightᵀ + bias))`.
#[derive(Module, Debug)]
pub struct LanguageModelHead {
    /// Dense layer of the transform.
    pub dense: Option<Projection>,
    /// Norm of the transform.
    pub norm: Option<Norm>,
    /// The matrix, `[vocab_size, width]`; absent in a tied head.
    pub weight: Option<Param<Tensor<2>>>,
    /// The bias, `[vocab_size]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    transform: Option<Activation>,
    scale: f64,
    softcap: Option<f64>,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl LanguageModelHead {
    /// The logits of hidden states; a tied head takes the token table of `embedding`.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, width]`
    /// - output: `[batch, seq, vocab_size]`
    ///
    /// # Panics
    ///
    /// When the head is tied and no embedding is given, or shapes do not fit.
    pub fn forward(&self, mut x: Tensor<3>, embedding: Option<&Embedding>) -> Tensor<3> {
        if let Some(dense) = &self.dense {
            x = dense.forward(x);
        }
        if let Some(activation) = self.transform {
            x = activation.forward(x);
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        let (weight, blocks) = match (&self.weight, embedding) {
            (Some(weight), _) => (weight, &self.blocks),
            (None, Some(embedding)) => (&embedding.tokens, &embedding.blocks),
            (None, None) => panic!("a tied head needs the embedding"),
        };
        // One product over all rows: a batch of small products is slower on every backend.
        let [batch, seq, width] = x.dims();
        let x = x.reshape([batch * seq, width]);
        let [vocab_size, _] = weight.lazy_shape().dims();
        let bias = self.bias.as_ref().map(Param::val);
        let [mut logits] = match blocks.beside(weight, &x) {
            Some(blocks) => kernel::quantised_linears(x, [blocks], [bias]),
            None => kernel::linears(x, [(weight.val().transpose(), bias)]),
        };
        if self.scale != 1.0 {
            logits = logits * self.scale;
        }
        if let Some(cap) = self.softcap {
            logits = (logits / cap).tanh() * cap;
        }
        logits.reshape([batch, seq, vocab_size])
    }
}

/// A dense layer with tanh on the first token (BERT).
#[derive(Module, Debug)]
pub struct Pooler {
    /// The dense layer, `d_model → d_model`.
    pub dense: Projection,
}

impl Pooler {
    /// A pooler of width `d_model`.
    pub fn new(d_model: usize, device: &Device) -> Self {
        Self { dense: Projection::new(d_model, d_model, true, device) }
    }

    /// Pools a sequence.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`, `seq` at least 1
    /// - output: `[batch, d_model]`
    ///
    /// # Panics
    ///
    /// When the sequence is empty.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [batch, _, d_model] = x.dims();
        let first = x.slice_dim(1, 0..1).reshape([batch, d_model]);
        Activation::Tanh.forward(self.dense.forward(first))
    }
}
