//! GPT-2.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::rules::{Fused, Rules};
use super::Family;
use super::plain::{Sizes, plain_decoder, set_network};
use crate::activation::Activation;
use crate::model::ModelConfig;
use crate::positions::{LearnedPositions, Positions};

pub(super) const GPT2: Family = Family {
    model_types: &["gpt2"],
    config: gpt2,
    rules: names,
    harmless: &[
        "n_ctx",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ],
};

const SIZES: Sizes = Sizes { vocab_size: 50_257, d_model: 768, n_layers: 12, n_heads: 12, max_seq_len: 1024 };

fn gpt2(hf: &mut HfConfig) -> ModelConfig {
    hf.alias("hidden_size", "n_embd");
    hf.alias("num_hidden_layers", "n_layer");
    hf.alias("num_attention_heads", "n_head");
    hf.alias("max_position_embeddings", "n_positions");
    let mut config = plain_decoder(hf, &SIZES);
    config.norm.eps = hf.number("layer_norm_epsilon", 1e-5);
    config.positions = Positions::Learned(LearnedPositions::default());
    let activation = activation(hf, "activation_function", Activation::GeluTanh);
    let d_ff = hf.optional_size("n_inner");
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff.unwrap_or(network.d_ff);
    });
    if !hf.flag("scale_attn_weights", true) {
        config.attention.scale = Some(1.0);
    }
    config.scale_scores_by_layer = hf.flag("scale_attn_by_inverse_layer_idx", false);
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "wte.weight"),
        ("embedding.positions", "wpe.weight"),
        ("layers.N.attention_norm.pre", "h.N.ln_1"),
        ("layers.N.attention.output", "h.N.attn.c_proj"),
        ("layers.N.feed_forward_norm.pre", "h.N.ln_2"),
        ("layers.N.feed_forward.up", "h.N.mlp.c_fc"),
        ("layers.N.feed_forward.down", "h.N.mlp.c_proj"),
        ("final_norm", "ln_f"),
    ])
    .with_fused_projections("h.N.attn.c_attn", Fused::Stacked)
    .with_roots(&[("head", "lm_head")])
    .stored_in_out()
    // Masks.
    .ignoring(&["attn.bias", "attn.masked_bias"])
}
