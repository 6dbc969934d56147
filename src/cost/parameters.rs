//! Parameters by part.

use serde::Serialize;

use super::layer_kinds::layer_kinds;
use crate::attention::MultiHeadAttentionConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::model::ModelConfig;
use crate::positions::Positions;
use crate::transformer_block::TransformerBlockConfig;

/// Parameters of the embeddings.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingParameters {
    /// The token table; a tied head is this table and counted here.
    pub tokens: u64,
    /// Learned positions.
    pub positions: u64,
    /// Token types.
    pub types: u64,
    /// The projection from the table's width to the model's.
    pub projection: u64,
    /// Kernel and bias of patches, and the class token.
    pub patches: u64,
    /// All of them.
    pub total: u64,
}

/// Parameters of attention, norms of queries and keys left out.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionParameters {
    /// Projections of self-attention with their biases.
    pub self_attention: u64,
    /// Projections of attention over an encoder's output with their biases.
    pub cross_attention: u64,
    /// The learned biases of relative positions.
    pub relative_bias: u64,
    /// All of them.
    pub total: u64,
}

/// Parameters of feed-forward networks.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedForwardParameters {
    /// Networks that every token passes through.
    pub dense: u64,
    /// All experts of all mixtures.
    pub experts: u64,
    /// Those of `experts` that a token passes through.
    pub active_experts: u64,
    /// What scores the experts, and the gates of shared ones.
    pub router: u64,
    /// Shared experts.
    pub shared: u64,
    /// All of them, every expert included.
    pub total: u64,
}

/// Parameters of what stands on top of a model.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadParameters {
    /// The matrix of a head that is not tied, and the bias of the logits.
    pub logits: u64,
    /// The dense layer before the logits.
    pub transform: u64,
    /// The projection from the model's width to the table's.
    pub projection: u64,
    /// The pooler of the first token.
    pub pooler: u64,
    /// The head that gives scores for labels.
    pub task: u64,
    /// All of them.
    pub total: u64,
}

/// The parameters of a model, by part.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Everything, a tied head counted once.
    pub total: u64,
    /// Those that one token passes through: everything but the experts that it does not take.
    pub active: u64,
    /// `active` without the tables of tokens, positions and types, so without a tied head; a head of its own stays.
    pub without_embeddings: u64,
    /// Attention's share of `total`, from 0 to 1.
    pub attention_share: f64,
    /// From tokens, or images, to the residual stream.
    pub embedding: EmbeddingParameters,
    /// Attention.
    pub attention: AttentionParameters,
    /// Feed-forward networks and experts.
    pub feed_forward: FeedForwardParameters,
    /// All norms, those of embeddings, of queries and keys, and of heads included.
    pub norms: u64,
    /// What stands on top.
    pub head: HeadParameters,
    /// What of all these the encoder beside a decoder has.
    pub encoder: Option<Box<Parameters>>,
}

impl Parameters {
    /// The parameters of the model that `config` describes.
    pub fn of(config: &ModelConfig) -> Self {
        let embedding = embedding(config);
        let head = head(config);
        let mut attention = AttentionParameters::default();
        let mut feed_forward = FeedForwardParameters::default();
        let mut norms = norms_outside_blocks(config);
        for kind in layer_kinds(config) {
            let block = BlockParameters::of(&kind.block);
            attention.add(&block.attention, kind.layers);
            feed_forward.add(&block.feed_forward, kind.layers);
            norms += block.norms * kind.layers;
        }
        if let Positions::Relative(relative) = &config.positions {
            attention.relative_bias = wide(relative.n_buckets) * wide(config.attention.n_heads);
            attention.total += attention.relative_bias;
        }
        let encoder = config.encoder.as_ref().map(|encoder| Self::of(encoder));
        if let Some(encoder) = &encoder {
            attention.add(&encoder.attention, 1);
            feed_forward.add(&encoder.feed_forward, 1);
            norms += encoder.norms;
        }
        let total = embedding.total + attention.total + feed_forward.total + norms + head.total;
        let active = total - feed_forward.experts + feed_forward.active_experts;
        Self {
            total,
            active,
            without_embeddings: active - embedding.tokens - embedding.positions - embedding.types,
            attention_share: attention.total as f64 / total as f64,
            embedding,
            attention,
            feed_forward,
            norms,
            head,
            encoder: encoder.map(Box::new),
        }
    }
}

/// The parameters of one block.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockParameters {
    /// Attention.
    pub attention: AttentionParameters,
    /// The feed-forward network or the mixture of experts.
    pub feed_forward: FeedForwardParameters,
    /// All norms.
    pub norms: u64,
    /// All of them.
    pub total: u64,
}

