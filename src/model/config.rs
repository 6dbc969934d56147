//! The configuration of a whole model, as it stands in a TOML or JSON file.

use serde::{Deserialize, Serialize};

use crate::attention::MultiHeadAttentionConfig;
use crate::embedding::EmbeddingConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::mixture_of_experts::MixtureOfExpertsConfig;
use crate::norm::NormConfig;
use crate::patch_embedding::PatchEmbeddingConfig;
use crate::positions::Positions;
use crate::task_head::{TaskHeadConfig, TaskInput};
use crate::transformer_block::{BlockLayout, TransformerBlockConfig};

/// Whether queries see the keys after them.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// They do (BERT).
    Encoder,
    /// They do not (GPT). With an `encoder`, they also see what that has made of another sequence (T5).
    Decoder,
}

/// Which rotation a layer uses.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LayerRotary {
    /// `positions.rotary.global`.
    #[default]
    Global,
    /// `positions.rotary.local`.
    Local,
    /// None.
    None,
}

/// One entry of the pattern of layers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct LayerPattern {
    /// How many keys a query sees, its own included. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Which rotation the layer uses where the model has rotary positions. Default: `global`.
    #[serde(default)]
    pub rotary: LayerRotary,
    /// Whether the layer has the feed-forward network where the model has a mixture of experts. Default: no.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dense: bool,
    /// How many layers in a row are like this. Default: 1.
    #[serde(default = "one_layer")]
    pub repeat: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn one_layer() -> usize {
    1
}

impl Default for LayerPattern {
    fn default() -> Self {
        Self { window: None, rotary: LayerRotary::Global, dense: false, repeat: 1 }
    }
}

fn one_pattern() -> Vec<LayerPattern> {
    vec![LayerPattern::default()]
}

/// Configuration of a [`Transformer`](super::Transformer).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// What the model is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where the numbers come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The parameter count that its authors publish; it must be the one of this configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_parameters: Option<u64>,
    /// Whether queries see the keys after them.
    pub kind: ModelKind,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Longest sequence; a hard limit where positions are learned, otherwise what the model was trained for.
    pub max_seq_len: usize,
    /// From token ids to the residual stream; a model without it takes hidden states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<EmbeddingConfig>,
    /// From images to the residual stream, in place of token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<PatchEmbeddingConfig>,
    /// How the model knows the order of tokens. Default: not at all.
    #[serde(default)]
    pub positions: Positions,
    /// Self-attention of each block.
    pub attention: MultiHeadAttentionConfig,
    /// Whether the scores of layer `i` (from 0) are also divided by `i + 1` (some GPT-2 models). Default: no.
    #[serde(default)]
    pub scale_scores_by_layer: bool,
    /// Feed-forward network of each block; blocks without one are attention alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForwardConfig>,
    /// The mixture of experts of each block, but for layers that are `dense`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<MixtureOfExpertsConfig>,
    /// The encoder whose output each block of this decoder attends to; it reads the decoder's token embeddings.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<Box<ModelConfig>>,
    /// Attention over the encoder's output. Default, where there is an encoder: as `attention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_attention: Option<MultiHeadAttentionConfig>,
    /// All norms outside attention. Default: LayerNorm with eps 1e-5.
    #[serde(default)]
    pub norm: NormConfig,
    /// Residual layout of each block. Default: pre-norm, sequential.
    #[serde(default)]
    pub block: BlockLayout,
    /// Pattern of layers, repeated over the depth. Default: every layer sees all keys.
    #[serde(default = "one_pattern")]
    pub layers: Vec<LayerPattern>,
    /// Whether a norm follows the last block. Default: no.
    #[serde(default)]
    pub final_norm: bool,
    /// The language-model head; a model without one gives hidden states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadConfig>,
    /// Whether a dense layer with tanh pools the first token. Default: no.
    #[serde(default)]
    pub pooler: bool,
    /// The head that gives scores for labels. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskHeadConfig>,
    /// Dropout on embeddings and branches while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

impl burn::config::Config for ModelConfig {}

