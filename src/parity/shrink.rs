//! Published models made small, every option of theirs kept, and models with one option taken away.

use crate::activation::Activation;
use crate::attention::{RelativeBiasConfig, RotaryConfig, RotaryScaling};
use crate::embedding::EmbeddingScale;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::model::{LayerPattern, LayerRotary, ModelConfig};
use crate::positions::{Positions, RotaryPositions};
use crate::task_head::{TaskHeadConfig, TaskInput};
use crate::transformer_block::{BlockTopology, NormPlacement};

/// Tokens that models know.
const VOCAB_SIZE: usize = 61;
/// Labels that task heads know.
const N_LABELS: usize = 7;
/// Keys that windows show.
const WINDOW: usize = 5;
/// The training context of stretched rotary positions, inside the sequences of the cases.
const ORIGINAL_LEN: usize = 8;
/// Caps and clips, low enough to bite.
const CAP: f64 = 2.0;

/// A small model with every option of `config`. Thresholds (windows, caps, training contexts) shrink too, so that a
/// short sequence passes them. Dropout is taken out, as it is random.
pub(super) fn shrunk(config: &ModelConfig) -> ModelConfig {
    let mut small = without_dropout(config);
    (small.description, small.source, small.published_parameters) = (None, None, None);

    let is_grouped = config.attention.n_kv_heads() < config.attention.n_heads;
    let attention = &mut small.attention;
    attention.n_heads = 6;
    attention.n_kv_heads = is_grouped.then(|| if config.attention.n_kv_heads() == 1 { 1 } else { 3 });
    let d_head = small_head(&config.positions);
    let is_own_width = config.attention().d_head() * config.attention.n_heads != config.d_model;
    small.d_model = if is_own_width { 6 * d_head - 4 } else { 6 * d_head };
    attention.d_model = 0;
    attention.d_head = config.attention.d_head.map(|_| d_head);
    // The same factor in units of 1/√d_head, up to twice that: T5, whose factor is 1, has the rest in its weights, and
    // drawn weights would make its softmax a step.
    attention.scale = attention.scale.map(|scale| {
        let units = scale * (config.attention().d_head() as f64).sqrt();
        units.min(2.0) / (d_head as f64).sqrt()
    });
    attention.softcap = attention.softcap.map(|_| CAP);
    attention.clip_qkv = attention.clip_qkv.map(|_| CAP / 2.0);
    if let Some(feed_forward) = &mut small.feed_forward {
        (feed_forward.d_model, feed_forward.d_ff) = (0, 80);
    }
    if let Some(mixture) = &mut small.mixture {
        (mixture.d_model, mixture.n_experts, mixture.n_active) = (0, 5, 2);
        mixture.expert = FeedForwardConfig { d_model: 0, d_ff: 30, ..mixture.expert.clone() };
        if let Some(shared) = &mut mixture.shared {
            shared.expert = FeedForwardConfig { d_model: 0, d_ff: 20, ..shared.expert.clone() };
        }
    }
    if let Some(encoder) = &mut small.encoder {
        **encoder = ModelConfig { d_model: small.d_model, ..shrunk(encoder) };
    }

    if let Some(embedding) = &mut small.embedding {
        embedding.vocab_size = VOCAB_SIZE;
        embedding.d_embedding = config.embedding.as_ref().filter(|e| e.is_projected(config.d_model)).map(|_| 18);
    }
    if let Some(head) = &mut small.head {
        head.softcap = head.softcap.map(|_| CAP);
    }
    small.max_seq_len = small.max_seq_len.min(32);
    if let Some(patches) = &mut small.patches {
        // Neither images nor patches are square, and some pixels belong to no patch.
        (patches.image_size, patches.patch_size) = ([13, 20], [4, 5]);
        small.max_seq_len = patches.seq_len();
    }
    if let Some(task) = &mut small.task {
        task.n_labels = task.n_labels.min(N_LABELS);
    }
    for layer in &mut small.layers {
        *layer = LayerPattern { window: layer.window.map(|_| WINDOW), repeat: 1, ..*layer };
    }
    small.n_layers = (small.layers.len() + 1).clamp(2, 4).min(config.n_layers);
    if let Positions::Relative(relative) = &mut small.positions {
        // Far fewer buckets, so that a short sequence reaches the wide ones.
        *relative = RelativeBiasConfig { n_buckets: 8, max_distance: 10 };
    }
    if let Positions::Rotary(RotaryPositions { global, local }) = &mut small.positions {
        shrink_rotary(global, d_head, 1000.0);
        if let Some(local) = local {
            shrink_rotary(local, d_head, 50.0);
        }
    }
    small
}

