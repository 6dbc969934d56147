//! ViT.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::decoder::n_layers;
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, ProjectionBias};
use crate::feed_forward::FeedForwardConfig;
use crate::model::{ModelConfig, ModelKind};
use crate::norm::NormConfig;
use crate::patch_embedding::PatchEmbeddingConfig;
use crate::positions::{LearnedPositions, Positions};

pub(super) const VIT: Family = Family {
    model_types: &["vit"],
    config: vit,
    rules: names,
    // Of the head that predicts masked patches.
    harmless: &["encoder_stride"],
};

/// A pre-norm encoder of patches behind a class token, whose position is the first of the learned ones.
fn vit(hf: &mut HfConfig) -> ModelConfig {
    let d_model = hf.size("hidden_size", 768);
    let mut attention = MultiHeadAttentionConfig::new(d_model, hf.size("num_attention_heads", 12));
    attention.d_head = hf.optional_size("head_dim");
    if !hf.flag("qkv_bias", true) {
        attention.bias = ProjectionBias { query: false, key: false, value: false, output: true };
    }
    let activation = activation(hf, "hidden_act", Activation::Gelu);
    let feed_forward = FeedForwardConfig::new(d_model, hf.size("intermediate_size", 3072)).with_activation(activation);
    let patches = PatchEmbeddingConfig {
        image_size: hf.height_and_width("image_size", 224),
        patch_size: hf.height_and_width("patch_size", 16),
        channels: hf.size("num_channels", 3),
    };
    if let Some(size) = hf.optional_size("pooler_output_size").filter(|size| ![0, d_model].contains(size)) {
        hf.fault("pooler_output_size", format!("= {size} differs from hidden_size = {d_model}, and must not"));
    }
    if let Some(name) = hf.optional_text("pooler_act").filter(|name| name != "tanh") {
        hf.fault("pooler_act", format!("`{name}` is not supported; only `tanh` is"));
    }
    ModelConfig::new(ModelKind::Encoder, n_layers(hf, 12), patches.seq_len(), attention, feed_forward)
        .with_patches(patches)
        .with_positions(Positions::Learned(LearnedPositions::default()))
        .with_norm(NormConfig::default().with_eps(hf.number("layer_norm_eps", 1e-12)))
        .with_final_norm(true)
        .with_pooler(true)
}

fn names() -> Rules {
    Rules::new(&[
        ("patches.class_token", "embeddings.cls_token"),
        ("patches.positions", "embeddings.position_embeddings"),
        ("patches.kernel", "embeddings.patch_embeddings.projection.weight"),
        ("patches.bias", "embeddings.patch_embeddings.projection.bias"),
        ("layers.N.attention_norm.pre", "encoder.layer.N.layernorm_before"),
        ("layers.N.attention.query", "encoder.layer.N.attention.attention.query"),
        ("layers.N.attention.key", "encoder.layer.N.attention.attention.key"),
        ("layers.N.attention.value", "encoder.layer.N.attention.attention.value"),
        ("layers.N.attention.output", "encoder.layer.N.attention.output.dense"),
        ("layers.N.feed_forward_norm.pre", "encoder.layer.N.layernorm_after"),
        ("layers.N.feed_forward.up", "encoder.layer.N.intermediate.dense"),
        ("layers.N.feed_forward.down", "encoder.layer.N.output.dense"),
        ("final_norm", "layernorm"),
        ("pooler.dense", "pooler.dense"),
    ])
    // What stands in the place of masked patches while a model is trained.
    .ignoring(&["embeddings.mask_token"])
}
