//! The transformer block: every placement of norms, every topology, every extra.

use super::case::{Case, Kind};
use super::probe::Probe;
use crate::activation::Activation;
use crate::attention::{
    AlibiConfig, AttentionKernel, AttentionMask, MultiHeadAttentionConfig, QkNorm, QkNormScope, RotaryConfig,
};
use crate::error::Error;
use crate::feed_forward::FeedForwardConfig;
use crate::mixture_of_experts::MixtureOfExpertsConfig;
use crate::norm::{NormConfig, NormKind};
use crate::transformer_block::{
    BlockContext, BlockLayout, BlockTopology, Memory, NormPlacement, TransformerBlockConfig,
};

const BATCH: usize = 2;
const SEQ: usize = 11;
const MEMORY: usize = 7;
const D_MODEL: usize = 20;
const D_CONTEXT: usize = 12;

fn attention() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(D_MODEL, 6).with_n_kv_heads(3).with_d_head(8)
}

/// A pre-norm block.
fn base() -> TransformerBlockConfig {
    TransformerBlockConfig::new(attention(), FeedForwardConfig::new(D_MODEL, 28))
}

fn with(layout: BlockLayout) -> TransformerBlockConfig {
    base().with_layout(layout)
}

pub(super) fn all() -> Vec<Case> {
    let pre = BlockLayout::new(NormPlacement::Pre);
    let parallel = |topology| with(pre.with_topology(topology));
    let gated = FeedForwardConfig::new(D_MODEL, 28).with_gated(true).with_bias(false).with_activation(Activation::Silu);
    let llama = TransformerBlockConfig::new(attention(), gated.clone()).with_norm(NormConfig::new(NormKind::Rms));
    let qk_norm = QkNorm { scope: QkNormScope::FullWidth, norm: NormConfig::new(NormKind::Rms) };
    let olmo = TransformerBlockConfig::new(attention().with_qk_norm(qk_norm), gated)
        .with_norm(NormConfig::new(NormKind::Rms))
        .with_layout(BlockLayout::new(NormPlacement::Output));
    vec![
        case("no norm", with(BlockLayout::new(NormPlacement::None)), "absence of norms", base()),
        case("pre", base(), "norms", with(BlockLayout::new(NormPlacement::None))),
        case("post", with(BlockLayout::new(NormPlacement::Post)), "placement", base()),
        case("sandwich", with(BlockLayout::new(NormPlacement::Sandwich)), "norms on outputs", base()),
        case("output", with(BlockLayout::new(NormPlacement::Output)), "placement", base()),
        case("parallel", parallel(BlockTopology::Parallel), "topology", base()),
        case(
            "parallel, shared norm",
            parallel(BlockTopology::ParallelSharedNorm),
            "sharing of the norm",
            parallel(BlockTopology::Parallel),
        ),
        case("residual from normed", with(pre.with_residual_from_normed(true)), "residual from normed", base()),
        case("residual multiplier", with(pre.with_residual_multiplier(0.22)), "multiplier", base()),
        case(
            "parallel, residual multiplier",
            with(pre.with_topology(BlockTopology::Parallel).with_residual_multiplier(0.22)),
            "multiplier",
            parallel(BlockTopology::Parallel),
        ),
        case("attention alone", base().without_feed_forward(), "absence of the feed-forward network", base()),
        case("mixture of experts", base().with_mixture(mixture(3)), "experts", base().with_mixture(mixture(1))),
        case(
            "parallel, mixture of experts",
            parallel(BlockTopology::Parallel).with_mixture(mixture(3)),
            "topology",
            base().with_mixture(mixture(3)),
        ),
        case("rms, gated", llama.clone(), "norm", llama.with_norm(NormConfig::default())),
        case("output, norm of queries and keys", olmo.clone(), "norm", olmo.with_norm(NormConfig::default())),
        case("cross-attention", with_cross(base()), "cross-attention", base()),
        case(
            "cross-attention, post",
            with_cross(with(BlockLayout::new(NormPlacement::Post))),
            "placement",
            with_cross(base()),
        ),
        Case::new(Kind::Module, "block/rotary", |probe| apply(&base(), Some(Extra::Rotary), probe))
            .without("rotation", |probe| apply(&base(), None, probe)),
        Case::new(Kind::Module, "block/alibi", |probe| apply(&base(), Some(Extra::Alibi), probe))
            .without("bias", |probe| apply(&base(), None, probe)),
        Case::new(Kind::Module, "block/weights returned", |probe| apply(&base(), Some(Extra::Weights), probe)),
    ]
}

fn mixture(n_active: usize) -> MixtureOfExpertsConfig {
    MixtureOfExpertsConfig::new(FeedForwardConfig::new(D_MODEL, 14), 5, n_active)
}

fn with_cross(config: TransformerBlockConfig) -> TransformerBlockConfig {
    config.with_cross_attention(attention().with_d_context(D_CONTEXT))
}

fn case(name: &str, config: TransformerBlockConfig, option: &str, without: TransformerBlockConfig) -> Case {
    Case::new(Kind::Module, format!("block/{name}"), move |probe| apply(&config, None, probe))
        .without(option, move |probe| apply(&without, None, probe))
}

#[derive(Clone, Copy, PartialEq)]
enum Extra {
    Rotary,
    Alibi,
    Weights,
}

/// The causal block on a padded batch.
fn apply(config: &TransformerBlockConfig, extra: Option<Extra>, probe: &mut Probe) -> Result<(), Error> {
    let x = probe.input("x", [BATCH, SEQ, D_MODEL]);
    let mut config = config.clone();
    config.attention.kernel = probe.kernel(AttentionKernel::Auto);
    if let Some(cross) = &mut config.cross_attention {
        cross.kernel = config.attention.kernel;
    }
    let block = probe.module("block", config.init(probe.device()));
    let is_padding = |len: usize, tokens: usize| move |item: usize| (0..len).map(move |at| at < tokens * item);
    let mask = AttentionMask::causal()
        .with_padding(probe.flags([BATCH, SEQ], (0..BATCH).flat_map(is_padding(SEQ, 3)).collect()));
    let memory_mask = AttentionMask::none()
        .with_padding(probe.flags([BATCH, MEMORY], (0..BATCH).flat_map(is_padding(MEMORY, 2)).collect()));
    let has_memory = config.cross_attention.is_some();
    let states = has_memory.then(|| probe.input("memory", [BATCH, MEMORY, D_CONTEXT]));
    let projected = states.and_then(|states| block.project_memory(states));
    let positions = [(0..SEQ).collect()];
    let (d_head, scale) = (config.attention.d_head(), config.attention.scale());
    let angles = RotaryConfig::new(100.0).angles(d_head, &positions, probe.device());
    let bias = AlibiConfig::default().bias(config.attention.n_heads, &positions, scale, probe.device());
    let context = BlockContext {
        mask: &mask,
        rotary: (extra == Some(Extra::Rotary)).then_some(&angles),
        bias: (extra == Some(Extra::Alibi)).then_some(&bias),
        cache: None,
        memory: projected.as_ref().map(|projected| Memory { projected, mask: &memory_mask }),
    };
    if extra == Some(Extra::Weights) {
        let (y, weights) = block.forward_with_weights(x, context);
        probe.output("y", y);
        probe.output("weights", weights);
    } else {
        probe.output("y", block.forward(x, context));
    }
    Ok(())
}
