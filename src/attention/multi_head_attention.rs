//! Multi-head attention with its projections: self- and cross-attention, grouped and multi-query heads.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor, assert_shape};

use super::config::{MultiHeadAttentionConfig, QkNormScope};
use super::kv_cache::{KvCache, select_rows};
use super::mask::AttentionMask;
use super::rotary::RotaryAngles;
use super::scaled_dot_product::{AttentionKernel, AttentionOutput, ScoreOptions, scaled_dot_product_attention};
use crate::norm::Norm;
use crate::projection::Projection;

impl MultiHeadAttentionConfig {
    /// Builds the module; weights are drawn when they are first used.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid; call [`validate`](Self::validate) first for one from outside.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let (query, kv) = (self.n_heads * self.d_head(), self.n_kv_heads() * self.d_head());
        let linear = |input, output, bias| Projection::new(input, output, bias, device);
        let qk_norm = self
            .qk_norm
            .map(|qk_norm| self.qk_norm_widths(qk_norm.scope).map(|width| qk_norm.norm.init(width, device)));
        let [query_norm, key_norm] = qk_norm.map_or([None, None], |norms| norms.map(Some));
        MultiHeadAttention {
            query: linear(self.d_model, query, self.bias.query),
            key: linear(self.d_context(), kv, self.bias.key),
            value: linear(self.d_context(), kv, self.bias.value),
            output: linear(query, self.d_model, self.bias.output),
            query_norm,
            key_norm,
            dropout: DropoutConfig::new(self.dropout).init(),
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads(),
            qk_norm_scope: self.qk_norm.map(|qk_norm| qk_norm.scope),
            scale: self.scale(),
            softcap: self.softcap,
            clip_qkv: self.clip_qkv,
            kernel: self.kernel,
        }
    }
}

/// Everything beside the input that one attention call depends on.
#[derive(Debug)]
pub struct AttentionContext<'a> {
    /// Which keys are hidden.
    pub mask: &'a AttentionMask,
    /// Rotation of queries and keys, made for the positions of this call.
    pub rotary: Option<&'a RotaryAngles>,
    /// Added to scores, `[1 or batch, 1 or n_heads, 1 or query_len, key_len]`.
    pub bias: Option<&'a Tensor<4>>,
    /// Keys and values of earlier tokens; the new ones are added.
    pub cache: Option<&'a mut KvCache>,
}

impl<'a> AttentionContext<'a> {
    /// Only a mask.
    pub fn masked(mask: &'a AttentionMask) -> Self {
        Self { mask, rotary: None, bias: None, cache: None }
    }
}

/// What one call does with single heads beside the usual; by default nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadTap {
    /// Factors on the outputs of heads, `[1 or batch, n_heads]`: 0 switches a head off.
    pub gates: Option<Tensor<2>>,
    /// Whether the weights are given back.
    pub keeps_weights: bool,
}

impl HeadTap {
    /// Gives the weights back and changes nothing.
    pub(crate) fn weights() -> Self {
        Self { gates: None, keeps_weights: true }
    }
}

/// Keys and values of a memory that cross-attention reads: projected once, read by every later call.
#[derive(Clone, Debug)]
pub struct ProjectedMemory {
    key: Tensor<4>,
    value: Tensor<4>,
}

impl ProjectedMemory {
    /// Keeps the rows of the batch that have these numbers, in their order.
    pub(crate) fn keep_rows(&mut self, rows: &[usize]) {
        self.key = select_rows(self.key.clone(), rows);
        self.value = select_rows(self.value.clone(), rows);
    }

    /// Bytes of both tensors.
    pub fn bytes(&self) -> usize {
        [&self.key, &self.value].map(|tensor| tensor.shape().num_elements() * tensor.dtype().size()).iter().sum()
    }
}

