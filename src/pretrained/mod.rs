//! Published checkpoints: from a folder as the Hugging Face hub has it to a [`Transformer`].
//!
//! ```no_run
//! use burn::tensor::{Device, FloatDType};
//! use burnformer::pretrained::Checkpoint;
//!
//! # fn main() -> Result<(), burnformer::Error> {
//! let checkpoint = Checkpoint::open("models/smollm2-135m")?;
//! println!("{}", checkpoint.config().to_toml());
//! let (model, report) = checkpoint.load(&Device::default(), FloatDType::F32)?;
//! for tensor in report.unused {
//!     eprintln!("not used: {tensor}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A `config.json` becomes a [`ModelConfig`], in which nothing is left of the names of its family; the tensors of
//! `model.safetensors`, or of the files that `model.safetensors.index.json` lists, go where the family's table of names
//! says. Nothing is guessed: a key that could change the outputs and is not understood is an error, and so is a parameter
//! without its tensor.

mod adapt;
mod families;
mod hf_activation;
mod hf_config;
mod hf_keys;
mod hf_layers;
mod hf_rope;
mod lenient_json;
mod load;
mod rules;
mod safetensors_file;
mod weights;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType};

use self::families::Family;
use self::hf_config::HfConfig;
use self::load::Plan;
pub use self::load::{LoadProgress, LoadReport};
use self::rules::{BoundRules, Heads};
use self::weights::Weights;
use crate::error::{ConfigError, Error, Fault};
use crate::model::{ModelConfig, Transformer};

/// A folder with `config.json` and weights, opened and understood.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: ModelConfig,
    rules: BoundRules,
    weights: Weights,
}

impl Checkpoint {
    /// Opens the checkpoint in `folder`. Numbers are read when it is loaded.
    ///
    /// # Errors
    ///
    /// When the folder lacks a file, a file is broken, or the config describes something that this crate does not have.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            let problem =
                if folder.exists() { "is a file; give the folder it is in" } else { "there is no such folder" };
            return Err(Error::file(folder, problem));
        }
        let HfModel { mut config, family, architecture } = read_file(&folder.join("config.json"))?;
        let weights = Weights::open(folder)?;
        if config.n_layers > weights.len() {
            let (layers, tensors) = (config.n_layers, weights.len());
            let problem =
                format!("holds {tensors} tensors, too few for the {layers} layers that config.json speaks of");
            return Err(Error::weights(weights.path(), problem));
        }
        let rules = (family.rules)().bind(weights.names()).map_err(|tables| {
            let first: Vec<&str> = weights.names().take(3).collect();
            let problem = format!(
                "has no token table `{}`, so it is no {} checkpoint; its tensors begin with `{}`",
                tables.join("` or `"),
                family.model_types.join("/"),
                first.join("`, `")
            );
            Error::weights(weights.path(), problem)
        })?;
        adapt::to_tensors(&mut config, &rules, architecture.as_deref(), |name| weights.contains(name));
        Ok(Self { folder: folder.to_path_buf(), config, rules, weights })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model that the folder holds, heads and biases included that only its tensors tell of.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Which tensor goes where. Reads no numbers.
    ///
    /// # Errors
    ///
    /// When a parameter has no tensor, or one of another shape.
    pub fn report(&self, device: &Device) -> Result<LoadReport, Error> {
        Ok(self.plan(&self.config.init(device))?.into_report())
    }

    /// Builds the model on `device`, its parameters of type `dtype`, whatever type the file has.
    ///
    /// # Errors
    ///
    /// When a parameter has no tensor, one of another shape, or is larger than the device can hold in one piece, or when
    /// the device cannot compute with `dtype`.
    pub fn load(&self, device: &Device, dtype: FloatDType) -> Result<(Transformer, LoadReport), Error> {
        self.load_with(device, dtype, &mut |_| ())
    }

    /// As [`load`](Self::load); `progress` is called after each parameter.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_with(
        &self,
        device: &Device,
        dtype: FloatDType,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Transformer, LoadReport), Error> {
        if !device.supports_dtype(dtype) {
            let problem = format!("does not compute with {dtype:?} numbers; load the weights as F32");
            return Err(Error::backend(format!("{device:?}"), problem));
        }
        let model = self.config.init(device);
        model.check_fits(device)?;
        self.plan(&model)?.fill(model, &self.weights, device, dtype, progress)
    }

    fn plan(&self, model: &Transformer) -> Result<Plan, Error> {
        let heads = Heads::of(&self.config.attention());
        Plan::new(model, &self.rules, heads, &self.weights).check(&self.weights)
    }
}

/// Reads a Hugging Face `config.json` without its weights.
///
/// Which heads the model has then follows from the class that the file names; where it names none, the model has all
/// that its family can have.
///
/// # Errors
///
/// When the file cannot be read, or with every fault of the configuration.
pub fn read_config(path: impl AsRef<Path>) -> Result<ModelConfig, Error> {
    let HfModel { mut config, architecture, .. } = read_file(path.as_ref())?;
    adapt::to_architecture(&mut config, architecture.as_deref());
    Ok(config)
}

/// The `model_type`s that can be loaded.
pub fn supported_model_types() -> impl Iterator<Item = &'static str> {
    families::model_types()
}

/// What a `config.json` says.
struct HfModel {
    config: ModelConfig,
    family: &'static Family,
    architecture: Option<String>,
}

fn read_file(path: &Path) -> Result<HfModel, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
    let text = String::from_utf8(bytes).map_err(|_| Error::file(path, "is not a text file"))?;
    Ok(translate(&text).map_err(|error| error.at(path.display()))?)
}

fn translate(text: &str) -> Result<HfModel, ConfigError> {
    let mut hf = HfConfig::parse(text)?;
    let model_type = hf.optional_text("model_type");
    let family = families::find(model_type.as_deref()).map_err(|problem| {
        let fault = Fault { key: "model_type".to_owned(), problem };
        ConfigError { origin: String::new(), faults: vec![fault] }
    })?;
    let architecture = hf.architecture();
    hf.refuse_flag("add_cross_attention", "cross-attention in this family");
    let mut config = (family.config)(&mut hf);
    if config.encoder.is_none() {
        hf.refuse_flag("is_encoder_decoder", "a model of encoder and decoder in this family");
    }
    hf.finish(family.harmless)?;
    adapt::tidy(&mut config);
    config.validate()?;
    Ok(HfModel { config, family, architecture })
}
