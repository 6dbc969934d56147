//! What each published family of models means by the keys of its `config.json` and the names of its tensors.
//!
//! A family is data: a function that reads the keys into a [`ModelConfig`], with every head and pooler that the family
//! can have, and a table of names. The mathematics is in the modules that the configuration describes.
//!
//! To add one: find the family here that it differs least from, write the difference, list it in [`FAMILIES`], and add a
//! tiny checkpoint with reference outputs to the fixtures. A part that no configuration can describe comes first, in the
//! module it belongs to.

mod bert;
mod bloom;
mod cohere;
mod decoder;
mod distilbert;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod llama;
mod mixture;
mod mpt;
mod nemotron;
mod olmo;
mod opt;
mod phi;
mod plain;
mod qwen;
mod stablelm;
mod starcoder2;
mod t5;
mod vit;

use super::hf_config::HfConfig;
use super::rules::Rules;
use crate::error::nearest;
use crate::model::ModelConfig;

/// A family of models.
pub(super) struct Family {
    /// The `model_type`s of its configs.
    pub model_types: &'static [&'static str],
    /// Reads a config.
    pub config: fn(&mut HfConfig) -> ModelConfig,
    /// Names its tensors.
    pub rules: fn() -> Rules,
    /// Keys that its own code does not compute with, beside those that no model computes with.
    pub harmless: &'static [&'static str],
}

const FAMILIES: &[&Family] = &[
    &bert::BERT,
    &bert::ROBERTA,
    &bloom::BLOOM,
    &cohere::COHERE,
    &cohere::COHERE2,
    &distilbert::DISTILBERT,
    &falcon::FALCON,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gpt2::GPT2,
    &gpt_neox::GPT_NEOX,
    &llama::GRANITE,
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::SMOLLM3,
    &mixture::MIXTRAL,
    &mixture::QWEN2_MOE,
    &mixture::QWEN3_MOE,
    &mpt::MPT,
    &nemotron::NEMOTRON,
    &olmo::OLMO,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &opt::OPT,
    &phi::PHI,
    &phi::PHI3,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &stablelm::STABLELM,
    &starcoder2::STARCODER2,
    &t5::T5,
    &vit::VIT,
];

/// Families that exist and are not read, for which no other one should be suggested.
const NOT_YET: &[&str] = &[
    "albert",
    "bart",
    "deepseek_v2",
    "deepseek_v3",
    "electra",
    "gemma3n_text",
    "glm",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_oss",
    "gptj",
    "llama4",
    "llama4_text",
    "mamba",
    "modernbert",
    "mt5",
    "olmoe",
    "phimoe",
    "qwen",
    "qwen3_next",
    "whisper",
];

/// The family of a `model_type`, or what is wrong with it.
pub(super) fn find(model_type: Option<&str>) -> Result<&'static Family, String> {
    let supported = || model_types().collect::<Vec<_>>().join(", ");
    let Some(model_type) = model_type else {
        return Err(format!("is missing; it must be one of {}", supported()));
    };
    if let Some(family) = FAMILIES.iter().find(|family| family.model_types.contains(&model_type)) {
        return Ok(family);
    }
    let advice = match nearest(model_type, model_types()) {
        Some(near) if !NOT_YET.contains(&model_type) => format!(", did you mean `{near}`?"),
        _ => String::new(),
    };
    Err(format!("`{model_type}` is not supported{advice}; supported are {}", supported()))
}

/// Every `model_type` that is supported.
pub(super) fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types).copied()
}
