//! Writes a checkpoint in another form: as transformers reads it, or in this crate's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, FloatDType};
use half::{bf16, f16};
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::adapter_folder::Factors;
use super::lenient_json;
use super::load::{ParameterNumbers, Plan};
use super::native::{Container, stored_dtype, write_native};
use super::numbers::Float;
use super::output_folder::{Existing, OutputFolder};
use super::rules::Source;
use super::tensor_writer::{Fetched, Outgoing, Watch, WriteProgress, write_safetensors};
use super::weights::{PACK, SAFETENSORS, Weights, is_plain_name};
use super::{CONFIG, Checkpoint, Origin};
use crate::error::Error;

/// Files beside the weights that belong to a model in every form.
const COMPANIONS: [&str; 15] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION,
    "preprocessor_config.json",
    MODULES,
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];
/// What generation starts and stops with.
const GENERATION: &str = "generation_config.json";
/// The parts of a model for sentence embeddings, each with a folder.
const MODULES: &str = "modules.json";

/// The form that a checkpoint is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `config.json` and `model.safetensors` as the Hugging Face hub has them: every tensor under the name that it had.
    Hub,
    /// This crate's own `config.json` and parameters, in `model.safetensors`.
    Native,
    /// As `Native`, the parameters in Burn's own `model.bpk`.
    Pack,
}

impl Format {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Native => "native",
            Self::Pack => "pack",
        }
    }
}

/// How a checkpoint is converted.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The form to write. Default: that of the hub, or this crate's own where the checkpoint has it or adapters are merged.
    pub format: Option<Format>,
    /// The type of the numbers. Default: as they are stored, and f32 for those that are packed.
    pub dtype: Option<FloatDType>,
    /// A folder with adapters that are merged into the weights, `W + alpha / rank · A · B`. Default: none.
    pub adapters: Option<PathBuf>,
    /// What happens to a folder that is already there. Default: it is kept.
    pub existing: Existing,
}

/// What [`Checkpoint::convert`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The form.
    pub format: Format,
    /// The type of the numbers (`f32`), or `mixed`.
    pub dtype: String,
    /// How many tensors there are.
    pub tensors: usize,
    /// The size of the weight file in bytes.
    pub bytes: u64,
    /// The files, by their names in the folder.
    pub files: Vec<String>,
    /// Tensors with numbers that are NaN or infinite in the type that they are written in.
    pub not_finite: Vec<String>,
}

impl Checkpoint {
    /// Writes this checkpoint to `folder` in another form. Files of its tokenizer go along. Tensors are read and written
    /// one by one; `progress` is called after each. The folder appears when everything is in it, and not before.
    ///
    /// # Errors
    ///
    /// When a parameter has no tensor that fits, adapters are not those of this model or are to be merged in the form of
    /// the hub, the folder is there and is to be kept, the checkpoint has no configuration of the hub and is to be written
    /// as if it had, or something cannot be read or written.
    pub fn convert(
        &self,
        folder: impl AsRef<Path>,
        options: &ConvertOptions,
        progress: impl Fn(WriteProgress) + Send + Sync + 'static,
    ) -> Result<Converted, Error> {
        let folder = folder.as_ref();
        let plan = self.plan(&self.config.init(&Device::default()))?;
        let adapters = options.adapters.as_deref().map(|from| self.factors(from, &plan.parameters)).transpose()?;
        let default = if self.hub_config().is_some() && adapters.is_none() { Format::Hub } else { Format::Native };
        let format = options.format.unwrap_or(default);
        if format == Format::Hub && adapters.is_some() {
            let problem = "a model with merged adapters is written in this crate's own form; use `--to native`";
            return Err(Error::Input(problem.into()));
        }
        self.check_apart(folder)?;
        let output = OutputFolder::create(folder, options.existing)?;
        let dtype = options.dtype.map(stored_dtype);
        let watch: Watch = Arc::new(progress);

        let (tensors, weight_file) = match format {
            Format::Hub => (hub_tensors(&self.weights, dtype), SAFETENSORS),
            Format::Native => (native_tensors(&self.weights, plan, adapters, dtype), SAFETENSORS),
            Format::Pack => (native_tensors(&self.weights, plan, adapters, dtype), PACK),
        };
        let (count, written_as) = (tensors.len(), common_dtype(&tensors));
        let not_finite = match format {
            Format::Hub => {
                let Some(config) = self.hub_config() else {
                    let problem = "is this crate's own and has no configuration for the hub; use `--to native`";
                    return Err(Error::file(&self.path, problem));
                };
                write_text(&output.path().join(CONFIG), &with_dtype(config, options.dtype))?;
                write_safetensors(&output.path().join(SAFETENSORS), &tensors, &[("format", "pt")], watch)?
            }
            Format::Native => write_native(output.path(), &self.config, tensors, Container::Safetensors, watch)?,
            Format::Pack => write_native(output.path(), &self.config, tensors, Container::Pack, watch)?,
        };
        let weight_path = output.path().join(weight_file);
        let bytes = std::fs::metadata(&weight_path).map_err(|error| Error::file(&weight_path, error))?.len();
        let mut files = vec![CONFIG.to_owned(), weight_file.to_owned()];
        files.extend(self.copy_companions(output.path(), format)?);
        output.finish()?;
        Ok(Converted { format, dtype: written_as, tensors: count, bytes, files, not_finite })
    }