impl ModelConfig {
    /// A model of `n_layers` pre-norm blocks with these parts, without embeddings, positions or head.
    pub fn new(
        kind: ModelKind,
        n_layers: usize,
        max_seq_len: usize,
        attention: MultiHeadAttentionConfig,
        feed_forward: FeedForwardConfig,
    ) -> Self {
        Self {
            description: None,
            source: None,
            published_parameters: None,
            kind,
            d_model: attention.d_model,
            n_layers,
            max_seq_len,
            embedding: None,
            patches: None,
            positions: Positions::None,
            attention,
            scale_scores_by_layer: false,
            feed_forward: Some(feed_forward),
            mixture: None,
            encoder: None,
            cross_attention: None,
            norm: NormConfig::default(),
            block: BlockLayout::default(),
            layers: one_pattern(),
            final_norm: false,
            head: None,
            pooler: false,
            task: None,
            dropout: 0.0,
        }
    }

    setters! {
        with_embedding => embedding: EmbeddingConfig,
        with_patches => patches: PatchEmbeddingConfig,
        with_positions => positions: Positions,
        with_norm => norm: NormConfig,
        with_block => block: BlockLayout,
        with_layers => layers: Vec<LayerPattern>,
        with_final_norm => final_norm: bool,
        with_head => head: HeadConfig,
        with_pooler => pooler: bool,
        with_task => task: TaskHeadConfig,
        with_dropout => dropout: f64,
    }

    /// The same configuration with a mixture of experts in all blocks, in place of the feed-forward network.
    #[must_use]
    pub fn with_mixture(mut self, mixture: MixtureOfExpertsConfig) -> Self {
        self.feed_forward = None;
        self.mixture = Some(mixture);
        self
    }

    /// The same decoder, attending to the output of `encoder`.
    #[must_use]
    pub fn with_encoder(mut self, encoder: ModelConfig) -> Self {
        self.encoder = Some(Box::new(encoder));
        self
    }

    /// Attention with the width of the model.
    pub fn attention(&self) -> MultiHeadAttentionConfig {
        MultiHeadAttentionConfig { d_model: self.d_model, ..self.attention.clone() }
    }

    /// The feed-forward network with the width of the model.
    pub fn feed_forward(&self) -> Option<FeedForwardConfig> {
        let feed_forward = self.feed_forward.clone()?;
        Some(FeedForwardConfig { d_model: self.d_model, ..feed_forward })
    }

    /// The mixture of experts with the width of the model.
    pub fn mixture(&self) -> Option<MixtureOfExpertsConfig> {
        let mixture = self.mixture.clone()?;
        Some(MixtureOfExpertsConfig { d_model: self.d_model, ..mixture })
    }

    /// Attention over the encoder's output with the width of the model; `None` without an encoder.
    pub fn cross_attention(&self) -> Option<MultiHeadAttentionConfig> {
        self.encoder.as_ref()?;
        let cross = self.cross_attention.as_ref().unwrap_or(&self.attention);
        Some(MultiHeadAttentionConfig { d_model: self.d_model, ..cross.clone() })
    }

    /// The block of layer `layer`, counted from 0.
    pub fn block(&self, layer: usize) -> TransformerBlockConfig {
        let mut block = self.block_like(self.layer_pattern(layer).dense);
        if self.scale_scores_by_layer {
            block.attention.scale = Some(block.attention.scale() / (layer + 1) as f64);
        }
        block
    }

    /// The block of a layer that is `dense`, or of one that is not.
    fn block_like(&self, is_dense: bool) -> TransformerBlockConfig {
        let mixture = self.mixture().filter(|_| !is_dense);
        TransformerBlockConfig {
            attention: self.attention(),
            cross_attention: self.cross_attention(),
            feed_forward: self.feed_forward().filter(|_| mixture.is_none()),
            mixture,
            norm: self.norm,
            layout: self.block,
            dropout: self.dropout,
        }
    }

