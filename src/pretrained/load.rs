//! Fills a model with the tensors of a checkpoint.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use half::{bf16, f16};

use super::numbers::Float;
use super::rules::{BoundRules, Heads, Source};
use super::weights::Weights;
use crate::error::Error;
use crate::kernel::BLOCK;
use crate::model::{Transformer, WeightLayout};

/// More names than these are counted and not listed.
const MOST_NAMES: usize = 5;

/// Which tensor went into which parameter, and what was left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Each parameter with the tensor it was filled from, in the order of the model. A tensor that holds several
    /// parameters, as fused projections do, comes up once for each.
    pub loaded: Vec<(String, String)>,
    /// Tensors that are known to be no parameters of a model: masks, position ids, rotary frequencies, copies.
    pub ignored: Vec<String>,
    /// Tensors that nothing was filled from. Heads of other tasks are among these; a name that looks like a layer's is
    /// a sign that the model is not what its config says.
    pub unused: Vec<String>,
    /// Tensors with numbers that are NaN or infinite in the type that was asked for. Known once they have been read.
    pub not_finite: Vec<String>,
    /// Parameters that stay in the blocks of a GGUF file; see [`Checkpoint::load`](super::Checkpoint::load). Known once they
    /// have been read.
    pub in_blocks: Vec<String>,
}

/// What [`Checkpoint::load_with`](super::Checkpoint::load_with) has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Parameters that are filled.
    pub done: usize,
    /// Parameters of the model.
    pub total: usize,
}

/// How a model is filled, before a number is read.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Each parameter with its shape, in the order of the model.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// What each parameter is filled from; without an entry where its family has no name for it.
    pub sources: HashMap<String, Source>,
    pub report: LoadReport,
    /// Parameters without a tensor.
    pub missing: Vec<String>,
    /// Tensors of another shape or type than their parameter needs, and what is wrong with them.
    pub unfit: Vec<String>,
}

impl Plan {
    /// Looks up a tensor for every parameter of `model`.
    pub fn new(model: &Transformer, rules: &BoundRules, heads: Heads, weights: &Weights) -> Self {
        let mut plan = Self { parameters: model.parameters(), ..Self::default() };
        let (mut used, mut copies) = (BTreeSet::new(), BTreeSet::new());
        for (path, shape) in &plan.parameters {
            let Some(source) = rules.source(path, shape, heads, |name| weights.contains(name)) else {
                plan.missing.push(format!("`{path}` (its family has no name for it)"));
                continue;
            };
            for name in &source.tensors {
                match weights.tensor(name) {
                    None => plan.missing.push(format!("`{path}` (`{name}` in the file)")),
                    Some(tensor) if tensor.shape != source.shape => {
                        let (found, expected) = (&tensor.shape, &source.shape);
                        let fault = format!("`{name}` has shape {found:?} and should have {expected:?} for `{path}`");
                        plan.unfit.push(fault);
                    }
                    Some(tensor) if !tensor.is_float() => {
                        let dtype = tensor.type_name();
                        let fault = format!("`{name}` holds {dtype} numbers; weights must be F64, F32, F16 or BF16");
                        plan.unfit.push(fault);
                    }
                    Some(_) => {}
                }
                used.insert(name.clone());
                plan.report.loaded.push((path.clone(), name.clone()));
            }
            copies.extend(rules.names(path));
            plan.sources.insert(path.clone(), source);
        }
        if model.config().head.as_ref().is_some_and(|head| head.tied) {
            // A matrix is only left out for the token table where it holds the same numbers.
            copies.extend(rules.names("head.weight"));
        }
        for name in weights.names().filter(|name| !used.contains(*name)) {
            // Other names of a parameter that is filled hold copies.
            let is_ignored = copies.contains(name) || rules.ignores(name);
            let list = if is_ignored { &mut plan.report.ignored } else { &mut plan.report.unused };
            list.push(name.to_owned());
        }
        plan
    }