    /// The text of the `config.json` that the hub has for this checkpoint.
    fn hub_config(&self) -> Option<&str> {
        match &self.origin {
            Origin::Hub { config } | Origin::Gguf { config, .. } => Some(config),
            Origin::Native => None,
        }
    }

    /// Fails where writing to `folder` would replace what is being read.
    fn check_apart(&self, folder: &Path) -> Result<(), Error> {
        let (Ok(from), Ok(to)) = (self.path.canonicalize(), folder.canonicalize()) else {
            // One of them is not there, so it is not the other.
            return Ok(());
        };
        match from.starts_with(&to) {
            true => Err(Error::file(folder, "holds the model that is to be converted; choose another folder")),
            false => Ok(()),
        }
    }

    /// Writes what belongs to the model beside its weights into the folder of a model in this crate's own format.
    #[cfg(feature = "train")]
    pub(crate) fn write_companions(&self, folder: &Path) -> Result<(), Error> {
        self.copy_companions(folder, Format::Native).map(drop)
    }

    /// Copies what belongs to the model beside its weights; gives the names.
    fn copy_companions(&self, folder: &Path, format: Format) -> Result<Vec<String>, Error> {
        let mut copied = Vec::new();
        if let Origin::Gguf { file, .. } = &self.origin {
            for (name, text) in file.companions() {
                write_text(&folder.join(name), &text)?;
                copied.push(name.to_owned());
            }
        }
        for name in COMPANIONS.into_iter().filter(|_| self.path.is_dir()) {
            if self.path.join(name).is_file() {
                copy(&self.path.join(name), &folder.join(name))?;
                copied.push(name.to_owned());
            }
        }
        for module in module_folders(&self.path.join(MODULES)) {
            let name = format!("{module}/{CONFIG}");
            if self.path.join(&name).is_file() {
                let made = folder.join(&module);
                std::fs::create_dir(&made).map_err(|error| Error::file(&made, error))?;
                copy(&self.path.join(&name), &folder.join(&name))?;
                copied.push(name);
            }
        }
        // This crate's own configuration has no place for the ids that begin and end a text.
        let is_needed = format != Format::Hub && !copied.iter().any(|name| name == GENERATION);
        if let (true, Some(ids)) = (is_needed, self.hub_config().and_then(token_ids)) {
            write_text(&folder.join(GENERATION), &format!("{ids:#}\n"))?;
            copied.push(GENERATION.to_owned());
        }
        Ok(copied)
    }
}

/// Every tensor under the name that it has. Whole numbers stay what they are.
fn hub_tensors(weights: &Weights, dtype: Option<Dtype>) -> Vec<Outgoing> {
    let weights = Arc::new(weights.clone());
    let outgoing = |name: &str| {
        let tensor = weights.tensor(name)?;
        let dtype = dtype.filter(|_| tensor.is_float()).unwrap_or(tensor.dtype);
        let (name, weights) = (name.to_owned(), Arc::clone(&weights));
        Some(Outgoing {
            name: name.clone(),
            dtype,
            shape: tensor.shape.clone(),
            fetch: Box::new(move || {
                weights.read_bytes(&name, dtype).map(|(bytes, is_finite)| Fetched { bytes, is_finite })
            }),
        })
    };
    weights.names().filter_map(outgoing).collect()
}

