//! Published checkpoints: from a folder as the Hugging Face hub has it, or a GGUF file, to a [`Transformer`].
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
//!
//! Weights are read from safetensors, from what PyTorch writes (`.bin`, `.pt`, `.pth`), and from Burn's own packs. A folder
//! that this crate has written itself, with [`save_model`] or [`Checkpoint::convert`], is opened like any other. The header
//! of a GGUF file is read as if it were the `config.json` of its family, and its tensors as if they had the names and the
//! layout of its checkpoints.

mod adapt;
mod adapter_folder;
mod convert;
mod families;
mod gguf;
mod hf_activation;
mod hf_config;
mod hf_keys;
mod hf_layers;
mod hf_rope;
mod inspect;
mod labels;
mod lenient_json;
mod load;
mod mapped_file;
mod native;
mod numbers;
mod output_folder;
mod pack_file;
mod peft;
mod pytorch_file;
mod rules;
mod safetensors_file;
mod task_heads;
mod tensor_file;
mod tensor_writer;
mod text_files;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, FloatDType};
use serde::Serialize;

pub use self::adapter_folder::{load_adapters, read_adapter_config, save_adapters};
pub use self::convert::{ConvertOptions, Converted, Format};
use self::families::Family;
use self::gguf::GgufFile;
use self::hf_config::HfConfig;
pub use self::inspect::{Inspection, Placement};
use self::labels::TaskHints;
pub use self::labels::{Scoring, Task, TaskKind};
use self::load::Plan;
pub use self::load::{LoadProgress, LoadReport};
pub use self::native::{Container, save_model};
pub use self::output_folder::Existing;
use self::rules::{BoundRules, Heads};
pub use self::tensor_writer::WriteProgress;
use self::weights::Weights;
use crate::error::{ConfigError, Error, Fault};
use crate::model::{ModelConfig, Transformer};
#[cfg(feature = "tokenizer")]
use crate::tokenizer::TokenizerParts;

/// The configuration in a folder.
const CONFIG: &str = "config.json";
/// The configuration in a folder of adapters.
const ADAPTER_CONFIG: &str = "adapter.json";

/// A folder with `config.json` and weights, or a GGUF file, opened and understood.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    origin: Origin,
    config: ModelConfig,
    rules: BoundRules,
    weights: Weights,
    task: Option<Task>,
}

/// Whose form a checkpoint has.
#[derive(Debug)]
enum Origin {
    /// That of the Hugging Face hub, with the text of its `config.json`.
    Hub {
        /// The text.
        config: String,
    },
    /// A GGUF file, with the text of the `config.json` that it stands for.
    Gguf {
        /// The text.
        config: String,
        /// The file.
        file: Arc<GgufFile>,
    },
    /// This crate's own.
    Native,
}

