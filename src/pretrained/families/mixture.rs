//! Decoders shaped like Llama's whose layers are mixtures of experts: Mixtral, Qwen 2 and 3 MoE.

use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, switched_window, windows};
use super::super::hf_rope::RopeDefaults;
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_qk_norm, set_window};
use crate::attention::{ProjectionBias, QkNormScope};
use crate::feed_forward::FeedForwardConfig;
use crate::mixture_of_experts::{MixtureOfExpertsConfig, SharedExpertConfig};
use crate::model::ModelConfig;
use crate::norm::NormKind;

pub(super) const MIXTRAL: Family =
    Family { model_types: &["mixtral"], config: mixtral, rules: mixtral_names, harmless: HARMLESS };

pub(super) const QWEN2_MOE: Family =
    Family { model_types: &["qwen2_moe"], config: qwen2_moe, rules: qwen2_moe_names, harmless: HARMLESS };

pub(super) const QWEN3_MOE: Family =
    Family { model_types: &["qwen3_moe"], config: qwen3_moe, rules: qwen3_moe_names, harmless: HARMLESS };

/// About training, and a key that Qwen 3 has from Qwen 2.
const HARMLESS: &[&str] = &["router_jitter_noise", "max_window_layers"];

/// Every layer has experts, and the weights of those that a token takes sum to 1.
fn mixtral(hf: &mut HfConfig) -> ModelConfig {
    let defaults = Defaults {
        d_ff: 14_336,
        n_kv_heads: Some(8),
        max_seq_len: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope: RopeDefaults::new(1_000_000.0),
        ..LLAMA_DEFAULTS
    };
    let mut config = llama_like(hf, &defaults);
    set_window(hf, &mut config, None);
    hf.alias("num_local_experts", "num_experts");
    let n_experts = hf.size("num_local_experts", 8);
    let n_active = hf.size("num_experts_per_tok", 2);
    config.mixture = config.feed_forward.take().map(|expert| MixtureOfExpertsConfig::new(expert, n_experts, n_active));
    config
}

const QWEN2_MOE_DEFAULTS: Defaults = Defaults {
    vocab_size: 151_936,
    d_model: 2048,
    d_ff: 5632,
    n_layers: 24,
    n_heads: 16,
    n_kv_heads: Some(16),
    max_seq_len: 32_768,
    ..LLAMA_DEFAULTS
};

/// One more expert, gated, sees every token. Where a window is used, every other layer of the first ones slides.
fn qwen2_moe(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &QWEN2_MOE_DEFAULTS);
    config.attention.bias = if hf.flag("qkv_bias", true) { ProjectionBias::QKV } else { ProjectionBias::NONE };
    let window = switched_window(hf);
    let first_full = hf.size_or_null("max_window_layers", Some(28)).unwrap_or(0);
    let sliding = sliding_layers(hf, config.n_layers, |layer| layer.is_multiple_of(2) && layer < first_full);
    config.layers = windows(&sliding, window);
    let shared_d_ff = hf.size("shared_expert_intermediate_size", 5632);
    let sizes = Experts { n_experts: 60, n_active: 4, d_ff: 1408 };
    set_mixture(hf, &mut config, &sizes, |expert| {
        let expert = FeedForwardConfig { d_ff: shared_d_ff, ..expert.clone() };
        Some(SharedExpertConfig { expert, gated: true })
    });
    config
}

/// Where a window is used, every layer slides.
fn qwen3_moe(hf: &mut HfConfig) -> ModelConfig {
    let defaults = Defaults { d_ff: 6144, n_heads: 32, n_kv_heads: Some(4), ..QWEN2_MOE_DEFAULTS };
    let mut config = llama_like(hf, &defaults);
    set_attention_bias(hf, &mut config);
    set_qk_norm(&mut config, QkNormScope::PerHead, NormKind::Rms);
    let window = switched_window(hf);
    config.layers = windows(&vec![true; config.n_layers], window);
    set_mixture(hf, &mut config, &Experts { n_experts: 128, n_active: 8, d_ff: 768 }, |_| None);
    config
}

/// What a family's configs mean where they are silent.
struct Experts {
    n_experts: usize,
    n_active: usize,
    d_ff: usize,
}

/// Puts experts into the layers that are to have them; the others keep the dense network.
fn set_mixture(
    hf: &mut HfConfig,
    config: &mut ModelConfig,
    defaults: &Experts,
    shared: impl FnOnce(&FeedForwardConfig) -> Option<SharedExpertConfig>,
) {
    hf.alias("num_experts", "num_local_experts");
    let n_experts = hf.size("num_experts", defaults.n_experts);
    let n_active = hf.size("num_experts_per_tok", defaults.n_active);
    let d_ff = hf.size("moe_intermediate_size", defaults.d_ff);
    let renormalize = hf.flag("norm_topk_prob", false);
    let step = hf.size("decoder_sparse_step", 1);
    let dense: Vec<usize> = hf.numbers("mlp_only_layers").unwrap_or_default().iter().map(|n| *n as usize).collect();
    if step == 0 {
        hf.fault("decoder_sparse_step", "must be at least 1, got 0");
    }
    let has_experts = |layer: usize| n_experts > 0 && !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    for (layer, pattern) in config.layers.iter_mut().enumerate() {
        pattern.dense = !has_experts(layer);
    }
    if config.layers.iter().all(|layer| layer.dense) {
        config.layers.iter_mut().for_each(|layer| layer.dense = false);
        return;
    }
    let Some(network) = &config.feed_forward else { return };
    let expert = FeedForwardConfig { d_ff, ..network.clone() };
    let shared = shared(network);
    config.mixture = Some(MixtureOfExpertsConfig {
        renormalize,
        shared,
        ..MixtureOfExpertsConfig::new(expert, n_experts, n_active)
    });
    if config.layers.iter().all(|layer| !layer.dense) {
        config.feed_forward = None;
    }
}

fn mixtral_names() -> Rules {
    llama_names().with(&[
        ("layers.N.mixture.router", "layers.N.block_sparse_moe.gate"),
        ("layers.N.mixture.experts.E.gate", "layers.N.block_sparse_moe.experts.E.w1"),
        ("layers.N.mixture.experts.E.up", "layers.N.block_sparse_moe.experts.E.w3"),
        ("layers.N.mixture.experts.E.down", "layers.N.block_sparse_moe.experts.E.w2"),
    ])
}

fn qwen2_moe_names() -> Rules {
    llama_names().with(&[
        ("layers.N.mixture.router", "layers.N.mlp.gate"),
        ("layers.N.mixture.experts.E.gate", "layers.N.mlp.experts.E.gate_proj"),
        ("layers.N.mixture.experts.E.up", "layers.N.mlp.experts.E.up_proj"),
        ("layers.N.mixture.experts.E.down", "layers.N.mlp.experts.E.down_proj"),
        ("layers.N.mixture.shared.gate", "layers.N.mlp.shared_expert.gate_proj"),
        ("layers.N.mixture.shared.up", "layers.N.mlp.shared_expert.up_proj"),
        ("layers.N.mixture.shared.down", "layers.N.mlp.shared_expert.down_proj"),
        ("layers.N.mixture.shared_gate", "layers.N.mlp.shared_expert_gate"),
    ])
}

fn qwen3_moe_names() -> Rules {
    qwen2_moe_names().with_qk_norms("layers.N.self_attn.q_norm", "layers.N.self_attn.k_norm", Part::Whole)
}
