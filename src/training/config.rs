//! The configuration of a training run, as it stands in a TOML or JSON file.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::optimizer::OptimizerConfig;
use super::schedule::ScheduleConfig;
use crate::adapters::LoraConfig;
use crate::config_reader::{self, FileConfig};
use crate::error::{ConfigError, Error, Faults};
use crate::model::{ModelConfig, ModelKind};

/// The tokenizer in which every byte is a token.
pub const BYTES: &str = "bytes";

/// What is trained.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(untagged)]
pub enum ModelSource {
    /// A preset, a configuration file, or a checkpoint whose weights training starts from.
    Named(String),
    /// A configuration, whose weights are drawn.
    Config(Box<ModelConfig>),
}

// An untagged enum would be read twice and would lose the names of faulty keys.
impl<'de> Deserialize<'de> for ModelSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Source;
        impl<'de> Visitor<'de> for Source {
            type Value = ModelSource;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a model's configuration, or the name of a preset, file or checkpoint")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ModelSource, E> {
                let name: StrDeserializer<E> = name.into_deserializer();
                String::deserialize(name).map(ModelSource::Named)
            }

            fn visit_map<A: MapAccess<'de>>(self, keys: A) -> Result<ModelSource, A::Error> {
                ModelConfig::deserialize(MapAccessDeserializer::new(keys)).map(Box::new).map(ModelSource::Config)
            }
        }
        deserializer.deserialize_any(Source)
    }
}

/// What the model is measured on while it is trained.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Share of the text, taken from its end, that is not trained on; 0 for none. Default: 0.1.
    pub share: f64,
    /// A file to measure on, in place of a share of the text. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Steps between two measurements. Default: 100.
    pub every: usize,
    /// Windows of text that are measured, from the beginning. Default: 64.
    pub windows: usize,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self { share: 0.1, file: None, every: 100, windows: 64 }
    }
}

/// When the state of a run is written.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints. Default: 100.
    pub every: usize,
    /// How many of the newest are kept. Default: 2.
    pub keep: usize,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 100, keep: 2 }
    }
}

/// Texts that the model writes while it is trained.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// Steps between two samples; 0 for none. Default: 0.
    pub every: usize,
    /// What is continued. Default: a line break.
    pub prompt: String,
    /// Tokens of a sample. Default: 100.
    pub tokens: usize,
    /// Divides logits before a token is drawn; 0 takes the most probable one. Default: 0.8.
    pub temperature: f64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { every: 0, prompt: "\n".to_owned(), tokens: 100, temperature: 0.8 }
    }
}

/// Configuration of a [`TrainingRun`](super::TrainingRun).
///
/// One optimizer step reads `batch · accumulation` windows of `seq` tokens. Nothing but this configuration, the text and
/// the kind of device decides on the numbers of a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// What is trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSource>,
    /// How text becomes tokens: `bytes`, or a `tokenizer.json` or the folder it is in. Default: that of the checkpoint
    /// that training starts from, otherwise `bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Optimizer steps. Default: 1000.
    pub steps: usize,
    /// Windows that are computed at once, over all devices. Default: 8.
    pub batch: usize,
    /// Tokens of a window. Default: 128.
    pub seq: usize,
    /// Batches whose gradients are averaged for one optimizer step. Default: 1.
    pub accumulation: usize,
    /// Whether activations that are cheap to compute are computed again for the backward pass, which saves memory.
    /// Default: no.
    pub recompute_activations: bool,
    /// Seed of the weights, of the order of windows and of dropout. Default: 0.
    pub seed: u64,
    /// Adapters that are trained in place of the model's own weights. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
    /// The learning rate over the steps.
    pub schedule: ScheduleConfig,
    /// The update of the weights.
    pub optimizer: OptimizerConfig,
    /// What the model is measured on.
    pub validation: ValidationConfig,
    /// When the state is written.
    pub checkpoints: CheckpointConfig,
    /// Texts that the model writes.
    pub samples: SampleConfig,
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self {
            model: None,
            tokenizer: None,
            steps: 1000,
            batch: 8,
            seq: 128,
            accumulation: 1,
            recompute_activations: false,
            seed: 0,
            lora: None,
            schedule: ScheduleConfig::default(),
            optimizer: OptimizerConfig::default(),
            validation: ValidationConfig::default(),
            checkpoints: CheckpointConfig::default(),
            samples: SampleConfig::default(),
        }
    }
}

impl burn::config::Config for TrainingConfig {}

impl TrainingConfig {
    /// The default configuration for a model.
    pub fn new(model: ModelConfig) -> Self {
        Self { model: Some(ModelSource::Config(Box::new(model))), ..Self::default() }
    }