impl Checkpoint {
    /// Opens the checkpoint in a folder, or a GGUF file. Numbers are read when it is loaded.
    ///
    /// # Errors
    ///
    /// When the folder lacks a file, a file is broken, or the config describes something that this crate does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = path.as_ref();
        if let Some(file) = gguf::find(folder) {
            return Self::open_gguf(folder, &file);
        }
        if !folder.is_dir() {
            let problem =
                if folder.exists() { "is a file; give the folder it is in" } else { "there is no such folder" };
            return Err(Error::file(folder, problem));
        }
        let config_path = folder.join(CONFIG);
        let text = read_text(&config_path)?;
        match native::is_native(&text) {
            true => Self::open_native(folder, &config_path),
            false => Self::open_hub(folder, &config_path, text),
        }
    }

    fn open_native(folder: &Path, config_path: &Path) -> Result<Self, Error> {
        let config = ModelConfig::load_file(config_path)?;
        let weights = Weights::open(folder)?;
        check_depth(&config, &weights)?;
        let rules = BoundRules::native();
        let task = config.task.as_ref().map(Task::unnamed);
        Ok(Self { path: folder.to_path_buf(), origin: Origin::Native, config, rules, weights, task })
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self, Error> {
        let file = Arc::new(GgufFile::open(file)?);
        let config = file.config();
        let tensors = file.tensors().collect();
        let weights = Weights::single(file.path(), (file.clone(), tensors));
        let read = read_hub_config(&config, file.path())?;
        Self::understand(path, read, weights, Origin::Gguf { config, file })
    }

    fn open_hub(folder: &Path, config_path: &Path, text: String) -> Result<Self, Error> {
        let read = read_hub_config(&text, config_path)?;
        Self::understand(folder, read, Weights::open(folder)?, Origin::Hub { config: text })
    }

    /// Fits what a configuration says to the tensors that are there.
    fn understand(path: &Path, read: HfModel, weights: Weights, origin: Origin) -> Result<Self, Error> {
        let HfModel { mut config, family, hints } = read;
        check_depth(&config, &weights)?;
        let mut rules = (family.rules)().bind(weights.names()).map_err(|tables| {
            let first: Vec<&str> = weights.names().take(3).collect();
            let problem = format!(
                "has no tensor `{}`, so it is no {} checkpoint; its tensors begin with `{}`",
                tables.join("` or `"),
                family.model_types.join("/"),
                first.join("`, `")
            );
            Error::weights(weights.path(), problem)
        })?;
        let is_copy = config.head.as_ref().is_some_and(|head| head.tied) && head_is_copy(&rules, &weights)?;
        adapt::to_tensors(&mut config, &rules, hints.architecture.as_deref(), is_copy, |name| weights.contains(name));
        let shape_of = |name: &str| weights.tensor(name).map(|tensor| tensor.shape.clone());
        let task = task_heads::to_tensors(&mut config, &mut rules, &hints, shape_of)
            .map_err(|problem| Error::weights(weights.path(), problem))?;
        // The number of labels came from the file.
        config.validate().map_err(|error| error.at(weights.path().display()))?;
        Ok(Self { path: path.to_path_buf(), origin, config, rules, weights, task })
    }

    /// The folder, or the GGUF file.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The model, heads and biases included that only its tensors tell of.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What the scores of the model's task head mean, if it has one.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// The tokenizer with its special tokens, chat template and stop ids; `None` where the checkpoint has none.
    ///
    /// # Errors
    ///
    /// When a file is broken, or describes a tokenizer that is not supported.
    #[cfg(feature = "tokenizer")]
    pub fn tokenizer(&self) -> Result<Option<TokenizerParts>, Error> {
        match &self.origin {
            Origin::Gguf { file, .. } => file.tokenizer(),
            Origin::Hub { .. } | Origin::Native => text_files::tokenizer(&self.path),
        }
    }

    /// The token ids that end a text, as far as the checkpoint names them; those of its tokenizer may be more.
    ///
    /// # Errors
    ///
    /// When a file is broken.
    pub fn stop_ids(&self) -> Result<Vec<u32>, Error> {
        match &self.origin {
            Origin::Gguf { config, .. } => text_files::stop_ids_in(&self.path, config),
            Origin::Hub { .. } | Origin::Native => text_files::stop_ids(&self.path),
        }
    }

    /// The token id that the decoder of a model with an encoder begins with, where the checkpoint names it.
    ///
    /// # Errors
    ///
    /// When a file is broken.
    pub fn start_id(&self) -> Result<Option<u32>, Error> {
        match &self.origin {
            // No architecture that is read from these files has an encoder and a decoder.
            Origin::Gguf { .. } => Ok(None),
            Origin::Hub { .. } | Origin::Native => text_files::start_id(&self.path),
        }
    }

    /// Which tensor goes where. Reads no numbers.
    ///
    /// # Errors
    ///
    /// When a parameter has no tensor, or one of another shape.
    pub fn report(&self, device: &Device) -> Result<LoadReport, Error> {
        Ok(self.plan(&self.config.init(device))?.report)
    }

    /// Bytes that the parameters take once they are [loaded](Self::load).
    ///
    /// # Errors
    ///
    /// As [`report`](Self::report).
    pub fn loaded_bytes(&self, device: &Device, dtype: FloatDType) -> Result<u64, Error> {
        let in_blocks = dtype == FloatDType::F32 && crate::kernel::keeps_blocks(device);
        let number = burn::tensor::DType::from(dtype).size() as u64;
        Ok(self.plan(&self.config.init(device))?.bytes(&self.weights, number, in_blocks))
    }

    /// Builds the model on `device`, its parameters of type `dtype`, whatever type the file has.
    ///
    /// On flex, matrices that a GGUF file has in blocks of kind Q8_0, Q4_0 or Q4_1 stay so in a model of 32-bit numbers: a
    /// forward multiplies 32-bit activations with what the blocks stand for, and a step of decoding reads a quarter or an eighth
    /// of the bytes. A parameter is dequantised once it is asked for, be it to train, change, move or save it.
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
        self.load_as(device, dtype, true, progress)
    }

    /// The model with every weight as numbers, also those that its file has in blocks.
    pub(crate) fn load_numbers(&self, device: &Device) -> Result<Transformer, Error> {
        self.load_as(device, FloatDType::F32, false, &mut |_| ()).map(|(model, _)| model)
    }

    fn load_as(
        &self,
        device: &Device,
        dtype: FloatDType,
        keeps_blocks: bool,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Transformer, LoadReport), Error> {
        if !device.supports_dtype(dtype) {
            let problem = format!("does not compute with {dtype:?} numbers; load the weights as F32");
            return Err(Error::backend(format!("{device:?}"), problem));
        }
        let model = self.config.init(device);
        model.check_fits(device)?;
        self.plan(&model)?.fill(model, &self.weights, device, (dtype, keeps_blocks), progress)
    }

    fn plan(&self, model: &Transformer) -> Result<Plan, Error> {
        self.sketch(model).check(&self.weights)
    }

    /// The plan, whether it can be carried out or not.
    fn sketch(&self, model: &Transformer) -> Plan {
        Plan::new(model, &self.rules, Heads::of(&self.config.attention()), &self.weights)
    }
}

