//! Nemotron (and Minitron).

use super::super::hf_config::HfConfig;
use super::Family;
use super::decoder::{
    Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_mlp_bias, set_plain_feed_forward,
};
use crate::activation::Activation;
use crate::model::ModelConfig;
use crate::norm::NormKind;

pub(super) const NEMOTRON: Family =
    Family { model_types: &["nemotron"], config: nemotron, rules: llama_names, harmless: &[] };

const DEFAULTS: Defaults = Defaults {
    vocab_size: 256_000,
    d_model: 6144,
    d_ff: 24_576,
    n_heads: 48,
    max_seq_len: 4096,
    activation: Activation::ReluSquared,
    norm: NormKind::LayerPlusOne,
    eps: ("norm_eps", 1e-5),
    rope: LLAMA_DEFAULTS.rope.with_fraction(0.5),
    ..LLAMA_DEFAULTS
};

fn nemotron(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &DEFAULTS);
    set_plain_feed_forward(&mut config, false);
    set_attention_bias(hf, &mut config);
    set_mlp_bias(hf, &mut config);
    config
}