/// Multi-head attention ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)).
///
/// ```text
///  multi-head            grouped-query          multi-query
///  q q q q q q q q       q q q q q q q q        q q q q q q q q
///  │ │ │ │ │ │ │ │       └┬┘ └┬┘ └┬┘ └┬┘        └──────┬──────┘
///  k k k k k k k k        k   k   k   k                k
/// ```
///
/// Order: project → clip → norm over the full width → split heads → norm per head → rotate → cache → attention →
/// merge heads → output projection. Head `h` of the queries reads key/value head `h / (n_heads / n_kv_heads)`.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// Query projection, `d_model → n_heads · d_head`.
    pub query: Projection,
    /// Key projection, `d_context → n_kv_heads · d_head`.
    pub key: Projection,
    /// Value projection, `d_context → n_kv_heads · d_head`.
    pub value: Projection,
    /// Output projection, `n_heads · d_head → d_model`.
    pub output: Projection,
    /// Norm of queries.
    pub query_norm: Option<Norm>,
    /// Norm of keys.
    pub key_norm: Option<Norm>,
    dropout: Dropout,
    n_heads: usize,
    n_kv_heads: usize,
    #[module(skip)]
    qk_norm_scope: Option<QkNormScope>,
    scale: f64,
    softcap: Option<f64>,
    clip_qkv: Option<f64>,
    #[module(skip)]
    kernel: AttentionKernel,
}

impl MultiHeadAttention {
    /// Self-attention.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - output: `[batch, seq, d_model]`
    ///
    /// # Panics
    ///
    /// When shapes do not fit, or the configured kernel cannot honour the call.
    pub fn forward(&self, x: Tensor<3>, context: AttentionContext) -> Tensor<3> {
        self.attend_self(x, context, &HeadTap::default()).0
    }

    /// Cross-attention: queries from `x`, keys and values from `memory`.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, query_len, d_model]`
    /// - memory: `[batch, key_len, d_context]`
    /// - output: `[batch, query_len, d_model]`
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_cross(&self, x: Tensor<3>, memory: Tensor<3>, context: AttentionContext) -> Tensor<3> {
        let memory = self.project_memory(memory);
        self.forward_projected(x, &memory, context)
    }

    /// The keys and values of a memory, to be read by any number of calls of
    /// [`forward_projected`](Self::forward_projected).
    ///
    /// # Shapes
    ///
    /// - memory: `[batch, key_len, d_context]`
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_context`.
    pub fn project_memory(&self, memory: Tensor<3>) -> ProjectedMemory {
        let [key, value] = self.keys_and_values(memory);
        ProjectedMemory { key, value }
    }

    /// As [`forward_cross`](Self::forward_cross), on a memory that is already projected.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, query_len, d_model]`
    /// - output: `[batch, query_len, d_model]`
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_projected(&self, x: Tensor<3>, memory: &ProjectedMemory, context: AttentionContext) -> Tensor<3> {
        self.attend_projected(x, memory, context, &HeadTap::default()).0
    }

