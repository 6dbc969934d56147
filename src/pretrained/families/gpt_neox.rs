//! GPT-NeoX (Pythia).

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::hf_rope::{RopeDefaults, rotary};
use super::super::rules::{Fused, Rules};
use super::Family;
use super::decoder::{set_rotary, with_head};
use super::plain::{Sizes, plain_decoder, set_network};
use crate::activation::Activation;
use crate::attention::{ProjectionBias, RotaryStyle};
use crate::model::ModelConfig;
use crate::transformer_block::BlockTopology;

pub(super) const GPT_NEOX: Family =
    Family { model_types: &["gpt_neox"], config: gpt_neox, rules: names, harmless: &[] };

const SIZES: Sizes = Sizes { vocab_size: 50_432, d_model: 6144, n_layers: 44, n_heads: 64, max_seq_len: 2048 };

const ROPE: RopeDefaults = RopeDefaults {
    theta: 10_000.0,
    theta_key: Some("rotary_emb_base"),
    fraction: 0.25,
    fraction_key: Some("rotary_pct"),
    style: RotaryStyle::Half,
};

fn gpt_neox(hf: &mut HfConfig) -> ModelConfig {
    let is_tied = hf.flag("tie_word_embeddings", false);
    let mut config = plain_decoder(hf, &SIZES);
    with_head(&mut config, |head| head.tied = is_tied);
    config.norm.eps = hf.number("layer_norm_eps", 1e-5);
    let activation = activation(hf, "hidden_act", Activation::Gelu);
    let d_ff = hf.size("intermediate_size", 24_576);
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff;
    });
    if !hf.flag("attention_bias", true) {
        config.attention.bias = ProjectionBias::NONE;
    }
    if hf.flag("use_parallel_residual", true) {
        config.block.topology = BlockTopology::Parallel;
    }
    let rotary = rotary(hf, &ROPE, config.max_seq_len);
    // The usual names of the two numbers are in some files, as copies that nothing reads.
    for (key, value) in [("rope_theta", rotary.theta), ("partial_rotary_factor", rotary.fraction)] {
        if let Some(copy) = hf.optional_number(key).filter(|copy| *copy != value) {
            hf.fault(key, format!("= {copy}, and this family takes {value} from another key; remove one of them"));
        }
    }
    set_rotary(&mut config, rotary);
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "embed_in.weight"),
        ("layers.N.attention_norm.pre", "layers.N.input_layernorm"),
        ("layers.N.attention.output", "layers.N.attention.dense"),
        ("layers.N.feed_forward_norm.pre", "layers.N.post_attention_layernorm"),
        ("layers.N.feed_forward.up", "layers.N.mlp.dense_h_to_4h"),
        ("layers.N.feed_forward.down", "layers.N.mlp.dense_4h_to_h"),
        ("final_norm", "final_layer_norm"),
    ])
    .with_fused_projections("layers.N.attention.query_key_value", Fused::ByHead)
    .with_roots(&[("head", "embed_out")])
    .or("head", "lm_head")
    // Masks.
    .ignoring(&["attention.bias", "attention.masked_bias"])
}
