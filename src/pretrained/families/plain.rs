//! What GPT-2, BERT and others of their time have in common: LayerNorm, a plain network four times as wide as the
//! model, biases everywhere.

use super::super::hf_config::HfConfig;
use super::decoder::n_layers;
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, ProjectionBias};
use crate::embedding::EmbeddingConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::model::{ModelConfig, ModelKind};
use crate::norm::NormConfig;

/// The sizes of a family where its configs are silent.
pub(super) struct Sizes {
    pub vocab_size: usize,
    pub d_model: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub max_seq_len: usize,
}

/// A pre-norm decoder with exact GELU and a tied head, without positions.
pub(super) fn plain_decoder(hf: &mut HfConfig, sizes: &Sizes) -> ModelConfig {
    let d_model = hf.size("hidden_size", sizes.d_model);
    let attention = MultiHeadAttentionConfig::new(d_model, hf.size("num_attention_heads", sizes.n_heads));
    let feed_forward = FeedForwardConfig::new(d_model, 4 * d_model).with_activation(Activation::Gelu);
    let n_layers = n_layers(hf, sizes.n_layers);
    let max_seq_len = hf.size("max_position_embeddings", sizes.max_seq_len);
    ModelConfig::new(ModelKind::Decoder, n_layers, max_seq_len, attention, feed_forward)
        .with_embedding(EmbeddingConfig::new(hf.size("vocab_size", sizes.vocab_size)))
        .with_norm(NormConfig::default())
        .with_final_norm(true)
        .with_head(HeadConfig::new(hf.flag("tie_word_embeddings", true)))
}

/// Biases on all projections and in the network, or on none.
pub(super) fn set_bias(config: &mut ModelConfig, bias: bool) {
    config.attention.bias = if bias { ProjectionBias::ALL } else { ProjectionBias::NONE };
    set_network(config, |network| network.bias = bias);
}

/// Changes the feed-forward network that [`plain_decoder`] has put there.
pub(super) fn set_network(config: &mut ModelConfig, change: impl FnOnce(&mut FeedForwardConfig)) {
    if let Some(feed_forward) = &mut config.feed_forward {
        change(feed_forward);
    }
}

/// Changes the embedding that [`plain_decoder`] has put there.
pub(super) fn set_embedding(config: &mut ModelConfig, change: impl FnOnce(&mut EmbeddingConfig)) {
    if let Some(embedding) = &mut config.embedding {
        change(embedding);
    }
}
