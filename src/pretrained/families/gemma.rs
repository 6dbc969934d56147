//! Gemma 1 to 3 (text).

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, windows, windows_and_rotations};
use super::super::hf_rope::{RopeDefaults, rotary, rotary_by_layer};
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{
    Defaults, LLAMA_DEFAULTS, llama_names, set_attention_bias, set_qk_norm, set_rotary, with_head, without_positions,
};
use crate::activation::Activation;
use crate::attention::QkNormScope;
use crate::embedding::EmbeddingScale;
use crate::model::{LayerRotary, ModelConfig};
use crate::norm::NormKind;
use crate::positions::Positions;
use crate::transformer_block::NormPlacement;

pub(super) const GEMMA: Family = Family { model_types: &["gemma"], config: gemma, rules: llama_names, harmless: &[] };

pub(super) const GEMMA2: Family =
    Family { model_types: &["gemma2"], config: gemma2, rules: gemma2_names, harmless: &[] };

pub(super) const GEMMA3: Family = Family {
    model_types: &["gemma3_text", "gemma3"],
    config: gemma3,
    rules: gemma3_names,
    // Written into its files, and applied by no version of its code.
    harmless: &["attn_logit_softcapping"],
};

const GEMMA_DEFAULTS: Defaults = Defaults {
    vocab_size: 256_000,
    d_model: 3072,
    d_ff: 24_576,
    n_layers: 28,
    n_heads: 16,
    n_kv_heads: Some(16),
    d_head: Some(256),
    max_seq_len: 8192,
    activation: Activation::GeluTanh,
    norm: NormKind::RmsPlusOne,
    is_tied: true,
    ..LLAMA_DEFAULTS
};

const GEMMA2_DEFAULTS: Defaults =
    Defaults { d_model: 2304, d_ff: 9216, n_layers: 26, n_heads: 8, n_kv_heads: Some(4), ..GEMMA_DEFAULTS };

/// What the three have in common.
fn base(hf: &mut HfConfig, defaults: &Defaults) -> ModelConfig {
    // The activation has a key of its own, and the usual one means nothing: Gemma 1 was trained with the tanh form,
    // and its files say `"hidden_act": "gelu"`.
    let written = activation(hf, "hidden_activation", defaults.activation);
    let mut config = without_positions(hf, defaults);
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.activation = written;
    }
    set_attention_bias(hf, &mut config);
    hf.refuse_flag("use_bidirectional_attention", "attention to both sides in this family");
    if let Some(embedding) = &mut config.embedding {
        embedding.scale = EmbeddingScale::SqrtDModel;
    }
    config
}

fn gemma(hf: &mut HfConfig) -> ModelConfig {
    let mut config = base(hf, &GEMMA_DEFAULTS);
    let rotary = rotary(hf, &GEMMA_DEFAULTS.rope, config.max_seq_len);
    set_rotary(&mut config, rotary);
    config
}

/// What Gemma 2 and 3 have in common.
fn sandwich(hf: &mut HfConfig, defaults: &Defaults) -> ModelConfig {
    let mut config = base(hf, defaults);
    config.block.placement = NormPlacement::Sandwich;
    config.attention.scale = Some(hf.number("query_pre_attn_scalar", 256.0).sqrt().recip());
    config
}

/// Every second layer slides, the first one does.
fn gemma2(hf: &mut HfConfig) -> ModelConfig {
    let mut config = sandwich(hf, &GEMMA2_DEFAULTS);
    let rotary = rotary(hf, &GEMMA2_DEFAULTS.rope, config.max_seq_len);
    set_rotary(&mut config, rotary);
    config.attention.softcap = hf.number_or_null("attn_logit_softcapping", 50.0);
    let softcap = hf.number_or_null("final_logit_softcapping", 30.0);
    with_head(&mut config, |head| head.softcap = softcap);
    let window = hf.size_or_null("sliding_window", Some(4096));
    let sliding = sliding_layers(hf, config.n_layers, |layer| layer.is_multiple_of(2));
    config.layers = windows(&sliding, window);
    config
}

/// All layers but every sixth slide, and those turn by frequencies of their own.
fn gemma3(hf: &mut HfConfig) -> ModelConfig {
    let defaults = Defaults { vocab_size: 262_208, max_seq_len: 131_072, ..GEMMA2_DEFAULTS };
    let mut config = sandwich(hf, &defaults);
    set_qk_norm(&mut config, QkNormScope::PerHead, NormKind::RmsPlusOne);
    let softcap = hf.optional_number("final_logit_softcapping");
    with_head(&mut config, |head| head.softcap = softcap);
    let global = RopeDefaults::new(1_000_000.0);
    let local = RopeDefaults { theta: 10_000.0, theta_key: Some("rope_local_base_freq"), ..global };
    config.positions = Positions::Rotary(rotary_by_layer(hf, &global, &local, config.max_seq_len));
    hf.alias("sliding_window_pattern", "_sliding_window_pattern");
    let pattern = hf.size("sliding_window_pattern", 6).max(1);
    let window = hf.size_or_null("sliding_window", Some(4096));
    let sliding = sliding_layers(hf, config.n_layers, |layer| !(layer + 1).is_multiple_of(pattern));
    config.layers = windows_and_rotations(&sliding, window, LayerRotary::Local, LayerRotary::Global);
    config
}

fn gemma2_names() -> Rules {
    llama_names().with(&[
        // The name that Llama gives to the norm before the network.
        ("layers.N.attention_norm.out", "layers.N.post_attention_layernorm"),
        ("layers.N.feed_forward_norm.pre", "layers.N.pre_feedforward_layernorm"),
        ("layers.N.feed_forward_norm.out", "layers.N.post_feedforward_layernorm"),
    ])
}

fn gemma3_names() -> Rules {
    gemma2_names().with_qk_norms("layers.N.self_attn.q_norm", "layers.N.self_attn.k_norm", Part::Whole)
}
