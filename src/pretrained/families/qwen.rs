//! Qwen 2 and 3.

use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, switched_window, windows};
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_qk_norm};
use crate::attention::{ProjectionBias, QkNormScope};
use crate::model::ModelConfig;
use crate::norm::NormKind;

pub(super) const QWEN2: Family =
    Family { model_types: &["qwen2"], config: qwen2, rules: llama_names, harmless: HARMLESS };

pub(super) const QWEN3: Family =
    Family { model_types: &["qwen3"], config: qwen3, rules: qwen3_names, harmless: HARMLESS };

/// Of models that also see.
const HARMLESS: &[&str] =
    &["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "use_mrope"];

const QWEN2_DEFAULTS: Defaults =
    Defaults { vocab_size: 151_936, d_ff: 22_016, n_kv_heads: Some(32), max_seq_len: 32_768, ..LLAMA_DEFAULTS };

/// Queries, keys and values have biases, and no key says so.
fn qwen2(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &QWEN2_DEFAULTS);
    config.attention.bias = ProjectionBias::QKV;
    set_window(hf, &mut config);
    config
}

fn qwen3(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &Defaults { d_head: Some(128), ..QWEN2_DEFAULTS });
    set_attention_bias(hf, &mut config);
    set_qk_norm(&mut config, QkNormScope::PerHead, NormKind::Rms);
    set_window(hf, &mut config);
    config
}

fn qwen3_names() -> Rules {
    llama_names().with_qk_norms("layers.N.self_attn.q_norm", "layers.N.self_attn.k_norm", Part::Whole)
}

fn set_window(hf: &mut HfConfig, config: &mut ModelConfig) {
    let window = switched_window(hf);
    let first = hf.size_or_null("max_window_layers", Some(28)).unwrap_or(0);
    let sliding = sliding_layers(hf, config.n_layers, |layer| layer >= first);
    config.layers = windows(&sliding, window);
}
