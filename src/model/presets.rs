//! Configurations that come with the crate, by name.

use super::config::ModelConfig;
use crate::error::{Error, nearest};

macro_rules! presets {
    ($($name:literal),+ $(,)?) => {
        const PRESETS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../config/", $name, ".toml")))),+];
    };
}

presets![
    "attention-block",
    "classic-block",
    "encoder-layer",
    "transformer-base-encoder",
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt3-175b",
    "bert-base",
    "bert-large",
    "minilm-l6",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.2-1b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "gemma-2-2b",
    "gemma-3-1b",
    "olmo-2-1b",
    "phi-2",
    "phi-3-mini",
    "pythia-160m",
    "falcon-7b",
    "bloom-560m",
    "mpt-7b",
    "opt-125m",
    "stablelm-3b",
    "starcoder2-3b",
    "smollm2-135m",
    "t5-small",
    "vit-base",
];

/// The names of all presets.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The TOML text of a preset, as it stands in the folder `config/`.
///
/// # Errors
///
/// When there is no preset of that name; the nearest one is suggested.
pub fn preset_text(name: &str) -> Result<&'static str, Error> {
    if let Some((_, text)) = PRESETS.iter().find(|(preset, _)| *preset == name) {
        return Ok(text);
    }
    let advice = match nearest(name, preset_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `burnformer config list`".into(),
    };
    Err(Error::Input(format!("there is no preset or file named `{name}`; {advice}")))
}

impl ModelConfig {
    /// The preset `name`.
    ///
    /// # Errors
    ///
    /// When there is no preset of that name.
    pub fn preset(name: &str) -> Result<Self, Error> {
        Ok(Self::from_toml(preset_text(name)?).map_err(|error| error.at(name))?)
    }
}