/// Every parameter under its own name, with what `adapters` add to it.
fn native_tensors(weights: &Weights, plan: Plan, adapters: Option<Factors>, dtype: Option<Dtype>) -> Vec<Outgoing> {
    let weights = Arc::new(weights.clone());
    let adapters = adapters.map(Arc::new);
    let Plan { parameters, mut sources, .. } = plan;
    let outgoing = |(name, shape): (String, Vec<usize>)| {
        let source = sources.remove(&name)?;
        let stored = source.tensors.first().and_then(|tensor| weights.tensor(tensor)).map(|tensor| tensor.dtype);
        let dtype = dtype.or(stored).unwrap_or(Dtype::F32);
        let (weights, adapters) = (Arc::clone(&weights), adapters.clone());
        let parameter = ParameterSource { name: name.clone(), shape: shape.clone(), source };
        let fetch = Box::new(move || match dtype {
            Dtype::F64 => parameter.fetch::<f64>(&weights, adapters.as_deref()),
            Dtype::F16 => parameter.fetch::<f16>(&weights, adapters.as_deref()),
            Dtype::BF16 => parameter.fetch::<bf16>(&weights, adapters.as_deref()),
            _ => parameter.fetch::<f32>(&weights, adapters.as_deref()),
        });
        Some(Outgoing { name, dtype, shape, fetch })
    };
    parameters.into_iter().filter_map(outgoing).collect()
}

/// A parameter, and what fills it.
struct ParameterSource {
    name: String,
    shape: Vec<usize>,
    source: Source,
}

impl ParameterSource {
    fn fetch<F: Float>(&self, weights: &Weights, adapters: Option<&Factors>) -> Result<Fetched, Error> {
        let numbers = ParameterNumbers::<F>::read(weights, &self.source, &self.shape)?;
        let (mut values, is_finite) = (numbers.values, numbers.not_finite.is_empty());
        if let Some(adapters) = adapters {
            adapters.add_to(&self.name, &mut values);
        }
        Ok(Fetched { bytes: F::into_bytes(values), is_finite })
    }
}

/// The type of all floats, if they have one.
fn common_dtype(tensors: &[Outgoing]) -> String {
    let mut dtypes: Vec<Dtype> = tensors.iter().map(|tensor| tensor.dtype).collect();
    dtypes.retain(|dtype| matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16));
    dtypes.sort();
    dtypes.dedup();
    match dtypes.as_slice() {
        [only] => only.to_string().to_lowercase(),
        _ => "mixed".to_owned(),
    }
}

/// A configuration of the hub that says which type its weights have now. One that is no standard JSON stays as it is.
fn with_dtype(config: &str, dtype: Option<FloatDType>) -> String {
    let name = match dtype {
        Some(FloatDType::F64) => "float64",
        Some(FloatDType::F16) => "float16",
        Some(FloatDType::BF16) => "bfloat16",
        Some(FloatDType::F32 | FloatDType::Flex32) => "float32",
        None => return config.to_owned(),
    };
    let Ok(mut keys) = serde_json::from_str::<Map<String, Value>>(config) else {
        return config.to_owned();
    };
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = keys.get_mut(key) {
            *value = json!(name);
        }
    }
    format!("{:#}\n", Value::Object(keys))
}

/// The ids that a configuration of the hub names for the beginning and the end of texts.
fn token_ids(config: &str) -> Option<Value> {
    let Ok(Value::Object(keys)) = lenient_json::parse(config) else {
        return None;
    };
    let names = ["bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"];
    let is_id = |key: &str, value: &Value| names.contains(&key) && !value.is_null();
    let ids: Map<String, Value> = keys.into_iter().filter(|(key, value)| is_id(key, value)).collect();
    ids.contains_key("eos_token_id").then_some(Value::Object(ids))
}

/// The folders that `modules.json` names, as far as they are folders beside it.
fn module_folders(modules: &Path) -> Vec<String> {
    #[derive(Deserialize)]
    struct Module {
        path: String,
    }
    let text = std::fs::read_to_string(modules).unwrap_or_default();
    let modules: Vec<Module> = serde_json::from_str(&text).unwrap_or_default();
    modules.into_iter().map(|module| module.path).filter(|path| is_plain_name(path)).collect()
}

fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|error| Error::file(path, format!("cannot be written: {error}")))
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::copy(from, to).map(drop).map_err(|error| Error::file(to, format!("cannot be copied: {error}")))
}
