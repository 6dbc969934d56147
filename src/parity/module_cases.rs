//! The feed-forward network and multi-head attention with its projections.

use burn::tensor::Tensor;

use super::case::{Case, Kind};
use super::probe::Probe;
use crate::activation::Activation;
use crate::attention::{
    AttentionContext, AttentionKernel, AttentionMask, KvCache, MultiHeadAttentionConfig, ProjectionBias, QkNorm,
    QkNormScope, RotaryConfig,
};
use crate::error::Error;
use crate::feed_forward::FeedForwardConfig;
use crate::mixture_of_experts::{MixtureOfExpertsConfig, SharedExpertConfig};
use crate::norm::{NormConfig, NormKind};

const BATCH: usize = 2;
const SEQ: usize = 11;
const D_MODEL: usize = 20;

pub(super) fn all() -> Vec<Case> {
    let mut cases = feed_forward();
    cases.extend(mixture_of_experts());
    cases.extend(attention_options());
    cases.extend(cross_attention());
    cases.extend(cached());
    cases
}

fn feed_forward() -> Vec<Case> {
    let base = FeedForwardConfig::new(D_MODEL, 28);
    let gated = base.clone().with_gated(true).with_activation(Activation::Silu);
    let run = |config: FeedForwardConfig| {
        move |probe: &mut Probe| {
            let x = probe.input("x", [BATCH, 5, D_MODEL]);
            let module = probe.module("feed_forward", config.init(probe.device()));
            probe.output("y", module.forward(x));
            Ok(())
        }
    };
    let case = |name: &str, config: FeedForwardConfig, option: &str, without: FeedForwardConfig| {
        Case::new(Kind::Module, format!("feed_forward/{name}"), run(config)).without(option, run(without))
    };
    vec![
        case("plain", base.clone(), "activation", base.clone().with_activation(Activation::Relu)),
        case("gated", gated.clone(), "gate", gated.clone().with_gated(false)),
        case("no bias", base.clone().with_bias(false), "absence of biases", base),
        case("gated, no bias", gated.clone().with_bias(false), "absence of biases", gated),
    ]
}

fn mixture_of_experts() -> Vec<Case> {
    let expert = FeedForwardConfig::new(D_MODEL, 14).with_gated(true).with_activation(Activation::Silu);
    let base = MixtureOfExpertsConfig::new(expert.clone(), 7, 3);
    let shared =
        |gated| base.clone().with_shared(SharedExpertConfig { expert: expert.clone().with_gated(false), gated });
    let run = |config: MixtureOfExpertsConfig| {
        move |probe: &mut Probe| {
            let x = probe.input("x", [BATCH, 5, D_MODEL]);
            let module = probe.module("mixture", config.init(probe.device()));
            probe.output("y", module.forward(x));
            Ok(())
        }
    };
    let case = |name: &str, config: MixtureOfExpertsConfig, option: &str, without: MixtureOfExpertsConfig| {
        Case::new(Kind::Module, format!("mixture_of_experts/{name}"), run(config)).without(option, run(without))
    };
    let plain = MixtureOfExpertsConfig { expert: expert.clone().with_gated(false), ..base.clone() };
    vec![
        case("renormalised", base.clone(), "renormalisation", base.clone().with_renormalize(false)),
        case("one expert", MixtureOfExpertsConfig { n_active: 1, ..base.clone() }, "choice of one", base.clone()),
        case("every expert", MixtureOfExpertsConfig { n_active: 7, ..base.clone() }, "use of all", base.clone()),
        case("plain experts", plain, "absence of a gate", base.clone()),
        case("gated shared expert", shared(true), "gate", shared(false)),
        case("shared expert", shared(false), "shared expert", base.clone()),
    ]
}

/// Self-attention of grouped heads, whose width is not that of the model.
fn base() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(D_MODEL, 6).with_n_kv_heads(3).with_d_head(8)
}

fn qk_norm(scope: QkNormScope, kind: NormKind) -> QkNorm {
    QkNorm { scope, norm: NormConfig::new(kind) }
}