    /// Reads a configuration file: TOML, or JSON where the name ends in `.json`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or with every fault of the configuration.
    pub fn load_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        config_reader::from_file(path.as_ref())
    }

    /// Reads a configuration from TOML text.
    ///
    /// # Errors
    ///
    /// With every fault of the configuration.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        config_reader::from_toml(text)
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// Every fault of every part, at once.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check_values(&mut faults);
        faults.into_result()
    }

    /// Fails where a model of this configuration cannot be trained so.
    ///
    /// # Errors
    ///
    /// Every fault, at once.
    pub fn validate_for(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check_values(&mut faults);
        self.check_model(model, &mut faults);
        faults.into_result()
    }

    /// Windows that one optimizer step reads.
    pub fn windows_per_step(&self) -> usize {
        self.batch * self.accumulation
    }

    fn check_model(&self, model: &ModelConfig, faults: &mut Faults) {
        faults.section("model", |faults| {
            model.check(faults);
            let is_decoder = model.kind == ModelKind::Decoder && model.encoder.is_none();
            faults.require(is_decoder, "kind", || "must be `decoder`, without an encoder, to learn to write".into());
            faults.require(model.embedding.is_some(), "embedding", || "is missing: text is read as token ids".into());
            faults.require(model.head.is_some(), "head", || "is missing: it gives the logits of the next token".into());
        });
        faults.require(self.seq <= model.max_seq_len, "seq", || {
            format!("must be at most the model's max_seq_len = {}, got {}", model.max_seq_len, self.seq)
        });
    }

    /// The first key, as a dotted path, in which `other` describes another run. When checkpoints are written, what is
    /// measured and which samples are drawn does not change the numbers of a run.
    pub(super) fn first_difference(&self, other: &Self) -> Option<String> {
        let numbers = |config: &Self| {
            let mut tree = serde_json::to_value(config).unwrap_or(Value::Null);
            if let Some(keys) = tree.as_object_mut() {
                keys.remove("checkpoints");
                keys.remove("samples");
            }
            if let Some(keys) = tree.get_mut("validation").and_then(Value::as_object_mut) {
                keys.remove("every");
                keys.remove("windows");
            }
            tree
        };
        first_difference("", &numbers(self), &numbers(other))
    }
}

fn first_difference(path: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let added = other.keys().filter(|key| !one.contains_key(*key));
            one.keys().chain(added).find_map(|key| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |keys: &serde_json::Map<String, Value>| keys.get(key).cloned().unwrap_or(Value::Null);
                first_difference(&path, &of(one), &of(other))
            })
        }
        _ => (one != other).then(|| path.to_owned()),
    }
}

impl FileConfig for TrainingConfig {
    fn stand_in() -> Value {
        let config = Self { tokenizer: Some(BYTES.to_owned()), ..Self::default() };
        let mut tree = serde_json::to_value(config).expect("a configuration can be written as JSON");
        tree["model"] = ModelConfig::stand_in();
        tree["validation"]["file"] = json!("validation.txt");
        tree["lora"] = json!(LoraConfig::default());
        tree
    }

    fn check_values(&self, faults: &mut Faults) {
        if let Some(ModelSource::Config(model)) = &self.model {
            self.check_model(model, faults);
        }
        for (value, key) in [
            (self.steps, "steps"),
            (self.batch, "batch"),
            (self.seq, "seq"),
            (self.accumulation, "accumulation"),
            (self.validation.every, "validation.every"),
            (self.validation.windows, "validation.windows"),
            (self.checkpoints.every, "checkpoints.every"),
            (self.checkpoints.keep, "checkpoints.keep"),
            (self.samples.tokens, "samples.tokens"),
        ] {
            faults.positive(value, key);
        }
        faults.section("schedule", |faults| self.schedule.check(self.steps, faults));
        faults.section("optimizer", |faults| self.optimizer.check(faults));
        if let Some(lora) = &self.lora {
            faults.section("lora", |faults| lora.check(faults));
        }
        faults.section("validation", |faults| faults.probability(self.validation.share, "share"));
        faults.section("samples", |faults| {
            let temperature = self.samples.temperature;
            faults.require(temperature.is_finite() && temperature >= 0.0, "temperature", || {
                format!("must be a number of at least 0, got {temperature}")
            });
            faults.require(self.samples.every == 0 || !self.samples.prompt.is_empty(), "prompt", || {
                "must not be empty: the model continues it".into()
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_their_keys() {
        let config = TrainingConfig::from_toml("model = \"gpt2\"\nsteps = 10").expect("it is valid");
        let differs = |other: &str| config.first_difference(&TrainingConfig::from_toml(other).expect("it is valid"));
        assert_eq!(differs("model = \"gpt2\"\nsteps = 10"), None);
        assert_eq!(differs("model = \"gpt2\"\nsteps = 11"), Some("steps".into()));
        assert_eq!(differs("model = \"gpt2\"\nsteps = 10\n[optimizer]\nbeta_1 = 0.5"), Some("optimizer.beta_1".into()));
        assert_eq!(differs("model = \"gpt2-xl\"\nsteps = 10"), Some("model".into()));
        assert_eq!(differs("model = \"gpt2\"\nsteps = 10\ntokenizer = \"bytes\""), Some("tokenizer".into()));
        assert_eq!(differs("model = \"gpt2\"\nsteps = 10\n[checkpoints]\nevery = 3\n[samples]\nevery = 1"), None);
    }

    #[test]
    fn every_fault_is_reported_with_its_key() {
        let text = "stepz = 3\nbatch = 0\n[model]\nkind = \"decoder\"\nd_model = 8\nn_layer = 1\nmax_seq_len = 4\n\
                    [model.attention]\nn_heads = 2\n[optimizer]\nbeta_1 = 1.5\n[schedule]\nlearning_rate = \"fast\"";
        let error = TrainingConfig::from_toml(text).expect_err("it has faults").to_string();
        for part in [
            "`stepz` is no key here, did you mean `steps`?",
            "`model.n_layer` is no key here, did you mean `n_layers`?",
            "`model.n_layers` is missing",
            "`schedule.learning_rate` has a wrong value",
            "`batch` must be at least 1",
            "`optimizer.beta_1`",
            "`model.head` is missing",
        ] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
}
