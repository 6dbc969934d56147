//! The configuration of multi-head attention.

use serde::{Deserialize, Serialize};

use super::scaled_dot_product::AttentionKernel;
use crate::error::{ConfigError, Faults};
use crate::norm::NormConfig;

/// Which projections have a bias.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ProjectionBias {
    /// Query projection. Default: yes.
    #[serde(default = "yes")]
    pub query: bool,
    /// Key projection. Default: yes.
    #[serde(default = "yes")]
    pub key: bool,
    /// Value projection. Default: yes.
    #[serde(default = "yes")]
    pub value: bool,
    /// Output projection. Default: yes.
    #[serde(default = "yes")]
    pub output: bool,
}

fn yes() -> bool {
    true
}

impl ProjectionBias {
    /// A bias on every projection.
    pub const ALL: Self = Self { query: true, key: true, value: true, output: true };
    /// No bias.
    pub const NONE: Self = Self { query: false, key: false, value: false, output: false };
    /// A bias on query, key and value (Qwen 2).
    pub const QKV: Self = Self { query: true, key: true, value: true, output: false };
}

impl Default for ProjectionBias {
    fn default() -> Self {
        Self::ALL
    }
}

/// Over what queries and keys are normalised before they are compared.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum QkNormScope {
    /// Each head on its own, all heads sharing one weight of `d_head` numbers (Qwen 3, Gemma 3).
    PerHead,
    /// Each head on its own with its own weight (Cohere, StableLM 2).
    PerHeadOwnWeight,
    /// All heads of a token together, before they are split (OLMo 2).
    FullWidth,
}

/// Normalisation of queries and keys, always before rotation
/// ([Henry et al. 2020](https://arxiv.org/abs/2010.04245)).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct QkNorm {
    /// Over what is normalised.
    pub scope: QkNormScope,
    /// The norm.
    pub norm: NormConfig,
}

/// Configuration of [`MultiHeadAttention`](super::MultiHeadAttention).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MultiHeadAttentionConfig {
    /// Width of the queries' input and of the output. In a model file it may be left out: it is the model's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub d_model: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`. Default: `n_heads`; 1 is multi-query attention
    /// ([Shazeer 2019](https://arxiv.org/abs/1911.02150)), between is grouped-query attention
    /// ([Ainslie et al. 2023](https://arxiv.org/abs/2305.13245)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Features per head. Default: `d_model / n_heads`, which must then be whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_head: Option<usize>,
    /// Width of the memory that cross-attention reads. Default: `d_model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_context: Option<usize>,
    /// Which projections have a bias. Default: all.
    #[serde(default)]
    pub bias: ProjectionBias,
    /// Normalisation of queries and keys. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qk_norm: Option<QkNorm>,
    /// Factor on scores. Default: `1/√d_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
    /// Projected queries, keys and values are clipped to ± this (MPT, OLMo 1). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_qkv: Option<f64>,
    /// Dropout on the weights while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
    /// How scores are computed. Default: `auto`.
    #[serde(default)]
    pub kernel: AttentionKernel,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn is_zero(size: &usize) -> bool {
    *size == 0
}

impl burn::config::Config for MultiHeadAttentionConfig {}

impl MultiHeadAttentionConfig {
    /// Attention of `n_heads` heads over inputs of width `d_model`.
    pub fn new(d_model: usize, n_heads: usize) -> Self {
        Self {
            d_model,
            n_heads,
            n_kv_heads: None,
            d_head: None,
            d_context: None,
            bias: ProjectionBias::ALL,
            qk_norm: None,
            scale: None,
            softcap: None,
            clip_qkv: None,
            dropout: 0.0,
            kernel: AttentionKernel::Auto,
        }
    }

    setters! {
        with_n_kv_heads => n_kv_heads: usize,
        with_d_head => d_head: usize,
        with_d_context => d_context: usize,
        with_bias => bias: ProjectionBias,
        with_qk_norm => qk_norm: QkNorm,
        with_scale => scale: f64,
        with_softcap => softcap: f64,
        with_clip_qkv => clip_qkv: f64,
        with_dropout => dropout: f64,
        with_kernel => kernel: AttentionKernel,
    }

    /// Number of key and value heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads.unwrap_or(self.n_heads)
    }

    /// Features per head.
    pub fn d_head(&self) -> usize {
        self.d_head.unwrap_or_else(|| self.d_model.checked_div(self.n_heads).unwrap_or(0))
    }

    /// Width of the memory that cross-attention reads.
    pub fn d_context(&self) -> usize {
        self.d_context.unwrap_or(self.d_model)
    }

    /// Factor on scores.
    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| (self.d_head() as f64).sqrt().recip())
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// All sizes that are zero or do not divide, and all numbers out of their range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        let Self { d_model, n_heads, .. } = *self;
        faults.positive(d_model, "d_model");
        faults.positive(n_heads, "n_heads");
        if let Some(d_head) = self.d_head {
            faults.positive(d_head, "d_head");
        } else if n_heads > 0 {
            faults.require(d_model.is_multiple_of(n_heads), "n_heads", || {
                format!("= {n_heads} does not divide d_model = {d_model}; change one of them or give d_head")
            });
        }
        if let Some(d_head) = self.d_head.filter(|d_head| d_head * n_heads > 0) {
            faults.positive(d_head.saturating_mul(n_heads), "n_heads · d_head");
        }
        if let Some(d_context) = self.d_context {
            faults.positive(d_context, "d_context");
        }
        if let Some(n_kv_heads) = self.n_kv_heads {
            faults.require(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "n_kv_heads", || {
                format!("= {n_kv_heads} does not divide n_heads = {n_heads}")
            });
        }
        if let Some(qk_norm) = &self.qk_norm {
            faults.section("qk_norm.norm", |faults| qk_norm.norm.check(faults));
        }
        if let Some(scale) = self.scale {
            faults.require(scale.is_finite(), "scale", || format!("must be a number, got {scale}"));
        }
        for (value, key) in [(self.softcap, "softcap"), (self.clip_qkv, "clip_qkv")] {
            if let Some(value) = value {
                faults.positive_number(value, key);
            }
        }
        faults.probability(self.dropout, "dropout");
    }

    /// How many parameters the module has.
    pub fn n_parameters(&self) -> u64 {
        let (query, kv) = (self.n_heads * self.d_head(), self.n_kv_heads() * self.d_head());
        let weights = self.d_model * query + 2 * self.d_context() * kv + query * self.d_model;
        let bias = |has: bool, width: usize| if has { width } else { 0 };
        let biases = bias(self.bias.query, query)
            + bias(self.bias.key, kv)
            + bias(self.bias.value, kv)
            + bias(self.bias.output, self.d_model);
        let norms = self.qk_norm.map_or(0, |qk_norm| {
            let [query, key] = self.qk_norm_widths(qk_norm.scope);
            qk_norm.norm.n_parameters(query) + qk_norm.norm.n_parameters(key)
        });
        (weights + biases) as u64 + norms
    }

    pub(super) fn qk_norm_widths(&self, scope: QkNormScope) -> [usize; 2] {
        match scope {
            QkNormScope::PerHead => [self.d_head(); 2],
            QkNormScope::PerHeadOwnWeight | QkNormScope::FullWidth => {
                [self.n_heads * self.d_head(), self.n_kv_heads() * self.d_head()]
            }
        }
    }
}
