//! What a MODEL argument stands for: a preset, a configuration file, a folder with a checkpoint or a GGUF file.

use std::path::{Path, PathBuf};

use burn::tensor::FloatDType;
use burnformer::adapters::merge_adapters;
use burnformer::backend::{Backend, DeviceName, largest_buffer};
use burnformer::model::{ModelConfig, Transformer, preset_names};
use burnformer::pretrained::{Checkpoint, LoadProgress, is_gguf_file, load_adapters, read_config};
use burnformer::{Error, cast_parameters};

use crate::arguments::{Show, Target};
use crate::output;

/// A model that was named on the command line.
pub enum ModelArgument {
    /// A configuration without weights.
    Config(Box<ModelConfig>),
    /// A folder with weights, or a GGUF file.
    Checkpoint(PathBuf, Box<Checkpoint>),
}

impl ModelArgument {
    /// Finds out what `text` names. A preset comes before a file of the same name.
    pub fn resolve(text: &str) -> Result<Self, Error> {
        let path = Path::new(text);
        let looks_like_path = text.contains(['/', '\\']) || text.ends_with(".toml") || text.ends_with(".json");
        if preset_names().any(|name| name == text) {
            Ok(Self::Config(Box::new(ModelConfig::preset(text)?)))
        } else if path.is_dir() || is_gguf_file(path) {
            Ok(Self::Checkpoint(path.to_owned(), Box::new(Checkpoint::open(path)?)))
        } else if path.is_file() {
            config_file(path).map(|config| Self::Config(Box::new(config)))
        } else if looks_like_path || path.exists() {
            Err(Error::file(path, "there is no such file or folder"))
        } else {
            // Says which name is the nearest.
            Ok(Self::Config(Box::new(ModelConfig::preset(text)?)))
        }
    }

    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Config(config) => config,
            Self::Checkpoint(_, checkpoint) => checkpoint.config(),
        }
    }

    /// The folder of a checkpoint, or its GGUF file.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Config(_) => None,
            Self::Checkpoint(folder, _) => Some(folder),
        }
    }

    /// The checkpoint, where it is one.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Self::Config(_) => None,
            Self::Checkpoint(_, checkpoint) => Some(checkpoint),
        }
    }

    /// The checkpoint, for commands that need trained weights.
    pub fn trained(&self) -> Result<&Checkpoint, Error> {
        match self {
            Self::Config(_) => Err(Error::Input("the model has no weights; name a checkpoint folder".into())),
            Self::Checkpoint(_, checkpoint) => Ok(checkpoint),
        }
    }

    /// Builds the model, with the checkpoint's weights or with random ones.
    pub fn build(&self, target: &Target, seed: u64) -> Result<Transformer, Error> {
        self.build_with(target, seed, &mut |_| ())
    }

    /// As [`build`](Self::build); `progress` is called while a checkpoint is loaded.
    pub fn build_with(
        &self,
        target: &Target,
        seed: u64,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Transformer, Error> {
        let bytes = match self {
            Self::Config(config) => config.n_parameters() as f64 * bytes_of(target.dtype),
            Self::Checkpoint(_, checkpoint) => checkpoint.loaded_bytes(&target.device, target.dtype)? as f64,
        };
        check_memory(bytes, "the parameters")?;
        match self {
            Self::Config(config) => random_weights(config, target, seed),
            Self::Checkpoint(_, checkpoint) => {
                let (model, report) = checkpoint.load_with(&target.device, target.dtype, progress)?;
                warn_of(&report.not_finite, target.quiet);
                Ok(model)
            }
        }
    }

    /// `model`, built from this argument, with the adapters in a folder merged into its weights, if one is named.
    pub fn with_adapters(&self, model: Transformer, folder: Option<&Path>) -> Result<Transformer, Error> {
        let adapted = match (folder, self) {
            (None, _) => return Ok(model),
            (Some(folder), Self::Config(_)) => load_adapters(model, folder),
            (Some(folder), Self::Checkpoint(_, checkpoint)) => checkpoint.load_adapters(model, folder),
        };
        adapted.map(merge_adapters)
    }

    /// Says where the weights of [`build`](Self::build) came from. To be called once everything has gone well, as an
    /// error is to stand alone.
    pub fn note_weights(&self, seed: u64, show: &Show) {
        if matches!(self, Self::Config(_)) {
            show.note(format!("weights: random, seed {seed}"));
        }
    }

    /// Fails where the outputs of a call would not fit into memory or into a buffer of the device.
    pub fn check_call(&self, [batch, seq]: [usize; 2], target: &Target) -> Result<(), Error> {
        let config = self.config();
        let width = if config.head.is_some() { config.vocab_size() } else { config.d_model };
        let rows = batch as f64 * seq as f64 * bytes_of(target.dtype);
        let output = rows * width as f64;
        // A lower bound: the outputs, a copy on the host, and the residual stream with one more of its width.
        check_memory(2.0 * output + 2.0 * rows * config.d_model as f64, "the outputs")?;
        match largest_buffer(&target.device) {
            Some(limit) if output > limit as f64 => Err(Error::Input(format!(
                "the outputs need {} and the largest buffer of `{}` is {}; use fewer tokens or a CPU backend",
                gib(output),
                target.name,
                gib(limit as f64)
            ))),
            _ => Ok(()),
        }
    }

    /// Fails where the attention weights of one layer on `seq` tokens would not fit into memory.
    pub fn check_weights(&self, seq: usize) -> Result<(), Error> {
        // Scores, weights, a copy on the host, and one head in 64 bits.
        let square = seq as f64 * seq as f64;
        check_memory(square * (12.0 * self.config().attention.n_heads as f64 + 8.0), "the attention weights of a layer")
    }
}

