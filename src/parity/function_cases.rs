//! Functions without matrix products: activations, norms, rotary positions.

use super::case::{Case, Kind};
use super::numbers::draw;
use super::probe::Probe;
use crate::activation::Activation;
use crate::attention::{RotaryConfig, RotaryScaling, RotaryStyle};
use crate::error::Error;
use crate::norm::{NormConfig, NormKind};

pub(super) fn all() -> Vec<Case> {
    let mut cases = activations();
    cases.extend(norms());
    cases.extend(norms_per_head());
    cases.extend(rotary());
    cases
}

/// Each activation, and the one it is most easily mistaken for.
fn activations() -> Vec<Case> {
    let names = [
        ("relu", Activation::Relu, Activation::ReluSquared),
        ("gelu", Activation::Gelu, Activation::GeluTanh),
        ("gelu_tanh", Activation::GeluTanh, Activation::Gelu),
        ("quick_gelu", Activation::QuickGelu, Activation::Gelu),
        ("silu", Activation::Silu, Activation::QuickGelu),
        ("relu_squared", Activation::ReluSquared, Activation::Relu),
        ("tanh", Activation::Tanh, Activation::Silu),
    ];
    let run = |activation: Activation| {
        move |probe: &mut Probe| {
            // From −3.01 to 2.99, so that the bend of ReLU is not hit; the two forms of GELU differ most near 2.
            let x =
                probe.values("x", [121], (0..121).map(|i| f64::from((f64::from(i) * 0.05 - 3.01) as f32)).collect());
            probe.output("y", activation.forward(x));
            Ok(())
        }
    };
    let case = |(name, activation, other): (&str, Activation, Activation)| {
        Case::new(Kind::Function, format!("activation/{name}"), run(activation)).without("kind", run(other))
    };
    names.into_iter().map(case).collect()
}

fn norms() -> Vec<Case> {
    let kinds = [
        ("layer", NormKind::Layer, NormKind::LayerNoBias),
        ("layer_no_bias", NormKind::LayerNoBias, NormKind::LayerNoAffine),
        ("layer_no_affine", NormKind::LayerNoAffine, NormKind::LayerNoBias),
        ("layer_plus_one", NormKind::LayerPlusOne, NormKind::LayerNoBias),
        ("rms", NormKind::Rms, NormKind::LayerNoBias),
        ("rms_plus_one", NormKind::RmsPlusOne, NormKind::LayerPlusOne),
    ];
    let run = |config: NormConfig, mean: f64| {
        move |probe: &mut Probe| {
            let values = draw("x", 2 * 5 * 20, 1.0).into_iter().map(|x| f64::from((x + mean) as f32)).collect();
            let x = probe.values("x", [2, 5, 20], values);
            let norm = probe.module("norm", config.init(20, probe.device()));
            probe.output("y", norm.forward(x));
            Ok(())
        }
    };
    let mut cases: Vec<Case> = kinds
        .into_iter()
        .map(|(name, kind, other)| {
            Case::new(Kind::Function, format!("norm/{name}"), run(NormConfig::new(kind), 0.7))
                .without("kind", run(NormConfig::new(other), 0.7))
        })
        .collect();
    // Numbers near 100 are known to 4e-6, and so is what is left when the mean is gone. A variance taken as the
    // difference of two large numbers would be off by 1e-3.
    let layer = NormConfig::new(NormKind::Layer);
    cases.push(Case::new(Kind::Function, "norm/layer, large mean", run(layer, 100.0)).with_tolerance(2e-5));
    for (name, kind) in [("layer", NormKind::Layer), ("rms", NormKind::Rms)] {
        let config = NormConfig::new(kind);
        let case = Case::new(Kind::Function, format!("norm/{name}, eps"), run(config.with_eps(0.3), 0.7));
        cases.push(case.without("eps", run(config, 0.7)));
    }
    cases
}

fn norms_per_head() -> Vec<Case> {
    let run = |kind: NormKind, per_head: bool| {
        move |probe: &mut Probe| {
            let x = probe.input("x", [2, 6, 5, 8]);
            let norm =
                probe.module("norm", NormConfig::new(kind).init(if per_head { 6 * 8 } else { 8 }, probe.device()));
            probe.output("y", if per_head { norm.forward_per_head(x) } else { norm.forward(x) });
            Ok(())
        }
    };
    let kinds = [("layer", NormKind::Layer), ("layer_no_bias", NormKind::LayerNoBias), ("rms", NormKind::Rms)];
    let case = |(name, kind): (&str, NormKind)| {
        Case::new(Kind::Function, format!("norm/{name}, own weight per head"), run(kind, true))
            .without("own weight", run(kind, false))
    };
    kinds.into_iter().map(case).collect()
}

fn rotary() -> Vec<Case> {
    // 16 positions of training, so that the positions below lie inside and outside.
    let scalings = [
        ("linear", RotaryScaling::Linear { factor: 4.0 }),
        ("dynamic", RotaryScaling::Dynamic { factor: 4.0, original_max_seq_len: 16 }),
        (
            "llama3",
            RotaryScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_seq_len: 16,
            },
        ),
        (
            "yarn",
            RotaryScaling::Yarn {
                factor: 4.0,
                original_max_seq_len: 16,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: None,
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            },
        ),
        (
            "longrope",
            RotaryScaling::Longrope {
                short_factor: vec![1.0, 1.1, 1.3, 1.6],
                long_factor: vec![1.0, 2.0, 3.5, 4.0],
                original_max_seq_len: 16,
                max_seq_len: 64,
                factor: None,
                attention_factor: None,
            },
        ),
    ];
    let plain = RotaryConfig::new(1000.0);
    let interleaved = plain.clone().with_style(RotaryStyle::Interleaved);
    let case = |name: &str, config: RotaryConfig, without: &str, other: Option<RotaryConfig>| {
        Case::new(Kind::Function, format!("rotary/{name}"), move |probe| rotate(Some(&config), probe))
            .without(without, move |probe| rotate(other.as_ref(), probe))
    };
    let mut cases = vec![
        case("half", plain.clone(), "rotation", None),
        case("interleaved", interleaved.clone(), "style", Some(plain.clone())),
        case("half, part of each head", plain.clone().with_fraction(0.5), "fraction", Some(plain.clone())),
        case("interleaved, part of each head", interleaved.clone().with_fraction(0.5), "fraction", Some(interleaved)),
    ];
    for (name, scaling) in scalings {
        cases.push(case(name, plain.clone().with_scaling(scaling), "scaling", Some(plain.clone())));
    }
    cases
}

/// Turns heads at the positions 3 to 7 of one sequence and 50 to 54 of another.
fn rotate(config: Option<&RotaryConfig>, probe: &mut Probe) -> Result<(), Error> {
    let x = probe.input("x", [2, 6, 5, 8]);
    let positions = [(3..8).collect(), (50..55).collect()];
    let y = match config {
        Some(config) => config.angles(8, &positions, probe.device()).apply(x),
        None => x,
    };
    probe.output("y", y);
    Ok(())
}
