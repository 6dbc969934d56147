//! StableLM.

use super::super::hf_config::HfConfig;
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_qk_norm};
use crate::attention::{ProjectionBias, QkNormScope};
use crate::model::ModelConfig;
use crate::norm::NormKind;
use crate::transformer_block::BlockTopology;

pub(super) const STABLELM: Family =
    Family { model_types: &["stablelm"], config: stablelm, rules: names, harmless: &[] };

const DEFAULTS: Defaults = Defaults {
    vocab_size: 50_304,
    d_model: 2560,
    d_ff: 6912,
    n_kv_heads: Some(32),
    max_seq_len: 4096,
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    rope: LLAMA_DEFAULTS.rope.with_fraction(0.25),
    ..LLAMA_DEFAULTS
};

fn stablelm(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &DEFAULTS);
    if hf.flag("use_qkv_bias", false) {
        config.attention.bias = ProjectionBias::QKV;
    }
    if hf.flag("qk_layernorm", false) {
        set_qk_norm(&mut config, QkNormScope::PerHeadOwnWeight, NormKind::LayerNoBias);
    }
    // The 12b model; it has one norm for both branches.
    if hf.flag("use_parallel_residual", false) {
        config.block.topology = BlockTopology::ParallelSharedNorm;
    }
    config
}

fn names() -> Rules {
    llama_names().with_qk_norms(
        "layers.N.self_attn.q_layernorm.norms.H",
        "layers.N.self_attn.k_layernorm.norms.H",
        Part::PerHead,
    )
}