/// `config` without dropout, which is random.
pub(super) fn without_dropout(config: &ModelConfig) -> ModelConfig {
    let mut config = config.clone();
    (config.dropout, config.attention.dropout) = (0.0, 0.0);
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.dropout = 0.0;
    }
    if let Some(mixture) = &mut config.mixture {
        mixture.expert.dropout = 0.0;
        mixture.shared.iter_mut().for_each(|shared| shared.expert.dropout = 0.0);
    }
    config.cross_attention.iter_mut().for_each(|cross| cross.dropout = 0.0);
    config.encoder.iter_mut().for_each(|encoder| **encoder = without_dropout(encoder));
    config
}

/// The smallest head from 8 features on of which an even number can turn.
fn small_head(positions: &Positions) -> usize {
    let fits =
        |rotary: &RotaryConfig, d_head| rotary.rotary_size(d_head) >= 2 && rotary.rotary_size(d_head).is_multiple_of(2);
    (4..32)
        .map(|half| 2 * half)
        .find(|d_head| match positions {
            Positions::Rotary(RotaryPositions { global, local }) => {
                fits(global, *d_head) && local.as_ref().is_none_or(|local| fits(local, *d_head))
            }
            _ => true,
        })
        .unwrap_or(64)
}

fn shrink_rotary(rotary: &mut RotaryConfig, d_head: usize, largest_theta: f64) {
    let pairs = rotary.rotary_size(d_head) / 2;
    // With few features, a large base would leave all but the first of them standing still.
    rotary.theta = rotary.theta.min(largest_theta);
    match &mut rotary.scaling {
        RotaryScaling::None | RotaryScaling::Linear { .. } => {}
        RotaryScaling::Dynamic { original_max_seq_len, .. }
        | RotaryScaling::Llama3 { original_max_seq_len, .. }
        | RotaryScaling::Yarn { original_max_seq_len, .. } => *original_max_seq_len = ORIGINAL_LEN,
        RotaryScaling::Longrope { short_factor, long_factor, original_max_seq_len, max_seq_len, factor, .. } => {
            *factor = Some(factor.unwrap_or(*max_seq_len as f64 / *original_max_seq_len as f64));
            (*original_max_seq_len, *max_seq_len) = (ORIGINAL_LEN, 4 * ORIGINAL_LEN);
            for list in [short_factor, long_factor] {
                // Spread over the whole list, as the last divisors are the largest.
                *list = (0..pairs).map(|pair| list[pair * list.len() / pairs]).collect();
            }
        }
    }
}