    /// Bytes of the parameters in numbers of a type, or where they are kept `in_blocks`.
    pub fn bytes(&self, weights: &Weights, bytes_per_number: u64, in_blocks: bool) -> u64 {
        let of = |(path, shape): &(String, Vec<usize>)| {
            let numbers = shape.iter().product::<usize>() as u64;
            let source = self.sources.get(path).filter(|source| in_blocks && source.tensors.len() == 1);
            let kind = source.and_then(|source| {
                let (name, cut) = (&source.tensors[0], source.cut());
                weights.block_kind(name, cut, false).or_else(|| weights.block_kind(name, cut, true))
            });
            match kind {
                // A scale, and a minimum, take twice as many bytes as in a file.
                Some(kind) => numbers / BLOCK as u64 * (kind.bytes() + kind.head()) as u64,
                None => numbers * bytes_per_number,
            }
        };
        self.parameters.iter().map(of).sum()
    }

    /// The plan, if every parameter has a tensor that fits.
    pub fn check(self, weights: &Weights) -> Result<Self, Error> {
        let mut faults = Vec::new();
        if !self.missing.is_empty() {
            let unused = match self.report.unused.as_slice() {
                [] => String::new(),
                unused => format!("; not used: {}", listed(unused)),
            };
            faults.push(format!("there is no tensor for {}{unused}", listed(&self.missing)));
        }
        if !self.unfit.is_empty() {
            faults.push(listed(&self.unfit));
        }
        match faults.is_empty() {
            true => Ok(self),
            false => Err(Error::weights(weights.path(), faults.join("; "))),
        }
    }

    /// Fills `model` with numbers of a type, where it `keeps_blocks` of 32 bits with the blocks that the file has of matrices.
    pub fn fill(
        self,
        mut model: Transformer,
        weights: &Weights,
        device: &Device,
        (dtype, keeps_blocks): (FloatDType, bool),
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Transformer, LoadReport), Error> {
        let mut progressed = LoadProgress { done: 0, total: self.sources.len() };
        let Self { mut sources, mut report, .. } = self;
        let mut not_finite = BTreeSet::new();
        if dtype == FloatDType::F32 && keeps_blocks {
            let mut read = |name: &str, is_finite: bool| {
                if !is_finite {
                    not_finite.insert(name.to_owned());
                }
                progressed.done += 1;
                progress(progressed);
            };
            report.in_blocks = keep_blocks(&mut model, &sources, weights, device, &mut read)?;
            for path in &report.in_blocks {
                sources.remove(path);
            }
            progressed.done = report.in_blocks.len();
        }
        let layout = WeightLayout::new(&mut model, dtype.into(), device);
        let mut filler = Filler {
            path: Vec::new(),
            sources,
            weights,
            device,
            dtype,
            layout,
            progressed,
            progress,
            not_finite,
            error: None,
        };
        let mut model = model.map(&mut filler);
        match filler.error {
            None => {
                if let Some(layout) = filler.layout {
                    model = layout.fill(model);
                }
                report.not_finite = filler.not_finite.into_iter().collect();
                Ok((model, report))
            }
            Some(error) => Err(error),
        }
    }
}

/// Keeps matrices in blocks where the file has them so, and says of which parameters. `has_read` is told the name of each tensor,
/// and whether its numbers are finite.
fn keep_blocks(
    model: &mut Transformer,
    sources: &HashMap<String, Source>,
    weights: &Weights,
    device: &Device,
    has_read: &mut dyn FnMut(&str, bool),
) -> Result<Vec<String>, Error> {
    let paths = model.paths();
    // A parameter is one tensor in all files that have blocks.
    let tensor_of = |id| match sources.get(paths.get(&id)?) {
        Some(source) if source.tensors.len() == 1 => Some((source.tensors[0].as_str(), source.cut())),
        _ => None,
    };
    let kind_of = |id, is_table| {
        let (name, cut) = tensor_of(id)?;
        weights.block_kind(name, cut, is_table)
    };
    let read = |id, _| -> Result<Vec<u8>, Error> {
        let (name, cut) = tensor_of(id).expect("it has blocks");
        let (blocks, is_finite) = weights.read_blocks(name, cut)?;
        has_read(name, is_finite);
        Ok(blocks)
    };
    let kept = model.keep_blocks(device, kind_of, read)?;
    Ok(kept.into_iter().filter_map(|id| paths.get(&id).cloned()).collect())
}

