//! Adapters in a folder of their own: `adapter.json` with their configuration, `adapter.safetensors` with their factors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor, TensorData};

use super::native::Outgoings;
use super::numbers::{Cut, Float};
use super::output_folder::{Existing, OutputFolder};
use super::peft::{self, PEFT_CONFIG};
use super::rules::Heads;
use super::tensor_writer::write_safetensors;
use super::weights::Weights;
use super::{ADAPTER_CONFIG, Checkpoint, read_text, write_json};
use crate::adapters::{LoraConfig, factor_paths, has_adapters, is_factor};
use crate::error::Error;
use crate::model::Transformer;

/// The factors in a folder.
const FACTORS: &str = "adapter.safetensors";

/// Writes the adapters of `model`, which `lora` has made, to `folder`, from where [`load_adapters`] reads them. The folder
/// appears when everything is in it, and not before.
///
/// # Errors
///
/// When the model has no adapters, the folder is there and is to be kept, or something cannot be written.
pub fn save_adapters(
    model: &Transformer,
    lora: &LoraConfig,
    folder: impl AsRef<Path>,
    existing: Existing,
) -> Result<(), Error> {
    if !has_adapters(model) {
        return Err(Error::Input("the model has no adapters to save".into()));
    }
    let output = OutputFolder::create(folder.as_ref(), existing)?;
    write_json(&output.path().join(ADAPTER_CONFIG), lora)?;
    let factors = Outgoings::of(model, is_factor);
    write_safetensors(&output.path().join(FACTORS), &factors, &[("format", "burnformer")], Arc::new(|_| ()))?;
    output.finish()
}

/// Reads the configuration of the adapters in `folder`.
///
/// # Errors
///
/// When it cannot be read, or with what is wrong with it.
pub fn read_adapter_config(folder: impl AsRef<Path>) -> Result<LoraConfig, Error> {
    let path = folder.as_ref().join(ADAPTER_CONFIG);
    Ok(LoraConfig::from_json(&read_text(&path)?).map_err(|error| error.at(path.display()))?)
}

/// Gives `model` the adapters in `folder`, which [`save_adapters`] has written. They can be trained further, or merged.
/// Adapters of PEFT are read by [`Checkpoint::load_adapters`], which knows the names of the family.
///
/// # Errors
///
/// When something cannot be read, the adapters are those of another model or have another rank than they say, or the model
/// has adapters already.
pub fn load_adapters(model: Transformer, folder: impl AsRef<Path>) -> Result<Transformer, Error> {
    Factors::read(folder.as_ref(), &model.parameters())?.give_to(model)
}

impl Checkpoint {
    /// Gives `model`, which this checkpoint has been loaded into, the adapters in `folder`: those that [`save_adapters`]
    /// has written, or that the library PEFT has (`adapter_config.json` with `adapter_model.safetensors`).
    ///
    /// # Errors
    ///
    /// As [`load_adapters`], and when adapters of PEFT are of another kind than LoRA or use a part of it that is not
    /// supported.
    pub fn load_adapters(&self, model: Transformer, folder: impl AsRef<Path>) -> Result<Transformer, Error> {
        self.factors(folder.as_ref(), &model.parameters())?.give_to(model)
    }

    /// The adapters in `folder`, in either form.
    pub(super) fn factors(&self, folder: &Path, parameters: &[(String, Vec<usize>)]) -> Result<Factors, Error> {
        let is_peft = folder.join(PEFT_CONFIG).is_file() && !folder.join(ADAPTER_CONFIG).is_file();
        match is_peft {
            true => peft::read(folder, parameters, &self.rules, Heads::of(&self.config.attention())),
            false => Factors::read(folder, parameters),
        }
    }
}

/// The adapters in a folder.
#[derive(Debug)]
pub(super) struct Factors {
    lora: LoraConfig,
    /// Each factor by the path of its parameter.
    values: BTreeMap<String, Vec<f64>>,
}

impl Factors {
    /// These factors, by the paths of their parameters.
    pub fn new(lora: LoraConfig, values: BTreeMap<String, Vec<f64>>) -> Self {
        Self { lora, values }
    }

    /// Reads the adapters in `folder` and checks that they are those of a model with these `parameters`.
    pub fn read(folder: &Path, parameters: &[(String, Vec<usize>)]) -> Result<Self, Error> {
        let lora = read_adapter_config(folder)?;
        let path = folder.join(FACTORS);
        let weights = Weights::open_file(&path)?;
        let fault = |problem: String| Error::weights(&path, problem);
        let adapted = lora.adapted(parameters).map_err(|error| error.at(folder.join(ADAPTER_CONFIG).display()))?;
        let mut values = BTreeMap::new();
        for (of, [d_in, d_out]) in adapted {
            let [a, b] = factor_paths(of);
            for (name, expected) in [(a, [d_in, lora.rank]), (b, [lora.rank, d_out])] {
                let numbers = weights.read_factor(&name, expected, Cut::ALL)?;
                values.insert(name, numbers);
            }
        }
        match weights.names().find(|name| !values.contains_key(*name)) {
            Some(name) => Err(fault(format!("tensor `{name}` belongs to no weight of this model that is adapted"))),
            None => Ok(Self { lora, values }),
        }
    }

    /// Gives `model` these adapters.
    fn give_to(self, model: Transformer) -> Result<Transformer, Error> {
        let mut filler = Filler { path: Vec::new(), values: self.values };
        Ok(self.lora.apply(model)?.map(&mut filler))
    }

    /// Adds what was learned for the weight `path`, `[d_in, d_out]`, to its numbers.
    pub fn add_to<F: Float>(&self, path: &str, values: &mut [F]) {
        let [a, b] = factor_paths(path).map(|factor| self.values.get(&factor));
        let (Some(a), Some(b)) = (a, b) else { return };
        let rank = self.lora.rank;
        let (d_out, scale) = (b.len() / rank, self.lora.scale());
        for (row, a) in values.chunks_exact_mut(d_out).zip(a.chunks_exact(rank)) {
            for (column, value) in row.iter_mut().enumerate() {
                let learned: f64 = a.iter().enumerate().map(|(r, a)| a * b[r * d_out + column]).sum();
                *value = F::from_f64(value.elem::<f64>() + scale * learned);
            }
        }
    }
}

impl Weights {
    /// The numbers of a factor of this shape.
    pub fn read_factor(&self, name: &str, expected: [usize; 2], cut: Cut<'_>) -> Result<Vec<f64>, Error> {
        let fault = |problem: String| Error::weights(self.path(), format!("tensor `{name}` {problem}"));
        let tensor =
            self.tensor(name).ok_or_else(|| fault("is not there, so the adapters are not for this model".into()))?;
        if tensor.shape != expected {
            let found = &tensor.shape;
            return Err(fault(format!(
                "has shape {found:?} and should have {expected:?} for this model and this rank"
            )));
        }
        match self.read::<f64>(name, cut)? {
            (numbers, true) => Ok(numbers),
            (_, false) => Err(fault("holds numbers that are NaN or infinite".into())),
        }
    }
}

/// Puts stored factors in the place of those that were drawn.
struct Filler {
    path: Vec<String>,
    values: BTreeMap<String, Vec<f64>>,
}

impl ModuleMapper for Filler {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.values.remove(&self.path.join(".")) else {
            return param;
        };
        let (id, old) = (param.id, param.val());
        let (device, dtype): (_, DType) = (old.device(), old.dtype());
        let data = TensorData::new(values, old.dims()).convert_dtype(dtype);
        param.transform_for_load(Tensor::from_data(data, (&device, dtype)), id)
    }
}