/// `config` with each option it has taken away, by the name of the option.
pub(super) fn ablations(config: &ModelConfig) -> Vec<(&'static str, ModelConfig)> {
    let mut found = Vec::new();
    let mut try_out = |option: &'static str, change: &dyn Fn(&mut ModelConfig)| {
        let mut changed = config.clone();
        change(&mut changed);
        if changed != *config && changed.validate().is_ok() {
            found.push((option, changed));
        }
    };
    try_out("positions", &|c| {
        c.positions = Positions::None;
        c.layers.iter_mut().for_each(|layer| layer.rotary = LayerRotary::Global);
    });
    try_out("window", &|c| c.layers.iter_mut().for_each(|layer| layer.window = None));
    try_out("local rotation", &|c| c.layers.iter_mut().for_each(|layer| layer.rotary = LayerRotary::Global));
    try_out("part of each head", &|c| change_rotary(c, |rotary| rotary.fraction = 1.0));
    try_out("rotary scaling", &|c| change_rotary(c, |rotary| rotary.scaling = RotaryScaling::None));
    try_out("softcap", &|c| c.attention.softcap = None);
    try_out("clip", &|c| c.attention.clip_qkv = None);
    try_out("norm of queries and keys", &|c| c.attention.qk_norm = None);
    try_out("scale by layer", &|c| c.scale_scores_by_layer = false);
    try_out("final norm", &|c| c.final_norm = false);
    try_out("residual multiplier", &|c| c.block.residual_multiplier = 1.0);
    try_out("residual from normed", &|c| c.block.residual_from_normed = false);
    try_out("topology", &|c| c.block.topology = BlockTopology::Sequential);
    try_out("placement", &|c| {
        (c.block.placement, c.block.topology) = (NormPlacement::None, BlockTopology::Sequential);
    });
    try_out("gate", &|c| c.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.gated = false));
    try_out("renormalised experts", &|c| c.mixture.iter_mut().for_each(|m| m.renormalize = !m.renormalize));
    try_out("number of active experts", &|c| c.mixture.iter_mut().for_each(|m| m.n_active = 1));
    try_out("shared expert", &|c| c.mixture.iter_mut().for_each(|m| m.shared = None));
    try_out("gate of the shared expert", &|c| {
        c.mixture.iter_mut().flat_map(|m| &mut m.shared).for_each(|shared| shared.gated = false);
    });
    try_out("dense layers", &|c| {
        c.layers.iter_mut().for_each(|layer| layer.dense = false);
        c.feed_forward = None;
    });
    try_out("encoder", &|c| (c.encoder, c.cross_attention) = (None, None));
    try_out("cross-attention", &|c| {
        if let Some(mut cross) = c.cross_attention() {
            cross.scale = Some(2.0 * cross.scale());
            c.cross_attention = Some(cross);
        }
    });
    try_out("encoder's positions", &|c| c.encoder.iter_mut().for_each(|e| e.positions = Positions::None));
    try_out("encoder's final norm", &|c| c.encoder.iter_mut().for_each(|e| e.final_norm = false));
    try_out("embedding scale", &|c| c.embedding.iter_mut().for_each(|e| e.scale = EmbeddingScale::None));
    try_out("embedding norm", &|c| c.embedding.iter_mut().for_each(|e| e.norm = false));
    try_out("token types", &|c| c.embedding.iter_mut().for_each(|e| e.n_types = 0));
    let head = |change: fn(&mut HeadConfig)| move |c: &mut ModelConfig| c.head.iter_mut().for_each(change);
    let task = |change: fn(&mut TaskHeadConfig)| move |c: &mut ModelConfig| c.task.iter_mut().for_each(change);
    try_out("task's transform", &task(|task| task.transform = None));
    try_out("task's activation", &task(|task| task.transform = task.transform.map(|_| Activation::Gelu)));
    try_out("task's bias", &task(|task| task.bias = false));
    try_out(
        "task's input",
        &task(|task| {
            task.input = match task.input {
                TaskInput::FirstToken => TaskInput::LastToken,
                TaskInput::LastToken | TaskInput::Pooled => TaskInput::FirstToken,
                TaskInput::EveryToken => TaskInput::EveryToken,
            };
        }),
    );
    try_out("head's softcap", &head(|head| head.softcap = None));
    try_out("head's scale", &head(|head| head.scale = 1.0));
    try_out("head's bias", &head(|head| head.bias = false));
    try_out("head's transform", &head(|head| head.transform = None));
    found
}

fn change_rotary(config: &mut ModelConfig, change: fn(&mut RotaryConfig)) {
    if let Positions::Rotary(RotaryPositions { global, local }) = &mut config.positions {
        change(global);
        local.iter_mut().for_each(change);
    }
}
