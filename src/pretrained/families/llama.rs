//! Llama, and those that differ from it by a few keys: Mistral, Granite, SmolLM 3.

use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, windows};
use super::super::hf_rope::RopeDefaults;
use super::Family;
use super::decoder::{
    Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_mlp_bias, set_window, with_head,
};
use crate::embedding::EmbeddingScale;
use crate::model::{LayerRotary, ModelConfig};

pub(super) const LLAMA: Family = Family { model_types: &["llama"], config: llama, rules: llama_names, harmless: &[] };

pub(super) const MISTRAL: Family =
    Family { model_types: &["mistral"], config: mistral, rules: llama_names, harmless: &[] };

pub(super) const GRANITE: Family =
    Family { model_types: &["granite"], config: granite, rules: llama_names, harmless: &[] };

pub(super) const SMOLLM3: Family =
    Family { model_types: &["smollm3"], config: smollm3, rules: llama_names, harmless: &["max_window_layers"] };

fn llama(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama_like(hf, &LLAMA_DEFAULTS);
    set_attention_bias(hf, &mut config);
    set_mlp_bias(hf, &mut config);
    config
}

/// All layers slide, over 4096 keys unless the file says otherwise or `null`.
fn mistral(hf: &mut HfConfig) -> ModelConfig {
    let defaults = Defaults { d_ff: 14_336, n_kv_heads: Some(8), max_seq_len: 131_072, ..LLAMA_DEFAULTS };
    let mut config = llama_like(hf, &defaults);
    set_window(hf, &mut config, Some(4096));
    config
}

fn granite(hf: &mut HfConfig) -> ModelConfig {
    let mut config = llama(hf);
    if let Some(embedding) = &mut config.embedding {
        let factor = hf.number("embedding_multiplier", 1.0);
        embedding.scale = if factor == 1.0 { EmbeddingScale::None } else { EmbeddingScale::Constant(factor) };
    }
    config.attention.scale = Some(hf.number("attention_multiplier", 1.0));
    config.block.residual_multiplier = hf.number("residual_multiplier", 1.0);
    let divisor = hf.number("logits_scaling", 1.0);
    with_head(&mut config, |head| head.scale = divisor.recip());
    config
}

/// In `no_rope_layers` a 0 means a layer *without* rotary positions.
fn smollm3(hf: &mut HfConfig) -> ModelConfig {
    let defaults = Defaults {
        vocab_size: 128_256,
        d_model: 2048,
        n_layers: 36,
        n_heads: 16,
        n_kv_heads: Some(4),
        max_seq_len: 32_768,
        rope: RopeDefaults::new(2_000_000.0),
        is_tied: true,
        ..LLAMA_DEFAULTS
    };
    let mut config = llama_like(hf, &defaults);
    set_attention_bias(hf, &mut config);
    set_mlp_bias(hf, &mut config);
    let interval = hf.size("no_rope_layer_interval", 4).max(1);
    let listed = hf.numbers("no_rope_layers");
    let n_layers = config.n_layers;
    let turns = |layer: usize| match &listed {
        Some(listed) => listed.get(layer).is_none_or(|turns| *turns != 0.0),
        None => !(layer + 1).is_multiple_of(interval),
    };
    if let Some(count) = listed.as_ref().map(Vec::len).filter(|count| *count != n_layers) {
        hf.fault("no_rope_layers", format!("must hold {n_layers} entries, one per layer, got {count}"));
    }
    let uses_window = hf.flag("use_sliding_window", false);
    let window = hf.optional_size("sliding_window").filter(|_| uses_window);
    let sliding = sliding_layers(hf, n_layers, |layer| !turns(layer));
    config.layers = windows(&sliding, window);
    for (layer, pattern) in config.layers.iter_mut().enumerate() {
        pattern.rotary = if turns(layer) { LayerRotary::Global } else { LayerRotary::None };
    }
    config
}
