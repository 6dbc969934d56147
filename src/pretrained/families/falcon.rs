//! Falcon, whose flags make four kinds of blocks.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::hf_rope::{RopeDefaults, rotary};
use super::super::rules::{Fused, Rules};
use super::Family;
use super::decoder::set_rotary;
use super::plain::{Sizes, plain_decoder, set_bias, set_network};
use crate::activation::Activation;
use crate::attention::AlibiConfig;
use crate::model::ModelConfig;
use crate::positions::Positions;
use crate::transformer_block::BlockTopology;

pub(super) const FALCON: Family = Family {
    model_types: &["falcon"],
    config: falcon,
    rules: names,
    harmless: &["apply_residual_connection_post_layernorm"],
};

const SIZES: Sizes = Sizes { vocab_size: 65_024, d_model: 4544, n_layers: 32, n_heads: 71, max_seq_len: 2048 };

fn falcon(hf: &mut HfConfig) -> ModelConfig {
    hf.alias("hidden_size", "n_embed");
    hf.alias("num_hidden_layers", "n_layer");
    hf.alias("num_attention_heads", "n_head");
    hf.alias("num_kv_heads", "n_head_kv");
    let mut config = plain_decoder(hf, &SIZES);
    config.norm.eps = hf.number("layer_norm_epsilon", 1e-5);
    let activation = activation(hf, "activation", Activation::Gelu);
    let d_ff = hf.optional_size("ffn_hidden_size");
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff.unwrap_or(network.d_ff);
    });
    let has_bias = hf.flag("bias", false);
    set_bias(&mut config, has_bias);
    set_block(hf, &mut config);
    let rotary = rotary(hf, &RopeDefaults::new(10_000.0), config.max_seq_len);
    if hf.flag("alibi", false) {
        config.positions = Positions::Alibi(AlibiConfig { scaled: true, rounded: true });
    } else {
        set_rotary(&mut config, rotary);
    }
    config
}

/// | new_decoder_architecture | parallel_attn | num_ln_in_parallel_attn | block |
/// |---|---|---|---|
/// | no | yes | | both branches behind one norm (7b) |
/// | no | no | | sequential (rw) |
/// | yes | yes | absent, `null` or 2 | both branches, each behind its norm (40b) |
/// | yes | yes | 1 | both branches behind one norm (11b) |
fn set_block(hf: &mut HfConfig, config: &mut ModelConfig) {
    let is_new = hf.flag("new_decoder_architecture", false);
    let is_multi_query = hf.flag("multi_query", true);
    let is_parallel = hf.flag("parallel_attn", true);
    let n_norms = hf.optional_size("num_ln_in_parallel_attn");
    let n_kv_heads = hf.optional_size("num_kv_heads");
    // Files of the new architecture say multi_query too, and the others have a num_kv_heads that nothing reads.
    config.attention.n_kv_heads = match (is_new, is_multi_query) {
        (true, _) => n_kv_heads,
        (false, true) => Some(1),
        (false, false) => None,
    };
    config.block.topology = match (is_new, is_parallel, n_norms) {
        (false, false, _) => BlockTopology::Sequential,
        (false, true, None | Some(1)) | (true, true, Some(1)) => BlockTopology::ParallelSharedNorm,
        (true, true, None | Some(2)) => BlockTopology::Parallel,
        (true, false, _) => {
            hf.fault("parallel_attn", "is false, which does not go with new_decoder_architecture");
            BlockTopology::Sequential
        }
        (_, true, Some(other)) => {
            hf.fault("num_ln_in_parallel_attn", format!("= {other} does not go with the other keys"));
            BlockTopology::Parallel
        }
    };
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "word_embeddings.weight"),
        ("layers.N.attention_norm.pre", "h.N.input_layernorm"),
        ("layers.N.attention.output", "h.N.self_attention.dense"),
        ("layers.N.feed_forward_norm.pre", "h.N.post_attention_layernorm"),
        ("layers.N.feed_forward.up", "h.N.mlp.dense_h_to_4h"),
        ("layers.N.feed_forward.down", "h.N.mlp.dense_4h_to_h"),
        ("final_norm", "ln_f"),
    ])
    .or("layers.N.attention_norm.pre", "h.N.ln_attn")
    .or("layers.N.feed_forward_norm.pre", "h.N.ln_mlp")
    // With one key/value head this is the stacked order of the 7b model.
    .with_fused_projections("h.N.self_attention.query_key_value", Fused::ByHead)
    .with_roots(&[("head", "lm_head")])
}
