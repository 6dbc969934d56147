//! The names of activation functions in Hugging Face configs.

use super::hf_config::HfConfig;
use crate::activation::Activation;
use crate::error::nearest;

/// Each name and what it stands for. The tanh forms of GELU are equal to 2.4e-7 among themselves.
const NAMES: &[(&str, Activation)] = &[
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
    ("tanh", Activation::Tanh),
];

/// The activation under `key`, or `default` where the file is silent.
pub(super) fn activation(hf: &mut HfConfig, key: &str, default: Activation) -> Activation {
    let Some(name) = hf.optional_text(key) else {
        return default;
    };
    named(&name).unwrap_or_else(|problem| {
        hf.fault(key, problem);
        default
    })
}

/// The activation of a name, or what is wrong with the name.
pub(super) fn named(name: &str) -> Result<Activation, String> {
    let known = || NAMES.iter().map(|(name, _)| *name);
    match NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, activation)) => Ok(*activation),
        None => {
            let advice = match nearest(name, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known are {}", known().collect::<Vec<_>>().join(", ")),
            };
            Err(format!("`{name}` is not known; {advice}"))
        }
    }
}
