//! Fills a model with the tensors of a checkpoint.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::rules::{BoundRules, Heads, Source};
use super::safetensors_file::Float;
use super::weights::Weights;
use crate::error::Error;
use crate::model::Transformer;

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
    sources: HashMap<String, Source>,
    report: LoadReport,
    faults: Vec<String>,
}

impl Plan {
    /// Looks up a tensor for every parameter of `model`.
    pub fn new(model: &Transformer, rules: &BoundRules, heads: Heads, weights: &Weights) -> Self {
        let mut parameters = Parameters::default();
        model.visit(&mut parameters);
        let mut plan = Self::default();
        let (mut missing, mut unfit) = (Vec::new(), Vec::new());
        let (mut used, mut copies) = (BTreeSet::new(), BTreeSet::new());
        for (path, shape) in parameters.found {
            let Some(source) = rules.source(&path, &shape, heads, |name| weights.contains(name)) else {
                missing.push(format!("`{path}` (its family has no name for it)"));
                continue;
            };
            for name in &source.tensors {
                match weights.tensor(name) {
                    None => missing.push(format!("`{path}` (`{name}` in the file)")),
                    Some(tensor) if tensor.shape != source.shape => {
                        let (found, expected) = (&tensor.shape, &source.shape);
                        unfit.push(format!("`{name}` has shape {found:?} and should have {expected:?} for `{path}`"));
                    }
                    Some(tensor) if !tensor.is_float() => {
                        let dtype = tensor.dtype;
                        unfit.push(format!("`{name}` holds {dtype} numbers; weights must be F64, F32, F16 or BF16"));
                    }
                    Some(_) => {}
                }
                used.insert(name.clone());
                plan.report.loaded.push((path.clone(), name.clone()));
            }
            copies.extend(rules.names(&path));
            plan.sources.insert(path, source);
        }
        for name in weights.names().filter(|name| !used.contains(*name)) {
            // Other names of a parameter that is filled hold copies.
            let is_ignored = copies.contains(name) || rules.ignores(name);
            let list = if is_ignored { &mut plan.report.ignored } else { &mut plan.report.unused };
            list.push(name.to_owned());
        }
        if !missing.is_empty() {
            let unused = match plan.report.unused.as_slice() {
                [] => String::new(),
                unused => format!("; not used: {}", listed(unused)),
            };
            plan.faults.push(format!("there is no tensor for {}{unused}", listed(&missing)));
        }
        if !unfit.is_empty() {
            plan.faults.push(listed(&unfit));
        }
        plan
    }

    /// The report, if every parameter has a tensor that fits.
    pub fn check(self, weights: &Weights) -> Result<Self, Error> {
        match self.faults.is_empty() {
            true => Ok(self),
            false => Err(Error::weights(weights.path(), self.faults.join("; "))),
        }
    }

    /// What goes where.
    pub fn into_report(self) -> LoadReport {
        self.report
    }

    /// Fills `model`.
    pub fn fill(
        self,
        model: Transformer,
        weights: &Weights,
        device: &Device,
        dtype: FloatDType,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Transformer, LoadReport), Error> {
        let progressed = LoadProgress { done: 0, total: self.sources.len() };
        let Self { sources, report, .. } = self;
        let mut filler =
            Filler { path: Vec::new(), sources, weights, device, dtype, progressed, progress, error: None };
        let model = model.map(&mut filler);
        match filler.error {
            None => Ok((model, report)),
            Some(error) => Err(error),
        }
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

/// Collects the paths and shapes of parameters, without making any of them draw its numbers.
#[derive(Default)]
struct Parameters {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((self.path.join("."), param.lazy_shape().to_vec()));
    }
}

/// Puts tensors in the place of parameters that have drawn no numbers yet.
struct Filler<'a> {
    path: Vec<String>,
    sources: HashMap<String, Source>,
    weights: &'a Weights,
    device: &'a Device,
    dtype: FloatDType,
    progressed: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
    error: Option<Error>,
}

impl Filler<'_> {
    fn data(&self, source: &Source, shape: &[usize]) -> Result<TensorData, Error> {
        match self.dtype {
            FloatDType::F64 => self.numbers::<f64>(source, shape),
            _ => self.numbers::<f32>(source, shape),
        }
    }

    fn numbers<F: Float>(&self, source: &Source, shape: &[usize]) -> Result<TensorData, Error> {
        let mut numbers = Vec::new();
        for name in &source.tensors {
            let part = self.weights.read::<F>(name, source.axis, &source.ranges)?;
            if numbers.is_empty() { numbers = part } else { numbers.extend(part) }
        }
        if numbers.len() != shape.iter().product::<usize>() {
            let problem =
                format!("`{}` gives {} numbers for shape {shape:?}", source.tensors.join("`, `"), numbers.len());
            return Err(Error::weights(self.weights.path(), problem));
        }
        if source.transpose {
            numbers = transposed(&numbers, source.shape.last().copied().unwrap_or(1));
        }
        Ok(TensorData::new(numbers, shape))
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
        let source = self.sources.get(&self.path.join("."));
        let (None, Some(source)) = (&self.error, source) else {
            return param;
        };
        match self.data(source, &param.lazy_shape().to_vec()) {
            Ok(data) => {
                let tensor = Tensor::<D>::from_data(data, (self.device, burn::tensor::DType::from(self.dtype)));
                self.progressed.done += 1;
                (self.progress)(self.progressed);
                let id = param.id;
                param.transform_for_load(tensor, id)
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// A matrix of `columns` columns with rows and columns exchanged. In tiles, so that neither side is read or written
/// far apart.
fn transposed<F: Float>(values: &[F], columns: usize) -> Vec<F> {
    const TILE: usize = 32;
    let rows = values.len() / columns.max(1);
    let mut turned = vec![F::default(); values.len()];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..(top + TILE).min(rows) {
                for column in left..(left + TILE).min(columns) {
                    turned[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        let (rows, columns) = (37, 70);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let turned = transposed(&values, columns);
        assert!((0..rows).all(|r| (0..columns).all(|c| turned[c * rows + r] == values[r * columns + c])));
        assert_eq!(transposed(&turned, rows), values);
        assert!(transposed::<f32>(&[], 0).is_empty());
    }

    #[test]
    fn long_lists_are_cut() {
        let names = |count| ["a", "b", "c", "d", "e", "f", "g"][..count].iter().map(ToString::to_string).collect();
        let listed = |count| listed(&Vec::from_iter::<Vec<String>>(names(count)));
        assert_eq!(listed(2), "a, b");
        assert_eq!(listed(7), "a, b, c, d, e and 2 more");
    }
}