fn attention_options() -> Vec<Case> {
    let case = |name: &str, config: MultiHeadAttentionConfig, option: &str, without: MultiHeadAttentionConfig| {
        Case::new(Kind::Module, format!("multi_head_attention/{name}"), move |probe| attend(&config, true, probe))
            .without(option, move |probe| attend(&without, true, probe))
    };
    let with_norm = |scope, kind| base().with_qk_norm(qk_norm(scope, kind));
    let multi_query = base().with_n_kv_heads(1);
    let mut cases = vec![
        case("grouped", base(), "sharing of heads", base().with_n_kv_heads(6)),
        case("multi-query", multi_query.clone(), "sharing of heads", base().with_n_kv_heads(6)),
        case("multi-head", base().with_n_kv_heads(6), "number of heads", base()),
        case("no bias", base().with_bias(ProjectionBias::NONE), "absence of biases", base()),
        case("bias of queries, keys and values", base().with_bias(ProjectionBias::QKV), "absence of one bias", base()),
        case("norm per head", with_norm(QkNormScope::PerHead, NormKind::Rms), "norm", base()),
        case("norm per head, plus one", with_norm(QkNormScope::PerHead, NormKind::RmsPlusOne), "norm", base()),
        case(
            "norm per head, own weights",
            with_norm(QkNormScope::PerHeadOwnWeight, NormKind::LayerNoBias),
            "norm",
            base(),
        ),
        case("norm over the full width", with_norm(QkNormScope::FullWidth, NormKind::Rms), "norm", base()),
        case("clip", base().with_clip_qkv(0.8), "clip", base()),
        case("softcap", base().with_softcap(1.5), "softcap", base()),
        case("scale", base().with_scale(0.9), "scale", base()),
        case("blockwise", base().with_kernel(AttentionKernel::Blockwise).with_softcap(1.5), "softcap", base()),
        Case::new(Kind::Module, "multi_head_attention/causal", |probe| attend_masked(&AttentionMask::causal(), probe))
            .without("causality", |probe| attend(&base(), false, probe)),
        Case::new(Kind::Module, "multi_head_attention/no rotation", |probe| attend(&base(), false, probe))
            .without("absence of rotation", |probe| attend(&base(), true, probe)),
    ];
    cases.push(Case::new(Kind::Module, "multi_head_attention/weights returned", |probe| {
        let x = probe.input("x", [BATCH, SEQ, D_MODEL]);
        let module = probe.module("attention", base().init(probe.device()));
        let mask = AttentionMask::causal();
        let (y, weights) = module.forward_with_weights(x, None, AttentionContext::masked(&mask));
        probe.output("y", y);
        probe.output("weights", weights);
        Ok(())
    }));
    cases
}

/// Self-attention of each token over all, with rotary positions if asked for.
fn attend(config: &MultiHeadAttentionConfig, is_rotary: bool, probe: &mut Probe) -> Result<(), Error> {
    let x = probe.input("x", [BATCH, SEQ, D_MODEL]);
    let config = config.clone().with_kernel(probe.kernel(config.kernel));
    let module = probe.module("attention", config.init(probe.device()));
    let angles = RotaryConfig::new(100.0).angles(config.d_head(), &[(0..SEQ).collect()], probe.device());
    let mask = AttentionMask::none();
    let context = AttentionContext { rotary: is_rotary.then_some(&angles), ..AttentionContext::masked(&mask) };
    probe.output("y", module.forward(x, context));
    Ok(())
}

fn attend_masked(mask: &AttentionMask, probe: &mut Probe) -> Result<(), Error> {
    let x = probe.input("x", [BATCH, SEQ, D_MODEL]);
    let config = base().with_kernel(probe.kernel(AttentionKernel::Auto));
    let module = probe.module("attention", config.init(probe.device()));
    probe.output("y", module.forward(x, AttentionContext::masked(mask)));
    Ok(())
}

/// Queries of 5 tokens over a memory of 11 tokens and another width.
fn cross_attention() -> Vec<Case> {
    let attend = |is_padded: bool| {
        move |probe: &mut Probe| {
            let x = probe.input("x", [BATCH, 5, D_MODEL]);
            let memory = probe.input("memory", [BATCH, SEQ, 12]);
            let config = base().with_d_context(12).with_kernel(probe.kernel(AttentionKernel::Auto));
            let module = probe.module("attention", config.init(probe.device()));
            let mut mask = AttentionMask::none();
            if is_padded {
                let hidden = (0..BATCH).flat_map(|item| (0..SEQ).map(move |key| key >= SEQ - 2 - 3 * item));
                mask = mask.with_padding(probe.flags([BATCH, SEQ], hidden.collect()));
            }
            probe.output("y", module.forward_cross(x, memory, AttentionContext::masked(&mask)));
            Ok(())
        }
    };
    vec![
        Case::new(Kind::Module, "multi_head_attention/cross", attend(false))
            .without("absence of padding", attend(true)),
        Case::new(Kind::Module, "multi_head_attention/cross, padding", attend(true)).without("padding", attend(false)),
    ]
}

/// Attention through a cache, fed in parts; the oracle takes the whole sequence at once.
fn cached() -> Vec<Case> {
    let attend = |window: Option<usize>| {
        move |probe: &mut Probe| {
            let x: Tensor<3> = probe.input("x", [BATCH, SEQ, D_MODEL]);
            let config = base().with_kernel(probe.kernel(AttentionKernel::Auto));
            let module = probe.module("attention", config.init(probe.device()));
            let mut mask = AttentionMask::causal();
            if let Some(window) = window {
                mask = mask.with_window(window);
            }
            let mut cache = window.map_or_else(KvCache::new, KvCache::with_window);
            let parts: &[usize] = if probe.is_oracle() { &[SEQ] } else { &[4, 3, 1, 1, 2] };
            let mut start = 0;
            let mut outputs = Vec::new();
            for part in parts {
                let positions = (start..start + part).collect();
                let angles = RotaryConfig::new(100.0).angles(config.d_head(), &[positions], probe.device());
                let context = AttentionContext {
                    rotary: Some(&angles),
                    cache: (!probe.is_oracle()).then_some(&mut cache),
                    ..AttentionContext::masked(&mask)
                };
                outputs.push(module.forward(x.clone().slice_dim(1, start..start + part), context));
                start += part;
            }
            probe.output("y", Tensor::cat(outputs, 1));
            Ok(())
        }
    };
    vec![
        Case::new(Kind::Module, "multi_head_attention/cached", attend(None)).without("all but 3 keys", attend(Some(3))),
        Case::new(Kind::Module, "multi_head_attention/cached, window", attend(Some(3))).without("window", attend(None)),
    ]
}
