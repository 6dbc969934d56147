//! Command R (Cohere) and its successor.

use super::super::hf_config::HfConfig;
use super::super::hf_layers::{sliding_layers, windows_and_rotations};
use super::super::hf_rope::RopeDefaults;
use super::super::rules::{Part, Rules};
use super::Family;
use super::decoder::{Defaults, LLAMA_DEFAULTS, llama_like, llama_names, set_attention_bias, set_qk_norm, with_head};
use crate::attention::{QkNormScope, RotaryStyle};
use crate::model::{LayerRotary, ModelConfig};
use crate::norm::NormKind;
use crate::transformer_block::BlockTopology;

pub(super) const COHERE: Family = Family { model_types: &["cohere"], config: cohere, rules: names, harmless: &[] };

pub(super) const COHERE2: Family = Family {
    model_types: &["cohere2"],
    config: cohere2,
    rules: names,
    harmless: &["order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing"],
};

/// Features turn in neighbouring pairs, as in the paper.
const fn interleaved(theta: f64) -> RopeDefaults {
    RopeDefaults { style: RotaryStyle::Interleaved, ..RopeDefaults::new(theta) }
}

const COHERE_DEFAULTS: Defaults = Defaults {
    vocab_size: 256_000,
    d_model: 8192,
    d_ff: 22_528,
    n_layers: 40,
    n_heads: 64,
    max_seq_len: 8192,
    norm: NormKind::LayerNoBias,
    eps: ("layer_norm_eps", 1e-5),
    rope: interleaved(500_000.0),
    is_tied: true,
    ..LLAMA_DEFAULTS
};

/// Attention and network side by side behind one norm.
fn base(hf: &mut HfConfig, defaults: &Defaults) -> ModelConfig {
    let mut config = llama_like(hf, defaults);
    config.block.topology = BlockTopology::ParallelSharedNorm;
    set_attention_bias(hf, &mut config);
    let scale = hf.number("logit_scale", 0.0625);
    with_head(&mut config, |head| head.scale = scale);
    config
}

fn cohere(hf: &mut HfConfig) -> ModelConfig {
    let mut config = base(hf, &COHERE_DEFAULTS);
    if hf.flag("use_qk_norm", false) {
        set_qk_norm(&mut config, QkNormScope::PerHeadOwnWeight, NormKind::LayerNoBias);
    }
    config
}

/// All layers but every fourth slide, and only those turn.
fn cohere2(hf: &mut HfConfig) -> ModelConfig {
    let mut config = base(hf, &Defaults { rope: interleaved(10_000.0), ..COHERE_DEFAULTS });
    hf.refuse_flag("use_qk_norm", "a norm on queries and keys in this family");
    hf.alias("sliding_window_pattern", "_sliding_window_pattern");
    let pattern = hf.size("sliding_window_pattern", 4).max(1);
    let window = hf.size_or_null("sliding_window", Some(4096));
    let sliding = sliding_layers(hf, config.n_layers, |layer| !(layer + 1).is_multiple_of(pattern));
    config.layers = windows_and_rotations(&sliding, window, LayerRotary::Global, LayerRotary::None);
    config
}

fn names() -> Rules {
    llama_names().with_qk_norms("layers.N.self_attn.q_norm", "layers.N.self_attn.k_norm", Part::Flat)
}
