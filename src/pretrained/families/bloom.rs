//! BLOOM.

use super::super::hf_config::HfConfig;
use super::super::rules::{Fused, Rules};
use super::Family;
use super::plain::{Sizes, plain_decoder, set_embedding, set_network};
use crate::activation::Activation;
use crate::attention::AlibiConfig;
use crate::model::ModelConfig;
use crate::positions::Positions;

pub(super) const BLOOM: Family = Family {
    model_types: &["bloom"],
    config: bloom,
    rules: names,
    harmless: &[
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "n_inner",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
    ],
};

/// The sizes of the class in transformers, which are those of a toy.
const SIZES: Sizes = Sizes { vocab_size: 250_880, d_model: 64, n_layers: 2, n_heads: 8, max_seq_len: 2048 };

fn bloom(hf: &mut HfConfig) -> ModelConfig {
    hf.alias("hidden_size", "n_embed");
    hf.alias("num_hidden_layers", "n_layer");
    hf.alias("num_attention_heads", "n_head");
    // What the model was trained with; linear biases set no limit.
    hf.alias("max_position_embeddings", "seq_length");
    let mut config = plain_decoder(hf, &SIZES);
    config.norm.eps = hf.number("layer_norm_epsilon", 1e-5);
    config.positions = Positions::Alibi(AlibiConfig::default());
    set_network(&mut config, |network| network.activation = Activation::GeluTanh);
    set_embedding(&mut config, |embedding| embedding.norm = true);
    config.block.residual_from_normed = hf.flag("apply_residual_connection_post_layernorm", false);
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "word_embeddings.weight"),
        ("embedding.norm", "word_embeddings_layernorm"),
        ("layers.N.attention_norm.pre", "h.N.input_layernorm"),
        ("layers.N.attention.output", "h.N.self_attention.dense"),
        ("layers.N.feed_forward_norm.pre", "h.N.post_attention_layernorm"),
        ("layers.N.feed_forward.up", "h.N.mlp.dense_h_to_4h"),
        ("layers.N.feed_forward.down", "h.N.mlp.dense_4h_to_h"),
        ("final_norm", "ln_f"),
    ])
    .with_fused_projections("h.N.self_attention.query_key_value", Fused::ByHead)
    .with_roots(&[("head", "lm_head")])
}
