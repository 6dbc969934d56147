//! OLMo 1 to 3.

use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, windows_and_rotations};
use super::super::hf_rope::{RopeDefaults, rotary_by_layer};
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{
    Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_qk_norm, without_positions,
};
use crate::attention::QkNormScope;
use crate::model::{LayerRotary, ModelConfig};
use crate::norm::{NormConfig, NormKind};
use crate::positions::Positions;
use crate::transformer_block::NormPlacement;

pub(super) const OLMO: Family = Family { model_types: &["olmo"], config: olmo, rules: llama_names, harmless: &[] };

pub(super) const OLMO2: Family = Family { model_types: &["olmo2"], config: olmo2, rules: olmo2_names, harmless: &[] };

pub(super) const OLMO3: Family = Family { model_types: &["olmo3"], config: olmo3, rules: olmo2_names, harmless: &[] };

const OLMO_DEFAULTS: Defaults = Defaults { vocab_size: 50_304, eps: ("rms_norm_eps", 1e-5), ..LLAMA_DEFAULTS };

/// Its norms have neither parameters nor a key.
fn olmo(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &OLMO_DEFAULTS);
    config.norm = NormConfig::new(NormKind::LayerNoAffine).with_eps(1e-5);
    set_attention_bias(hf, &mut config);
    config.attention.clip_qkv = hf.optional_number("clip_qkv");
    config
}

fn olmo2(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &OLMO_DEFAULTS);
    set_olmo2(hf, &mut config);
    config
}

/// Norms on the outputs of branches only, and over all queries and all keys together.
fn set_olmo2(hf: &mut HfConfig, config: &mut ModelConfig) {
    config.block.placement = NormPlacement::Output;
    set_attention_bias(hf, config);
    set_qk_norm(config, QkNormScope::FullWidth, NormKind::Rms);
}

/// All layers but every fourth slide, and those turn without the scaling for long contexts.
fn olmo3(hf: &mut HfConfig) -> ModelConfig {
    let mut config = without_positions(hf, &OLMO_DEFAULTS);
    set_olmo2(hf, &mut config);
    let global = RopeDefaults::new(500_000.0);
    // No key at top level is about sliding layers.
    let local = RopeDefaults { theta_key: None, ..global };
    config.positions = Positions::Rotary(rotary_by_layer(hf, &global, &local, config.max_seq_len));
    let window = hf.size_or_null("sliding_window", Some(4096));
    let sliding = sliding_layers(hf, config.n_layers, |layer| !(layer + 1).is_multiple_of(4));
    config.layers = windows_and_rotations(&sliding, window, LayerRotary::Local, LayerRotary::Global);
    config
}

fn olmo2_names() -> Rules {
    llama_names()
        .with(&[
            ("layers.N.attention_norm.out", "layers.N.post_attention_layernorm"),
            ("layers.N.feed_forward_norm.out", "layers.N.post_feedforward_layernorm"),
        ])
        .with_qk_norms("layers.N.self_attn.q_norm", "layers.N.self_attn.k_norm", Part::Whole)
}
