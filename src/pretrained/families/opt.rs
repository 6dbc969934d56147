//! OPT and Galactica.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::plain::{Sizes, plain_decoder, set_bias, set_embedding, set_network};
use crate::activation::Activation;
use crate::model::ModelConfig;
use crate::norm::NormKind;
use crate::positions::{LearnedPositions, Positions};
use crate::transformer_block::NormPlacement;

pub(super) const OPT: Family = Family { model_types: &["opt"], config: opt, rules: names, harmless: &[] };

const SIZES: Sizes = Sizes { vocab_size: 50_272, d_model: 768, n_layers: 12, n_heads: 12, max_seq_len: 2048 };

fn opt(hf: &mut HfConfig) -> ModelConfig {
    let mut config = plain_decoder(hf, &SIZES);
    // The table has two rows in front that no position uses.
    config.positions = Positions::Learned(LearnedPositions { offset: 2, padding_id: None });
    let activation = activation(hf, "activation_function", Activation::Relu);
    let d_ff = hf.size("ffn_dim", 3072);
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff;
    });
    let has_bias = hf.flag("enable_bias", true);
    set_bias(&mut config, has_bias);
    let d_embedding = hf.optional_size("word_embed_proj_dim");
    set_embedding(&mut config, |embedding| embedding.d_embedding = d_embedding);
    if !hf.flag("layer_norm_elementwise_affine", true) {
        config.norm.kind = NormKind::LayerNoAffine;
    }
    // The 350m model alone has its norms behind the sums, and none at the end.
    let is_pre = hf.flag("do_layer_norm_before", true);
    config.block.placement = if is_pre { NormPlacement::Pre } else { NormPlacement::Post };
    config.final_norm = is_pre && !hf.flag("_remove_final_layer_norm", false);
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "embed_tokens.weight"),
        ("embedding.positions", "embed_positions.weight"),
        ("embedding.project_in", "project_in"),
        ("layers.N.attention_norm.pre", "layers.N.self_attn_layer_norm"),
        ("layers.N.attention_norm.post", "layers.N.self_attn_layer_norm"),
        ("layers.N.attention.query", "layers.N.self_attn.q_proj"),
        ("layers.N.attention.key", "layers.N.self_attn.k_proj"),
        ("layers.N.attention.value", "layers.N.self_attn.v_proj"),
        ("layers.N.attention.output", "layers.N.self_attn.out_proj"),
        // Each layer's norm has the name of the one at the end.
        ("layers.N.feed_forward_norm.pre", "layers.N.final_layer_norm"),
        ("layers.N.feed_forward_norm.post", "layers.N.final_layer_norm"),
        ("layers.N.feed_forward.up", "layers.N.fc1"),
        ("layers.N.feed_forward.down", "layers.N.fc2"),
        ("final_norm", "final_layer_norm"),
        ("project_out", "project_out"),
    ])
    .with_roots(&[("head", "lm_head")])
}
