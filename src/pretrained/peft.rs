//! Adapters as the library PEFT saves them: `adapter_config.json`, and `adapter_model.safetensors` with the factors in
//! PyTorch's layout under the names that the family has for the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::adapter_folder::Factors;
use super::native::Outgoings;
use super::numbers::Cut;
use super::output_folder::{Existing, OutputFolder};
use super::rules::{BoundRules, Heads};
use super::tensor_file::bytes_of;
use super::tensor_writer::{Fetched, Outgoing, Watch, write_safetensors};
use super::weights::Weights;
use super::{Checkpoint, read_text, write_json};
use crate::adapters::{LoraConfig, Projection, factor_paths, has_adapters, is_factor};
use crate::error::{ConfigError, Error, Fault};
use crate::model::Transformer;

/// The configuration in a folder.
pub(super) const PEFT_CONFIG: &str = "adapter_config.json";
/// The factors in a folder.
const FACTORS: &str = "adapter_model.safetensors";
/// What stands in front of the names of a family.
const PREFIX: &str = "base_model.model.";

/// Keys that say nothing about what is computed, or what the tensors say themselves.
const HARMLESS: [&str; 16] = [
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    /// Whether the factor is alpha / √r in place of alpha / r.
    #[serde(default)]
    use_rslora: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl PeftConfig {
    fn read(text: &str) -> Result<Self, ConfigError> {
        let faulty = |faults: Vec<Fault>| ConfigError { origin: String::new(), faults };
        let fault = |key: &str, problem: String| Fault { key: key.to_owned(), problem };
        let config: Self = serde_json::from_str(text)
            .map_err(|error| faulty(vec![fault("", format!("does not describe adapters of PEFT: {error}"))]))?;
        let mut faults = Vec::new();
        if config.peft_type != "LORA" {
            faults.push(fault("peft_type", format!("is `{}`; only LORA is read", config.peft_type)));
        }
        let others = config.others.iter().filter(|(key, value)| !HARMLESS.contains(&key.as_str()) && !is_off(value));
        faults.extend(others.map(|(key, value)| fault(key, format!("= {value} is not supported"))));
        if faults.is_empty() { Ok(config) } else { Err(faulty(faults)) }
    }

    fn lora(&self, projections: Vec<Projection>) -> Result<LoraConfig, ConfigError> {
        let alpha = if self.use_rslora { self.lora_alpha * (self.r as f64).sqrt() } else { self.lora_alpha };
        let lora = LoraConfig { rank: self.r, alpha, dropout: self.lora_dropout, projections };
        lora.validate().map(|()| lora)
    }
}

/// Whether a value switches a key off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none",
        Value::Array(entries) => entries.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// The name of the module that holds the weight `path`, where it is a matrix of its own in PyTorch's layout: of several
/// that it may have one that `is_there`, or the likeliest.
fn stem(
    rules: &BoundRules,
    heads: Heads,
    path: &str,
    shape: [usize; 2],
    is_there: impl Fn(&str) -> bool,
) -> Option<String> {
    let source = rules.source(path, &shape, heads, |_| true)?;
    let is_whole = source.tensors.len() == 1 && source.ranges.is_empty() && source.transpose;
    let stems: Vec<String> =
        rules.names(path).iter().filter_map(|name| name.strip_suffix(".weight")).map(str::to_owned).collect();
    let found = stems.iter().find(|stem| is_there(stem)).or(stems.first()).cloned();
    found.filter(|_| is_whole)
}

/// The names of the factors of a module.
fn factor_names(stem: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("{PREFIX}{stem}.lora_{factor}.weight"))
}

impl Checkpoint {
    /// Writes the adapters of `model`, which `lora` has made, to `folder` as the library PEFT saves them, so that it loads
    /// them for this checkpoint. `model` has been loaded from this checkpoint. The folder appears when everything is in it,
    /// and not before.
    ///
    /// # Errors
    ///
    /// When the model has no adapters, a weight that has one is no matrix of its own in the files of its family, the folder
    /// is there and is to be kept, or something cannot be written.
    pub fn save_peft_adapters(
        &self,
        model: &Transformer,
        lora: &LoraConfig,
        folder: impl AsRef<Path>,
        existing: Existing,
    ) -> Result<(), Error> {
        if !has_adapters(model) {
            return Err(Error::Input("the model has no adapters to save".into()));
        }
        let heads = Heads::of(&self.config.attention());
        let (mut names, mut targets) = (BTreeMap::new(), BTreeSet::new());
        for (weight, shape) in lora.adapted(&model.parameters())? {
            let is_there = |stem: &str| self.weights.contains(&format!("{stem}.weight"));
            let stem = stem(&self.rules, heads, weight, shape, is_there).ok_or_else(|| {
                Error::Input(format!("`{weight}` is no matrix of its own in the files of this model, as PEFT needs it"))
            })?;
            names.extend(factor_paths(weight).into_iter().zip(factor_names(&stem)));
            targets.insert(stem.rsplit('.').next().unwrap_or(&stem).to_owned());
        }
        let config = json!({
            "peft_type": "LORA",
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "target_modules": targets,
            "bias": "none",
            "inference_mode": true,
        });
        let output = OutputFolder::create(folder.as_ref(), existing)?;
        write_json(&output.path().join(PEFT_CONFIG), &config)?;
        let factors = Outgoings::of(model, is_factor).into_iter();
        let factors = factors.filter_map(|factor| names.remove(&factor.name).map(|name| turned(factor, name)));
        let (factors, watch): (Vec<_>, Watch) = (factors.collect(), Arc::new(|_| ()));
        write_safetensors(&output.path().join(FACTORS), &factors, &[("format", "pt")], watch)?;
        output.finish()
    }
}

