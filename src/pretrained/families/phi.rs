//! Phi (1, 1.5, 2) and Phi 3, which share little but the name.

use super::super::hf_config::HfConfig;
use super::super::hf_rope::RopeDefaults;
use super::super::rules::{Fused, Part, Rules};
use super::Family;
use super::decoder::{
    Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_plain_feed_forward, set_qk_norm, set_window, with_head,
};
use crate::activation::Activation;
use crate::attention::{ProjectionBias, QkNormScope};
use crate::model::ModelConfig;
use crate::norm::NormKind;
use crate::transformer_block::BlockTopology;

pub(super) const PHI: Family = Family { model_types: &["phi"], config: phi, rules: phi_names, harmless: &[] };

pub(super) const PHI3: Family =
    Family { model_types: &["phi3"], config: phi3, rules: phi3_names, harmless: &["attention_bias"] };

const PHI_DEFAULTS: Defaults = Defaults {
    vocab_size: 51_200,
    d_model: 2048,
    d_ff: 8192,
    n_layers: 24,
    activation: Activation::GeluTanh,
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    rope: LLAMA_DEFAULTS.rope.with_fraction(0.5),
    ..LLAMA_DEFAULTS
};

const PHI3_DEFAULTS: Defaults = Defaults {
    vocab_size: 32_064,
    d_model: 3072,
    d_ff: 8192,
    max_seq_len: 4096,
    eps: ("rms_norm_eps", 1e-5),
    rope: RopeDefaults::new(10_000.0).with_fraction(1.0),
    ..LLAMA_DEFAULTS
};

/// Attention and network side by side behind one norm; biases everywhere, on the logits too.
fn phi(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &PHI_DEFAULTS);
    config.attention.bias = ProjectionBias::ALL;
    set_plain_feed_forward(&mut config, true);
    config.block.topology = BlockTopology::ParallelSharedNorm;
    with_head(&mut config, |head| head.bias = true);
    if hf.flag("qk_layernorm", false) {
        set_qk_norm(&mut config, QkNormScope::PerHead, NormKind::Layer);
    }
    config
}

fn phi_names() -> Rules {
    llama_names()
        .with(&[
            ("layers.N.attention.output", "layers.N.self_attn.dense"),
            ("layers.N.feed_forward.up", "layers.N.mlp.fc1"),
            ("layers.N.feed_forward.down", "layers.N.mlp.fc2"),
            ("final_norm", "final_layernorm"),
        ])
        .with_qk_norms("layers.N.self_attn.q_layernorm", "layers.N.self_attn.k_layernorm", Part::Whole)
}

fn phi3(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &PHI3_DEFAULTS);
    set_window(hf, &mut config, None);
    config
}

fn phi3_names() -> Rules {
    llama_names()
        .with_fused_projections("layers.N.self_attn.qkv_proj", Fused::Stacked)
        .with_fused_gate("layers.N.mlp.gate_up_proj")
}