/// Fails where a model would have more layers than its file can fill, before one is built.
fn check_depth(config: &ModelConfig, weights: &Weights) -> Result<(), Error> {
    let (layers, tensors) = (config.n_layers, weights.len());
    if layers <= tensors {
        return Ok(());
    }
    let problem = format!("holds {tensors} tensors, too few for the {layers} layers that config.json speaks of");
    Err(Error::weights(weights.path(), problem))
}

/// Whether the matrix of the head is stored, and is the token table once more. PyTorch's own files hold both.
fn head_is_copy(rules: &BoundRules, weights: &Weights) -> Result<bool, Error> {
    let stored = |path: &str| rules.names(path).into_iter().find(|name| weights.contains(name));
    match (stored("embedding.tokens"), stored("head.weight")) {
        (Some(table), Some(matrix)) => weights.are_equal(&table, &matrix),
        _ => Ok(false),
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
    let path = path.as_ref();
    let HfModel { mut config, hints, .. } = read_hub_config(&read_text(path)?, path)?;
    adapt::to_architecture(&mut config, hints.architecture.as_deref());
    task_heads::to_architecture(&mut config, &hints);
    Ok(config)
}

/// Whether a path means a GGUF file, by its name or by the first bytes of the file.
pub fn is_gguf_file(path: impl AsRef<Path>) -> bool {
    gguf::is_file(path.as_ref())
}

/// The `model_type`s that can be loaded.
pub fn supported_model_types() -> impl Iterator<Item = &'static str> {
    families::model_types()
}

/// What a `config.json` says.
struct HfModel {
    config: ModelConfig,
    family: &'static Family,
    hints: TaskHints,
}

fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
    String::from_utf8(bytes).map_err(|_| Error::file(path, "is not a text file"))
}

/// Writes a value of this crate as indented JSON.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).expect("a value of this crate can be written as JSON") + "\n";
    std::fs::write(path, text).map_err(|error| Error::file(path, format!("cannot be written: {error}")))
}

fn read_hub_config(text: &str, path: &Path) -> Result<HfModel, Error> {
    Ok(translate(text).map_err(|error| error.at(path.display()))?)
}

fn translate(text: &str) -> Result<HfModel, ConfigError> {
    let mut hf = HfConfig::parse(text)?;
    let model_type = hf.optional_text("model_type");
    let family = families::find(model_type.as_deref()).map_err(|problem| {
        let fault = Fault { key: "model_type".to_owned(), problem };
        ConfigError { origin: String::new(), faults: vec![fault] }
    })?;
    let hints = TaskHints::read(&mut hf);
    hf.refuse_flag("add_cross_attention", "cross-attention in this family");
    let mut config = (family.config)(&mut hf);
    if config.encoder.is_none() {
        hf.refuse_flag("is_encoder_decoder", "a model of encoder and decoder in this family");
    }
    hf.finish(family.harmless)?;
    adapt::tidy(&mut config);
    config.validate()?;
    Ok(HfModel { config, family, hints })
}
