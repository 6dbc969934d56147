//! MPT.

use super::super::hf_config::HfConfig;
use super::super::rules::{Fused, Rules};
use super::Family;
use super::plain::{Sizes, plain_decoder, set_bias};
use crate::attention::AlibiConfig;
use crate::model::ModelConfig;
use crate::norm::NormKind;
use crate::positions::Positions;

pub(super) const MPT: Family = Family {
    model_types: &["mpt"],
    config: mpt,
    rules: names,
    harmless: &[
        "embedding_fraction",
        "expansion_ratio",
        "init_config",
        "learned_pos_emb",
        "max_position_embeddings",
        "norm_type",
        "verbose",
    ],
};

/// Keys of `attn_config` that its code does not compute with.
const HARMLESS_ATTENTION: &[&str] = &["alibi_bias_max", "attn_impl", "attn_pdrop", "attn_type"];

const SIZES: Sizes = Sizes { vocab_size: 50_368, d_model: 2048, n_layers: 24, n_heads: 16, max_seq_len: 2048 };

fn mpt(hf: &mut HfConfig) -> ModelConfig {
    hf.alias("hidden_size", "d_model");
    hf.alias("num_hidden_layers", "n_layers");
    hf.alias("num_attention_heads", "n_heads");
    hf.alias("max_position_embeddings", "max_seq_len");
    let mut config = plain_decoder(hf, &SIZES);
    config.norm.kind = NormKind::LayerNoBias;
    config.norm.eps = hf.number("layer_norm_epsilon", 1e-5);
    config.positions = Positions::Alibi(AlibiConfig::default());
    set_bias(&mut config, false);
    if !hf.flag("no_bias", true) {
        hf.fault("no_bias", "is false; biases are not supported in this family");
    }
    if let Some(mut attention) = hf.section("attn_config") {
        config.attention.clip_qkv = attention.optional_number("clip_qkv");
        config.attention.scale = attention.optional_number("softmax_scale");
        if !attention.flag("alibi", true) {
            attention.fault("alibi", "is false; other positions are not supported in this family");
        }
        attention.refuse_flag("qk_ln", "a norm on queries and keys in this family");
        attention.refuse_flag("prefix_lm", "a prefix that sees itself whole");
        hf.close(attention, HARMLESS_ATTENTION);
    }
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "wte.weight"),
        ("layers.N.attention_norm.pre", "blocks.N.norm_1"),
        ("layers.N.attention.output", "blocks.N.attn.out_proj"),
        ("layers.N.feed_forward_norm.pre", "blocks.N.norm_2"),
        ("layers.N.feed_forward.up", "blocks.N.ffn.up_proj"),
        ("layers.N.feed_forward.down", "blocks.N.ffn.down_proj"),
        ("final_norm", "norm_f"),
    ])
    .with_fused_projections("blocks.N.attn.Wqkv", Fused::Stacked)
    .with_roots(&[("head", "lm_head")])
}
