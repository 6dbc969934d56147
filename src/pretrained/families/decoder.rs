//! What the decoders that are shaped like Llama have in common: their usual keys, and their usual names.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, windows};
use super::super::hf_rope::{RopeDefaults, rotary};
use super::super::rules::Rules;
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, ProjectionBias, QkNorm, QkNormScope, RotaryConfig};
use crate::embedding::EmbeddingConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::model::{ModelConfig, ModelKind};
use crate::norm::{NormConfig, NormKind};
use crate::positions::Positions;

/// More layers than any model has; a larger number is a broken file.
const MOST_LAYERS: usize = 10_000;

/// What a family's configs mean where they are silent.
pub(super) struct Defaults {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    /// `None`: as many as `n_heads`. A `null` in the file always means that.
    pub n_kv_heads: Option<usize>,
    /// `None`: `d_model / n_heads`. A `null` in the file always means that.
    pub d_head: Option<usize>,
    pub max_seq_len: usize,
    pub activation: Activation,
    pub norm: NormKind,
    /// The key of the norms' eps, and its value.
    pub eps: (&'static str, f64),
    pub rope: RopeDefaults,
    pub is_tied: bool,
}

/// Llama's own defaults, which others are given by their difference from.
pub(super) const LLAMA_DEFAULTS: Defaults = Defaults {
    vocab_size: 32_000,
    d_model: 4096,
    d_ff: 11_008,
    n_layers: 32,
    n_heads: 32,
    n_kv_heads: None,
    d_head: None,
    max_seq_len: 2048,
    activation: Activation::Silu,
    norm: NormKind::Rms,
    eps: ("rms_norm_eps", 1e-6),
    rope: RopeDefaults::new(10_000.0),
    is_tied: false,
};

/// A decoder as Llama's: pre-norm blocks with a gated network, rotary positions, a final norm, no biases.
pub(super) fn llama_like(hf: &mut HfConfig, defaults: &Defaults) -> ModelConfig {
    let mut config = without_positions(hf, defaults);
    let rotary = rotary(hf, &defaults.rope, config.max_seq_len);
    set_rotary(&mut config, rotary);
    let sliding = sliding_layers(hf, config.n_layers, |_| false);
    if sliding.contains(&true) {
        let window = hf.optional_size("sliding_window");
        config.layers = windows(&sliding, window);
    }
    config
}

/// The same without positions and windows, for families that read those their own way.
pub(super) fn without_positions(hf: &mut HfConfig, defaults: &Defaults) -> ModelConfig {
    let d_model = hf.size("hidden_size", defaults.d_model);
    let n_heads = hf.size("num_attention_heads", defaults.n_heads);
    let mut attention = MultiHeadAttentionConfig::new(d_model, n_heads).with_bias(ProjectionBias::NONE);
    attention.n_kv_heads = hf.size_or_null("num_key_value_heads", defaults.n_kv_heads);
    attention.d_head = hf.size_or_null("head_dim", defaults.d_head);
    let activation = activation(hf, "hidden_act", defaults.activation);
    let feed_forward = FeedForwardConfig::new(d_model, hf.size("intermediate_size", defaults.d_ff))
        .with_activation(activation)
        .with_gated(true)
        .with_bias(false);
    let n_layers = n_layers(hf, defaults.n_layers);
    let max_seq_len = hf.size("max_position_embeddings", defaults.max_seq_len);
    ModelConfig::new(ModelKind::Decoder, n_layers, max_seq_len, attention, feed_forward)
        .with_embedding(EmbeddingConfig::new(hf.size("vocab_size", defaults.vocab_size)))
        .with_norm(NormConfig::new(defaults.norm).with_eps(hf.number(defaults.eps.0, defaults.eps.1)))
        .with_final_norm(true)
        .with_head(HeadConfig::new(hf.flag("tie_word_embeddings", defaults.is_tied)))
}

/// The number of layers, refused where it could only fill the memory.
pub(super) fn n_layers(hf: &mut HfConfig, default: usize) -> usize {
    let n_layers = hf.size("num_hidden_layers", default);
    if n_layers > MOST_LAYERS {
        hf.fault("num_hidden_layers", format!("must be at most {MOST_LAYERS}, got {n_layers}"));
        return default;
    }
    n_layers
}

pub(super) fn set_rotary(config: &mut ModelConfig, rotary: RotaryConfig) {
    config.positions = Positions::rotary(rotary);
}

/// Every layer, or the ones that `layer_types` names, sees `sliding_window` keys; `default` where the key is absent.
pub(super) fn set_window(hf: &mut HfConfig, config: &mut ModelConfig, default: Option<usize>) {
    let window = hf.size_or_null("sliding_window", default);
    let sliding = sliding_layers(hf, config.n_layers, |_| true);
    config.layers = windows(&sliding, window);
}

/// `attention_bias` is about all four projections.
pub(super) fn set_attention_bias(hf: &mut HfConfig, config: &mut ModelConfig) {
    if hf.flag("attention_bias", false) {
        config.attention.bias = ProjectionBias::ALL;
    }
}

/// `mlp_bias` is about the feed-forward network.
pub(super) fn set_mlp_bias(hf: &mut HfConfig, config: &mut ModelConfig) {
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.bias = hf.flag("mlp_bias", false);
    }
}

/// A plain network instead of a gated one.
pub(super) fn set_plain_feed_forward(config: &mut ModelConfig, bias: bool) {
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.gated = false;
        feed_forward.bias = bias;
    }
}

/// Queries and keys are normalised, with the eps of the other norms.
pub(super) fn set_qk_norm(config: &mut ModelConfig, scope: QkNormScope, kind: NormKind) {
    config.attention.qk_norm = Some(QkNorm { scope, norm: NormConfig { kind, ..config.norm } });
}

/// Changes the head that [`without_positions`] has put there.
pub(super) fn with_head(config: &mut ModelConfig, change: impl FnOnce(&mut HeadConfig)) {
    if let Some(head) = &mut config.head {
        change(head);
    }
}

/// The names of Llama's tensors, which most decoders have taken over.
pub(super) fn llama_names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "embed_tokens.weight"),
        ("layers.N.attention_norm.pre", "layers.N.input_layernorm"),
        ("layers.N.attention.query", "layers.N.self_attn.q_proj"),
        ("layers.N.attention.key", "layers.N.self_attn.k_proj"),
        ("layers.N.attention.value", "layers.N.self_attn.v_proj"),
        ("layers.N.attention.output", "layers.N.self_attn.o_proj"),
        ("layers.N.feed_forward_norm.pre", "layers.N.post_attention_layernorm"),
        ("layers.N.feed_forward.gate", "layers.N.mlp.gate_proj"),
        ("layers.N.feed_forward.up", "layers.N.mlp.up_proj"),
        ("layers.N.feed_forward.down", "layers.N.mlp.down_proj"),
        ("final_norm", "norm"),
    ])
    .with_roots(&[("head", "lm_head")])
}