/// A matrix with rows and columns exchanged, under another name.
fn turned(matrix: Outgoing, name: String) -> Outgoing {
    let (dtype, shape) = (matrix.dtype, matrix.shape.iter().rev().copied().collect());
    let fetch = Box::new(move || {
        let Fetched { bytes, is_finite } = (matrix.fetch)()?;
        let numbers: Vec<&[u8]> = bytes.chunks_exact(bytes_of(dtype)).collect();
        let columns = matrix.shape.last().copied().unwrap_or(1);
        let column = |column: usize| numbers.iter().skip(column).step_by(columns).copied();
        Ok(Fetched { bytes: (0..columns).flat_map(column).flatten().copied().collect(), is_finite })
    });
    Outgoing { name, dtype, shape, fetch }
}

/// Reads the adapters in `folder` for a model with these `parameters`, whose weights have the names of `rules`.
pub(super) fn read(
    folder: &Path,
    parameters: &[(String, Vec<usize>)],
    rules: &BoundRules,
    heads: Heads,
) -> Result<Factors, Error> {
    let config_path = folder.join(PEFT_CONFIG);
    let at_config = |error: ConfigError| error.at(config_path.display());
    let config = PeftConfig::read(&read_text(&config_path)?).map_err(at_config)?;
    let path = folder.join(FACTORS);
    let weights = Weights::open_file(&path)?;
    let fault = |problem: String| Error::weights(&path, problem);

    // The projections that some weight has a factor of must have all of theirs.
    let names_of = |weight: &str, shape: [usize; 2]| {
        let source = rules.source(weight, &shape, heads, |_| true)?;
        let is_whole = source.tensors.len() == 1 && source.ranges.is_empty() && source.transpose;
        let stems = rules.names(weight).into_iter().filter(|_| is_whole);
        let names = stems
            .map(|name| name.trim_end_matches(".weight").to_owned())
            .map(|stem| [format!("{PREFIX}{stem}.lora_A.weight"), format!("{PREFIX}{stem}.lora_B.weight")]);
        let names: Vec<[String; 2]> = names.collect();
        names.iter().find(|[a, _]| weights.contains(a)).or(names.first()).cloned()
    };
    let of = |projection: Projection| {
        let lora = LoraConfig::default().with_projections(vec![projection]);
        let adapted = lora.adapted(parameters).unwrap_or_default();
        let named = adapted.into_iter().map(|(weight, shape)| (weight, shape, names_of(weight, shape)));
        named.collect::<Vec<_>>()
    };
    let (mut values, mut used, mut projections) = (BTreeMap::new(), Vec::new(), Vec::new());
    for projection in Projection::ALL {
        let weights_of = of(projection);
        let is_there = |names: &Option<[String; 2]>| names.as_ref().is_some_and(|[a, _]| weights.contains(a));
        if !weights_of.iter().any(|(_, _, names)| is_there(names)) {
            continue;
        }
        projections.push(projection);
        for (weight, [d_in, d_out], names) in weights_of {
            let names = names.ok_or_else(|| fault(format!("has no tensors for `{weight}`")))?;
            let expected = [[config.r, d_in], [d_out, config.r]];
            for ((name, expected), factor) in names.into_iter().zip(expected).zip(factor_paths(weight)) {
                values.insert(factor, weights.read_factor(&name, expected, Cut { transpose: true, ..Cut::ALL })?);
                used.push(name);
            }
        }
    }
    match weights.names().find(|name| !used.iter().any(|used| used == name)) {
        Some(name) => Err(fault(format!("tensor `{name}` belongs to no weight of this model that can have adapters"))),
        None => Ok(Factors::new(config.lora(projections).map_err(at_config)?, values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_change_the_outputs_is_refused() {
        let read = |rest: &str| {
            let text = format!(r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"{rest}}}"#);
            PeftConfig::read(&text).map_err(|error| error.to_string())
        };
        let scale = |rest: &str| read(rest).unwrap().lora(vec![Projection::Key]).unwrap().scale();
        assert_eq!(scale(r#", "use_dora": false, "rank_pattern": {}, "bias": "none", "modules_to_save": null"#), 2.0);
        assert_eq!(scale(r#", "use_rslora": true"#), 4.0);
        for (rest, problem) in [
            (r#", "use_dora": true"#, "`use_dora` = true is not supported"),
            (r#", "bias": "all""#, "`bias` = \"all\" is not supported"),
            (r#", "rank_pattern": {"q_proj": 2}"#, "`rank_pattern`"),
            (r#", "modules_to_save": ["lm_head"]"#, "`modules_to_save`"),
            (r#", "fan_in_fan_out": true"#, "`fan_in_fan_out`"),
        ] {
            let error = read(rest).err().unwrap_or_default();
            assert!(error.contains(problem), "{rest}: {error}");
        }
        let error = PeftConfig::read(r#"{"peft_type": "IA3", "r": 1, "lora_alpha": 1}"#).err().unwrap().to_string();
        assert!(error.contains("`peft_type` is `IA3`; only LORA is read"), "{error}");
        assert!(PeftConfig::read("{}").err().unwrap().to_string().contains("adapters of PEFT"));
    }
}