    /// Self-attention, or cross-attention where a `memory` is given, with the weights of each head.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, query_len, d_model]`
    /// - memory: `[batch, key_len, d_context]`
    /// - output: `[batch, query_len, d_model]` and `[batch, n_heads, query_len, key_len]`; weights are taken before
    ///   dropout, so that each row sums to 1 (to 0 where every key is hidden)
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward); also when the configured kernel cannot return weights.
    pub fn forward_with_weights(
        &self,
        x: Tensor<3>,
        memory: Option<Tensor<3>>,
        context: AttentionContext,
    ) -> (Tensor<3>, Tensor<4>) {
        let (output, weights) = match memory {
            None => self.attend_self(x, context, &HeadTap::weights()),
            Some(memory) => self.attend_projected(x, &self.project_memory(memory), context, &HeadTap::weights()),
        };
        (output, weights.expect("weights were asked for"))
    }

    /// Self-attention; the weights where the tap keeps them.
    pub(crate) fn attend_self(
        &self,
        x: Tensor<3>,
        context: AttentionContext,
        tap: &HeadTap,
    ) -> (Tensor<3>, Option<Tensor<4>>) {
        self.check_input(&x);
        if is_empty(&x) {
            return self.attend_projected(x.clone(), &self.project_memory(x), context, tap);
        }
        let [query, key, value] = Projection::forward_each([&self.query, &self.key, &self.value], x);
        let source = [self.key_heads(key), split_heads(self.clipped(value), self.n_kv_heads)];
        self.attend(query, source, context, tap)
    }

    /// Cross-attention; the weights where the tap keeps them.
    pub(crate) fn attend_projected(
        &self,
        x: Tensor<3>,
        memory: &ProjectedMemory,
        context: AttentionContext,
        tap: &HeadTap,
    ) -> (Tensor<3>, Option<Tensor<4>>) {
        self.check_input(&x);
        let source = [memory.key.clone(), memory.value.clone()];
        if is_empty(&x) {
            let [batch, query_len, _] = x.dims();
            let weights = [batch, self.n_heads, query_len, memory.key.dims()[2]];
            return (x.clone(), tap.keeps_weights.then(|| Tensor::zeros(weights, (&x.device(), x.dtype()))));
        }
        self.attend(self.query.forward(x), source, context, tap)
    }

    /// Keys and values of `source`, normalised and split into heads, not yet turned.
    fn keys_and_values(&self, source: Tensor<3>) -> [Tensor<4>; 2] {
        let [d_context, width] = self.key.weight.lazy_shape().dims();
        assert_shape!(source, [_, _, d_context]);
        if is_empty(&source) {
            let [batch, key_len, _] = source.dims();
            let none = [batch, self.n_kv_heads, key_len, width / self.n_kv_heads];
            let none = Tensor::zeros(none, (&source.device(), source.dtype()));
            return [none.clone(), none];
        }
        let [key, value] = Projection::forward_each([&self.key, &self.value], source);
        [self.key_heads(key), split_heads(self.clipped(value), self.n_kv_heads)]
    }

    fn key_heads(&self, key: Tensor<3>) -> Tensor<4> {
        self.normed_heads(self.clipped(key), &self.key_norm, self.n_kv_heads)
    }

    fn check_input(&self, x: &Tensor<3>) {
        let [d_model, _] = self.query.weight.lazy_shape().dims();
        assert_shape!(x, [_, _, d_model]);
    }

    /// Attention of projected queries, `[batch, query_len, n_heads · d_head]`, none of the axes empty.
    fn attend(
        &self,
        query: Tensor<3>,
        [mut key, mut value]: [Tensor<4>; 2],
        context: AttentionContext,
        tap: &HeadTap,
    ) -> (Tensor<3>, Option<Tensor<4>>) {
        let [batch, query_len, width] = query.dims();
        let mut query = self.normed_heads(self.clipped(query), &self.query_norm, self.n_heads);
        if let Some(rotary) = context.rotary {
            query = rotary.apply(query);
            key = rotary.apply(key);
        }
        if let Some(cache) = context.cache {
            (key, value) = cache.append(key, value);
        }
        let options = ScoreOptions {
            scale: Some(self.scale),
            softcap: self.softcap,
            dropout: Some(&self.dropout),
            kernel: self.kernel,
            return_weights: tap.keeps_weights,
        };
        let AttentionOutput { mut context, weights } =
            scaled_dot_product_attention(query, key, value, context.mask, context.bias, &options);
        if let Some(gates) = &tap.gates {
            let [rows, n_heads] = gates.dims();
            context = context * gates.clone().reshape([rows, n_heads, 1, 1]);
        }
        let merged = context.swap_dims(1, 2).reshape([batch, query_len, width]);
        (self.output.forward(merged), weights)
    }

    fn clipped(&self, projected: Tensor<3>) -> Tensor<3> {
        match self.clip_qkv {
            Some(clip) => projected.clamp(-clip, clip),
            None => projected,
        }
    }

    /// Heads of `x`, normalised as the scope says.
    fn normed_heads(&self, x: Tensor<3>, norm: &Option<Norm>, n_heads: usize) -> Tensor<4> {
        match (norm, self.qk_norm_scope) {
            (Some(norm), Some(QkNormScope::FullWidth)) => split_heads(norm.forward(x), n_heads),
            (Some(norm), Some(QkNormScope::PerHead)) => norm.forward(split_heads(x, n_heads)),
            (Some(norm), Some(QkNormScope::PerHeadOwnWeight)) => norm.forward_per_head(split_heads(x, n_heads)),
            _ => split_heads(x, n_heads),
        }
    }
}

fn is_empty(x: &Tensor<3>) -> bool {
    x.shape().num_elements() == 0
}

/// `[batch, seq, n_heads · d_head]` as `[batch, n_heads, seq, d_head]`.
fn split_heads(x: Tensor<3>, n_heads: usize) -> Tensor<4> {
    let [batch, seq, width] = x.dims();
    x.reshape([batch, seq, n_heads, width / n_heads]).swap_dims(1, 2)
}
