//! T5, the only family with an encoder and a decoder.

use super::super::hf_activation;
use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::decoder::n_layers;
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, ProjectionBias, RelativeBiasConfig};
use crate::embedding::EmbeddingConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::model::{ModelConfig, ModelKind};
use crate::norm::{NormConfig, NormKind};
use crate::positions::Positions;

pub(super) const T5: Family = Family {
    model_types: &["t5"],
    config: t5,
    rules: t5_names,
    // Said by `feed_forward_proj` too.
    harmless: &["dense_act_fn", "is_gated_act"],
};

/// Scores are not scaled, no projection has a bias, and only the self-attention of each stack knows of positions.
fn t5(hf: &mut HfConfig) -> ModelConfig {
    for (key, alias) in [
        ("hidden_size", "d_model"),
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
        ("head_dim", "d_kv"),
    ] {
        hf.alias(key, alias);
    }
    let d_model = hf.size("hidden_size", 512);
    let attention = MultiHeadAttentionConfig::new(d_model, hf.size("num_attention_heads", 8))
        .with_d_head(hf.size("head_dim", 64))
        .with_bias(ProjectionBias::NONE)
        .with_scale(1.0);
    let (activation, gated) = network(hf);
    let feed_forward = FeedForwardConfig::new(d_model, hf.size("d_ff", 2048))
        .with_activation(activation)
        .with_gated(gated)
        .with_bias(false);
    let positions = Positions::Relative(RelativeBiasConfig {
        n_buckets: hf.size("relative_attention_num_buckets", 32),
        max_distance: hf.size("relative_attention_max_distance", 128),
    });
    let n_encoder_layers = n_layers(hf, 6);
    let n_decoder_layers = hf.size_or_null("num_decoder_layers", None).unwrap_or(n_encoder_layers);
    if !hf.flag("is_encoder_decoder", true) {
        hf.fault("is_encoder_decoder", "is false, and half a model is not supported");
    }
    // Any length can be read; this is what the published models were trained for.
    let max_seq_len = hf.size("n_positions", 512);
    let stack = |kind, n_layers| {
        ModelConfig::new(kind, n_layers, max_seq_len, attention.clone(), feed_forward.clone())
            .with_positions(positions.clone())
            .with_final_norm(true)
    };
    let norm = NormConfig::new(NormKind::Rms).with_eps(hf.number("layer_norm_epsilon", 1e-6));
    // Files of the first version, which scales, leave `tie_word_embeddings` out or say yes; those of 1.1 say no.
    let is_tied = hf.flag("tie_word_embeddings", true);
    let is_scaled = hf.flag("scale_decoder_outputs", is_tied);
    let scale = if is_scaled { (d_model as f64).sqrt().recip() } else { 1.0 };
    stack(ModelKind::Decoder, n_decoder_layers)
        .with_norm(norm)
        .with_embedding(EmbeddingConfig::new(hf.size("vocab_size", 32_128)))
        .with_head(HeadConfig::new(true).with_scale(scale))
        .with_encoder(stack(ModelKind::Encoder, n_encoder_layers).with_norm(norm))
}

/// `feed_forward_proj` names an activation, or `gated-` and one; a gated GELU is the tanh form.
fn network(hf: &mut HfConfig) -> (Activation, bool) {
    let key = "feed_forward_proj";
    let name = hf.optional_text(key).unwrap_or_else(|| "relu".to_owned());
    let (name, gated) = match name.strip_prefix("gated-") {
        Some("gelu") => ("gelu_new", true),
        Some(name) => (name, true),
        None => (name.as_str(), false),
    };
    let activation = hf_activation::named(name).unwrap_or_else(|problem| {
        hf.fault(key, problem);
        Activation::Relu
    });
    (activation, gated)
}

fn t5_names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "shared.weight"),
        ("encoder.relative_bias.table", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        ("encoder.layers.N.attention_norm.pre", "encoder.block.N.layer.0.layer_norm"),
        ("encoder.layers.N.attention.query", "encoder.block.N.layer.0.SelfAttention.q"),
        ("encoder.layers.N.attention.key", "encoder.block.N.layer.0.SelfAttention.k"),
        ("encoder.layers.N.attention.value", "encoder.block.N.layer.0.SelfAttention.v"),
        ("encoder.layers.N.attention.output", "encoder.block.N.layer.0.SelfAttention.o"),
        ("encoder.layers.N.feed_forward_norm.pre", "encoder.block.N.layer.1.layer_norm"),
        ("encoder.layers.N.feed_forward.gate", "encoder.block.N.layer.1.DenseReluDense.wi_0"),
        ("encoder.layers.N.feed_forward.up", "encoder.block.N.layer.1.DenseReluDense.wi"),
        ("encoder.layers.N.feed_forward.down", "encoder.block.N.layer.1.DenseReluDense.wo"),
        ("encoder.final_norm", "encoder.final_layer_norm"),
        ("relative_bias.table", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        ("layers.N.attention_norm.pre", "decoder.block.N.layer.0.layer_norm"),
        ("layers.N.attention.query", "decoder.block.N.layer.0.SelfAttention.q"),
        ("layers.N.attention.key", "decoder.block.N.layer.0.SelfAttention.k"),
        ("layers.N.attention.value", "decoder.block.N.layer.0.SelfAttention.v"),
        ("layers.N.attention.output", "decoder.block.N.layer.0.SelfAttention.o"),
        ("layers.N.cross_attention_norm.pre", "decoder.block.N.layer.1.layer_norm"),
        ("layers.N.cross_attention.query", "decoder.block.N.layer.1.EncDecAttention.q"),
        ("layers.N.cross_attention.key", "decoder.block.N.layer.1.EncDecAttention.k"),
        ("layers.N.cross_attention.value", "decoder.block.N.layer.1.EncDecAttention.v"),
        ("layers.N.cross_attention.output", "decoder.block.N.layer.1.EncDecAttention.o"),
        ("layers.N.feed_forward_norm.pre", "decoder.block.N.layer.2.layer_norm"),
        ("layers.N.feed_forward.gate", "decoder.block.N.layer.2.DenseReluDense.wi_0"),
        ("layers.N.feed_forward.up", "decoder.block.N.layer.2.DenseReluDense.wi"),
        ("layers.N.feed_forward.down", "decoder.block.N.layer.2.DenseReluDense.wo"),
        ("final_norm", "decoder.final_layer_norm"),
    ])
    // With a gate beside it, the inner projection has a number.
    .or("encoder.layers.N.feed_forward.up", "encoder.block.N.layer.1.DenseReluDense.wi_1")
    .or("layers.N.feed_forward.up", "decoder.block.N.layer.2.DenseReluDense.wi_1")
    .with_roots(&[("head", "lm_head")])
    // Copies of the token table, and a bias that cross-attention never had.
    .ignoring(&[
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "layer.1.EncDecAttention.relative_attention_bias.weight",
    ])
}