/// Names the tensors that will spoil every output.
pub fn warn_of(not_finite: &[String], quiet: bool) {
    for name in not_finite.iter().filter(|_| !quiet) {
        output::to_stderr(&format!("warning: tensor `{name}` holds numbers that are NaN or infinite"));
    }
}

/// A configuration file, of ours or of the Hugging Face hub.
fn config_file(path: &Path) -> Result<ModelConfig, Error> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "json" => {
            let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
            // Those of the hub name their family so, and ours have no such key.
            if text.contains("\"model_type\"") { read_config(path) } else { ModelConfig::load_file(path) }
        }
        "toml" => ModelConfig::load_file(path),
        _ => Err(Error::file(path, "is neither a configuration (.toml, .json) nor a folder with a checkpoint")),
    }
}

/// Draws weights. They are drawn on one backend and moved, so that a seed means the same model everywhere.
fn random_weights(config: &ModelConfig, target: &Target, seed: u64) -> Result<Transformer, Error> {
    let source = match Backend::Flex.is_compiled() {
        true => DeviceName::new(Backend::Flex).open()?,
        false => target.device.clone(),
    };
    source.seed(seed);
    let model = config.init(&source);
    model.check_fits(&target.device)?;
    Ok(burn::module::Module::to_device(cast_parameters(model, target.dtype), &target.device))
}

/// Bytes per number. Weights are 32-bit numbers before they are cast.
fn bytes_of(dtype: FloatDType) -> f64 {
    if dtype == FloatDType::F64 { 8.0 } else { 4.0 }
}

/// Fails where `needed` bytes are more than this machine has free. (Elsewhere than on Linux it is not known.)
fn check_memory(needed: f64, what: &str) -> Result<(), Error> {
    match available_memory() {
        Some(available) if needed > available => {
            Err(Error::Input(format!("{what} need {} of memory and {} are available", gib(needed), gib(available))))
        }
        _ => Ok(()),
    }
}

fn available_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn gib(bytes: f64) -> String {
    let gib = bytes / f64::from(1 << 30);
    if gib < 1.0 { format!("{:.0} MiB", gib * 1024.0) } else { format!("{gib:.1} GiB") }
}