    /// Window and rotation of each layer.
    pub fn layer_patterns(&self) -> Vec<LayerPattern> {
        let once = self.layers.iter().flat_map(|layer| std::iter::repeat_n(*layer, layer.repeat));
        once.cycle().take(self.n_layers).map(|layer| LayerPattern { repeat: 1, ..layer }).collect()
    }

    /// The pattern of one layer.
    fn layer_pattern(&self, layer: usize) -> LayerPattern {
        let period = self.period();
        let mut at = layer % period;
        for pattern in &self.layers {
            match at.checked_sub(pattern.repeat) {
                Some(rest) => at = rest,
                None => return *pattern,
            }
        }
        LayerPattern::default()
    }

    /// How many layers are `dense`.
    fn n_dense_layers(&self) -> usize {
        let (whole, mut rest) = (self.n_layers / self.period(), self.n_layers % self.period());
        let mut count = 0usize;
        for pattern in &self.layers {
            let in_rest = rest.min(pattern.repeat);
            rest -= in_rest;
            if pattern.dense {
                count = count.saturating_add(whole.saturating_mul(pattern.repeat)).saturating_add(in_rest);
            }
        }
        count
    }

    /// After how many layers the pattern starts again.
    fn period(&self) -> usize {
        self.layers.iter().fold(0usize, |sum, pattern| sum.saturating_add(pattern.repeat)).max(1)
    }

    /// Width of the token table, or of the model where it has none.
    pub fn d_embedding(&self) -> usize {
        self.embedding.as_ref().map_or(self.d_model, |embedding| embedding.d_embedding(self.d_model))
    }

    /// Number of token ids; 0 without embeddings.
    pub fn vocab_size(&self) -> usize {
        self.embedding.as_ref().map_or(0, |embedding| embedding.vocab_size)
    }

    /// Longest sequence the model can take at all: set where positions are learned, as their table ends there.
    pub fn position_limit(&self) -> Option<usize> {
        matches!(self.positions, Positions::Learned(_)).then_some(self.max_seq_len)
    }

    /// Width of what the task head reads.
    pub(crate) fn task_width(&self) -> usize {
        let is_pooled = self.task.as_ref().is_some_and(|task| task.input == TaskInput::Pooled);
        if is_pooled { self.d_model } else { self.d_embedding() }
    }

    /// How many parameters the model has, from the configuration alone. A tied head is counted once.
    pub fn n_parameters(&self) -> u64 {
        let embedding = self
            .embedding
            .as_ref()
            .map_or(0, |embedding| embedding.n_parameters(self.d_model, self.max_seq_len, &self.positions, self.norm));
        let n_dense = self.n_dense_layers();
        let blocks = [(true, n_dense), (false, self.n_layers.saturating_sub(n_dense))]
            .map(|(is_dense, count)| self.block_like(is_dense).n_parameters().saturating_mul(count as u64));
        let blocks = blocks[0].saturating_add(blocks[1]);
        let relative_bias = match &self.positions {
            Positions::Relative(relative) => (relative.n_buckets * self.attention.n_heads) as u64,
            _ => 0,
        };
        let encoder = self.encoder.as_ref().map_or(0, |encoder| encoder.n_parameters());
        let has_positions = matches!(self.positions, Positions::Learned(_));
        let patches = self.patches.map_or(0, |patches| patches.n_parameters(self.d_model, has_positions));
        let task = self.task.as_ref().map_or(0, |task| task.n_parameters(self.task_width()));
        let final_norm = if self.final_norm { self.norm.n_parameters(self.d_model) } else { 0 };
        let is_projected = self.embedding.as_ref().is_some_and(|embedding| embedding.is_projected(self.d_model));
        let project_out = if is_projected { self.d_model * self.d_embedding() } else { 0 };
        let head =
            self.head.as_ref().map_or(0, |head| head.n_parameters(self.vocab_size(), self.d_embedding(), self.norm));
        let pooler = if self.pooler { self.d_model * self.d_model + self.d_model } else { 0 };
        let rest = embedding + final_norm + head + task + relative_bias + (project_out + pooler) as u64;
        blocks.saturating_add(patches).saturating_add(encoder).saturating_add(rest)
    }
}
