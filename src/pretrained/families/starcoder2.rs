//! StarCoder 2.

use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::decoder::{Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_plain_feed_forward, set_window};
use crate::activation::Activation;
use crate::attention::ProjectionBias;
use crate::model::ModelConfig;
use crate::norm::NormKind;

pub(super) const STARCODER2: Family =
    Family { model_types: &["starcoder2"], config: starcoder2, rules: names, harmless: &["mlp_type", "norm_type"] };

const DEFAULTS: Defaults = Defaults {
    vocab_size: 49_152,
    d_model: 3072,
    d_ff: 12_288,
    n_layers: 30,
    n_heads: 24,
    n_kv_heads: Some(2),
    max_seq_len: 4096,
    activation: Activation::GeluTanh,
    norm: NormKind::Layer,
    eps: ("norm_epsilon", 1e-5),
    is_tied: true,
    ..LLAMA_DEFAULTS
};

fn starcoder2(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &DEFAULTS);
    let bias = hf.flag("use_bias", true);
    config.attention.bias = if bias { ProjectionBias::ALL } else { ProjectionBias::NONE };
    set_plain_feed_forward(&mut config, bias);
    set_window(hf, &mut config, None);
    config
}

fn names() -> Rules {
    llama_names().with(&[
        ("layers.N.feed_forward.up", "layers.N.mlp.c_fc"),
        ("layers.N.feed_forward.down", "layers.N.mlp.c_proj"),
    ])
}
