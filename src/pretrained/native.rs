//! Folders in this crate's own format, which it writes and trains: `config.json` with a [`ModelConfig`] and the parameters
//! under their own names and in Burn's layout, in `model.safetensors` or in `model.bpk`.

use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, FloatDType, Tensor};
use safetensors::tensor::Dtype;
use serde_json::Value;

use super::output_folder::{Existing, OutputFolder};
use super::tensor_writer::{Fetched, Outgoing, Watch, write_pack, write_safetensors};
use super::weights::{PACK, SAFETENSORS};
use super::{CONFIG, write_json};
use crate::adapters::merge_adapters;
use crate::error::Error;
use crate::model::{ModelConfig, Transformer};

/// The file that holds the parameters of a folder in this crate's own format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Container {
    /// `model.safetensors`, which programs in every language read.
    #[default]
    Safetensors,
    /// `model.bpk`, Burn's own format.
    Pack,
}

/// Whether a `config.json` is one of this crate: it has the key `kind`, and not the `model_type` of the others.
pub(super) fn is_native(text: &str) -> bool {
    let keys: Result<Value, _> = serde_json::from_str(text);
    keys.is_ok_and(|keys| keys.get("kind").is_some() && keys.get("model_type").is_none())
}

/// Writes `model` to `folder`, from where [`Checkpoint::open`](super::Checkpoint::open) reads it. The folder appears when
/// everything is in it, and not before. Adapters are merged into the weights.
///
/// # Errors
///
/// When the folder is there and is to be kept, or something cannot be written.
pub fn save_model(
    model: &Transformer,
    folder: impl AsRef<Path>,
    container: Container,
    existing: Existing,
) -> Result<(), Error> {
    let output = OutputFolder::create(folder.as_ref(), existing)?;
    let parameters = Outgoings::of(&merge_adapters(model.clone()), |_| true);
    write_native(output.path(), model.config(), parameters, container, Arc::new(|_| ()))?;
    output.finish()
}

/// Writes the files of a folder; gives the names of parameters that hold NaN or infinity.
pub(super) fn write_native(
    folder: &Path,
    config: &ModelConfig,
    parameters: Vec<Outgoing>,
    container: Container,
    watch: Watch,
) -> Result<Vec<String>, Error> {
    write_json(&folder.join(CONFIG), config)?;
    match container {
        Container::Safetensors => {
            write_safetensors(&folder.join(SAFETENSORS), &parameters, &[("format", "burnformer")], watch)
        }
        Container::Pack => write_pack(&folder.join(PACK), parameters, watch),
    }
}

/// The type in files of numbers of this type.
pub(super) fn stored_dtype(dtype: FloatDType) -> Dtype {
    match dtype {
        FloatDType::F64 => Dtype::F64,
        FloatDType::F16 => Dtype::F16,
        FloatDType::BF16 => Dtype::BF16,
        FloatDType::F32 | FloatDType::Flex32 => Dtype::F32,
    }
}

/// Collects parameters, whose numbers come from their device when they are written.
pub(super) struct Outgoings {
    path: Vec<String>,
    is_wanted: fn(&str) -> bool,
    found: Vec<Outgoing>,
}

impl Outgoings {
    /// Those of `model` whose paths are wanted.
    pub fn of(model: &Transformer, is_wanted: fn(&str) -> bool) -> Vec<Outgoing> {
        let mut outgoings = Self { path: Vec::new(), is_wanted, found: Vec::new() };
        model.visit(&mut outgoings);
        outgoings.found
    }
}

impl ModuleVisitor for Outgoings {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        if !(self.is_wanted)(&name) {
            return;
        }
        let tensor = param.val();
        let dtype = stored_dtype(FloatDType::from(tensor.dtype()));
        let wanted = if dtype == Dtype::F32 { DType::F32 } else { tensor.dtype() };
        self.found.push(Outgoing {
            name,
            dtype,
            shape: tensor.dims().to_vec(),
            fetch: Box::new(move || {
                let data = tensor.clone().into_data().convert_dtype(wanted);
                let is_finite = data.iter::<f64>().all(f64::is_finite);
                Ok(Fetched { bytes: data.into_bytes().to_vec(), is_finite })
            }),
        });
    }
}