/// The numbers of one parameter.
pub(super) struct ParameterNumbers<F> {
    pub values: Vec<F>,
    /// Tensors of which some numbers are NaN or infinite.
    pub not_finite: Vec<String>,
}

impl<F: Float> ParameterNumbers<F> {
    /// Reads what fills a parameter of shape `shape`.
    pub fn read(weights: &Weights, source: &Source, shape: &[usize]) -> Result<Self, Error> {
        let cut = source.cut();
        let expected = shape.iter().product::<usize>();
        let (mut values, mut not_finite) = (Vec::new(), Vec::new());
        for name in &source.tensors {
            let (part, is_finite) = weights.read::<F>(name, cut)?;
            if source.tensors.len() == 1 {
                values = part;
            } else {
                values.reserve_exact(expected.saturating_sub(values.len()));
                values.extend(part);
            }
            if !is_finite {
                not_finite.push(name.clone());
            }
        }
        if values.len() != expected {
            let problem =
                format!("`{}` gives {} numbers for shape {shape:?}", source.tensors.join("`, `"), values.len());
            return Err(Error::weights(weights.path(), problem));
        }
        Ok(Self { values, not_finite })
    }
}

/// Names in a message: the first few, then their number.
fn listed(names: &[String]) -> String {
    let first = &names[..names.len().min(MOST_NAMES)];
    let more = match names.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", first.join(", "))
}

/// Puts tensors in the place of parameters that have drawn no numbers yet.
struct Filler<'a> {
    path: Vec<String>,
    sources: HashMap<String, Source>,
    weights: &'a Weights,
    device: &'a Device,
    dtype: FloatDType,
    /// Where the large matrices go, which then become parameters at the end.
    layout: Option<WeightLayout>,
    progressed: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
    not_finite: BTreeSet<String>,
    error: Option<Error>,
}

impl Filler<'_> {
    fn data(&mut self, path: &str, shape: &[usize]) -> Option<Result<TensorData, Error>> {
        let source = self.sources.remove(path)?;
        Some(match self.dtype {
            FloatDType::F64 => self.numbers::<f64>(&source, shape),
            FloatDType::F16 => self.numbers::<f16>(&source, shape),
            FloatDType::BF16 => self.numbers::<bf16>(&source, shape),
            _ => self.numbers::<f32>(&source, shape),
        })
    }

    fn numbers<F: Float>(&mut self, source: &Source, shape: &[usize]) -> Result<TensorData, Error> {
        let ParameterNumbers { values, not_finite } = ParameterNumbers::<F>::read(self.weights, source, shape)?;
        self.not_finite.extend(not_finite);
        Ok(TensorData::new(values, shape))
    }
}

impl ModuleMapper for Filler<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        let Some(data) = self.data(&self.path.join("."), &param.lazy_shape().to_vec()) else {
            return param;
        };
        match data {
            Ok(data) => {
                let id = param.id;
                let is_laid_out = self.layout.as_mut().is_some_and(|layout| layout.takes(id, &data));
                let param = if is_laid_out {
                    param
                } else {
                    let tensor = Tensor::<D>::from_data(data, (self.device, DType::from(self.dtype)));
                    param.transform_for_load(tensor, id)
                };
                self.progressed.done += 1;
                (self.progress)(self.progressed);
                param
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let names = |count| ["a", "b", "c", "d", "e", "f", "g"][..count].iter().map(ToString::to_string).collect();
        let listed = |count| listed(&Vec::from_iter::<Vec<String>>(names(count)));
        assert_eq!(listed(2), "a, b");
        assert_eq!(listed(7), "a, b, c, d, e and 2 more");
    }
}