impl BlockParameters {
    pub(super) fn of(block: &TransformerBlockConfig) -> Self {
        let d_model = block.attention.d_model;
        let self_attention = projections(&block.attention);
        let cross_attention = block.cross_attention.as_ref().map_or(0, projections);
        let attention = AttentionParameters {
            self_attention,
            cross_attention,
            relative_bias: 0,
            total: self_attention + cross_attention,
        };
        let mut feed_forward = FeedForwardParameters {
            dense: block.feed_forward.as_ref().map_or(0, FeedForwardConfig::n_parameters),
            ..FeedForwardParameters::default()
        };
        if let Some(mixture) = &block.mixture {
            let network = |network: &FeedForwardConfig| FeedForwardConfig { d_model, ..network.clone() }.n_parameters();
            let expert = network(&mixture.expert);
            let shared = mixture.shared.as_ref();
            let gate = shared.filter(|shared| shared.gated).map_or(0, |_| wide(d_model));
            feed_forward.experts = expert.saturating_mul(wide(mixture.n_experts));
            feed_forward.active_experts = expert.saturating_mul(wide(mixture.n_active));
            feed_forward.router = wide(d_model) * wide(mixture.n_experts) + gate;
            feed_forward.shared = shared.map_or(0, |shared| network(&shared.expert));
        }
        let FeedForwardParameters { dense, experts, router, shared, .. } = feed_forward;
        feed_forward.total = dense + experts + router + shared;
        let total = block.n_parameters();
        Self { attention, feed_forward, norms: total - attention.total - feed_forward.total, total }
    }
}

impl AttentionParameters {
    fn add(&mut self, other: &Self, times: u64) {
        self.self_attention += other.self_attention * times;
        self.cross_attention += other.cross_attention * times;
        self.relative_bias += other.relative_bias * times;
        self.total += other.total * times;
    }
}

impl FeedForwardParameters {
    fn add(&mut self, other: &Self, times: u64) {
        for (sum, value) in [
            (&mut self.dense, other.dense),
            (&mut self.experts, other.experts),
            (&mut self.active_experts, other.active_experts),
            (&mut self.router, other.router),
            (&mut self.shared, other.shared),
            (&mut self.total, other.total),
        ] {
            *sum += value * times;
        }
    }
}

/// The four projections and their biases.
fn projections(attention: &MultiHeadAttentionConfig) -> u64 {
    MultiHeadAttentionConfig { qk_norm: None, ..attention.clone() }.n_parameters()
}

fn embedding(config: &ModelConfig) -> EmbeddingParameters {
    let d_model = wide(config.d_model);
    let mut parts = EmbeddingParameters::default();
    if let Some(embedding) = &config.embedding {
        let width = wide(config.d_embedding());
        parts.tokens = wide(embedding.vocab_size) * width;
        parts.types = wide(embedding.n_types) * d_model;
        parts.projection = if embedding.is_projected(config.d_model) { width * d_model } else { 0 };
    }
    if let Some(patches) = config.patches {
        parts.patches = patches.n_parameters(config.d_model, false);
    }
    if let Positions::Learned(learned) = &config.positions {
        parts.positions = wide(config.max_seq_len + learned.offset) * d_model;
    }
    let EmbeddingParameters { tokens, positions, types, projection, patches, .. } = parts;
    EmbeddingParameters { total: tokens + positions + types + projection + patches, ..parts }
}

fn head(config: &ModelConfig) -> HeadParameters {
    let (d_model, width) = (wide(config.d_model), wide(config.d_embedding()));
    let mut parts = HeadParameters::default();
    if let Some(head) = &config.head {
        let matrix = if head.tied { 0 } else { wide(config.vocab_size()) * width };
        parts.logits = matrix + if head.bias { wide(config.vocab_size()) } else { 0 };
        parts.transform = head.transform.map_or(0, |_| width * width + width);
    }
    // It belongs to the embedding, and stands there with or without a head.
    parts.projection = if width == d_model { 0 } else { d_model * width };
    parts.pooler = if config.pooler { d_model * d_model + d_model } else { 0 };
    parts.task = config.task.as_ref().map_or(0, |task| task.n_parameters(config.task_width()));
    let HeadParameters { logits, transform, projection, pooler, task, .. } = parts;
    HeadParameters { total: logits + transform + projection + pooler + task, ..parts }
}

fn norms_outside_blocks(config: &ModelConfig) -> u64 {
    let has_embedding_norm = config.embedding.as_ref().is_some_and(|embedding| embedding.norm);
    let has_head_norm = config.head.as_ref().is_some_and(|head| head.transform.is_some());
    let norm = |is_there: bool, width: usize| if is_there { config.norm.n_parameters(width) } else { 0 };
    norm(has_embedding_norm, config.d_model)
        + norm(config.final_norm, config.d_model)
        + norm(has_head_norm, config.d_embedding())
}

fn wide(size: usize) -> u64 {
    size as u64
}
