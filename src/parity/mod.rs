//! The same model must give the same answer wherever it runs: every backend against one oracle.
//!
//! The oracle is this crate's own code in 64 bits on a CPU backend, with composed attention and without cache or
//! padding. Inputs and weights are drawn on the host, so that all backends hold the same numbers.

mod attention_cases;
mod block_cases;
mod case;
mod classifier_cases;
mod empty_cases;
mod function_cases;
mod model_cases;
mod module_cases;
mod numbers;
mod probe;
mod shrink;
#[cfg(all(test, feature = "flex"))]
mod tests;

use burn::tensor::{DType, Device};
use serde::Serialize;

use crate::backend::{Backend, DeviceName};
use crate::error::Error;
use crate::model::ModelConfig;

use case::Case;
pub use numbers::Difference;
use probe::{Evaluation, Numbers, Target, evaluate};

/// What [`run`] compares.
#[derive(Clone, Debug, Default)]
pub struct ParityOptions {
    /// The devices that are compared with the oracle.
    pub backends: Vec<DeviceName>,
    /// Whether gradients are compared too, and the forward on autodiff devices with the one on plain devices.
    pub gradients: bool,
    /// A model to compare instead of the built-in cases. A large one is shrunk first, every option of it kept; its
    /// weights are drawn.
    pub model: Option<ModelConfig>,
}

/// One backend in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParityRow {
    /// The device, by name.
    pub backend: String,
    /// The case. One that ends in `: autodiff` compares the forward on the autodiff device with the one on the plain
    /// device, one that ends in `: gradients` compares gradients with the oracle's.
    pub case: String,
    /// The largest absolute difference. For gradients, of the tensor that is worst, in units of that tensor's largest
    /// number, or of a tenth of the largest of all tensors where that is more.
    pub max_abs: f64,
    /// The Euclidean norm of the difference over that of the right answer.
    pub rel_l2: f64,
    /// The bound on `max_abs`; where the right answer has numbers above 1, a bound in units of the largest.
    pub tolerance: f64,
    /// Whether the bound holds.
    pub ok: bool,
}

/// All rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParityReport {
    /// Whether every bound holds.
    pub ok: bool,
    /// The rows, by case and then by backend.
    pub rows: Vec<ParityRow>,
}

/// How far the oracle's answer moves when one option of a case is ignored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The case.
    pub case: String,
    /// The option that is ignored.
    pub without: String,
    /// The largest absolute difference that it makes.
    pub moved: f64,
    /// The largest absolute difference that [`run`] lets pass in this case.
    pub allowed: f64,
}

/// Compares every backend with the oracle; `progress` gets each row as it is found.
///
/// # Errors
///
/// When no backend is named, one cannot be opened, the model's configuration is not valid or cannot run on a backend,
/// or this build has no backend with 64 bits.
///
/// # Panics
///
/// Where a backend's own code does.
pub fn run(options: &ParityOptions, progress: &mut dyn FnMut(&ParityRow)) -> Result<ParityReport, Error> {
    run_with_fault(options, 0.0, progress)
}

/// [`run`] with `fault` added to the first number of every parameter everywhere but in the oracle: for the test that a
/// wrong weight is found.
#[doc(hidden)]
pub fn run_with_fault(
    options: &ParityOptions,
    fault: f64,
    progress: &mut dyn FnMut(&ParityRow),
) -> Result<ParityReport, Error> {
    if options.backends.is_empty() {
        return Err(Error::Input("parity: no backend is named".into()));
    }
    let oracle = oracle()?;
    let cases = match &options.model {
        None => all_cases()?,
        Some(config) => model_cases::of_config(config)?,
    };
    let mut targets = Vec::new();
    for name in &options.backends {
        targets.push((name, Target { device: name.open()?, dtype: DType::F32, is_oracle: false, fault }));
    }
    let mut rows = Vec::new();
    for case in &cases {
        let with_gradients = options.gradients && case.has_gradients;
        let expected = evaluate(&case.run, &oracle, with_gradients)?;
        for (name, target) in &targets {
            if case.runs_on.as_ref().is_some_and(|runs_on| !runs_on(&target.device)) {
                continue;
            }
            for row in compare(case, &expected, &name.to_string(), target, with_gradients)? {
                progress(&row);
                rows.push(row);
            }
        }
    }
    Ok(ParityReport { ok: rows.iter().all(|row| row.ok), rows })
}

/// For every option of every built-in case, how far the oracle's answer moves when that option is ignored. An option
/// that moved nothing would be compared in vain.
///
/// # Errors
///
/// When this build has no backend with 64 bits.
pub fn sensitivities() -> Result<Vec<Sensitivity>, Error> {
    let oracle = oracle()?;
    let mut found = Vec::new();
    for case in all_cases()?.iter().filter(|case| !case.without.is_empty()) {
        let expected = evaluate(&case.run, &oracle, false)?.outputs;
        for (option, run) in &case.without {
            // Only the outputs that are there with and without the option, and have the same shape.
            let ignored = evaluate(run, &oracle, false)?.outputs;
            let pairs = expected.iter().filter_map(|a| {
                let b = ignored.iter().find(|b| b.name == a.name && b.shape == a.shape)?;
                Some(Difference::between(&a.values, &b.values))
            });
            let moved = pairs.map(|difference| difference.max_abs).fold(0.0, f64::max);
            let allowed = case.tolerance * Difference::between(&all(&expected), &[]).largest.max(1.0);
            found.push(Sensitivity { case: case.name.clone(), without: option.clone(), moved, allowed });
        }
    }
    Ok(found)
}

/// The rows of one case on one backend.
fn compare(
    case: &Case,
    expected: &Evaluation,
    backend: &str,
    target: &Target,
    gradients: bool,
) -> Result<Vec<ParityRow>, Error> {
    let row = |suffix: &str, difference: Difference, tolerance: f64| ParityRow {
        backend: backend.to_owned(),
        case: format!("{}{suffix}", case.name),
        max_abs: difference.max_abs,
        rel_l2: difference.rel_l2,
        tolerance,
        ok: difference.is_within(tolerance),
    };
    let plain = evaluate(&case.run, target, false)?.outputs;
    let mut rows = vec![row("", outputs_differ(&expected.outputs, &plain), case.tolerance)];
    if gradients {
        let recorded = evaluate(&case.run, target, true)?;
        rows.push(row(": autodiff", outputs_differ(&plain, &recorded.outputs), case.tolerance));
        let worst = gradients_differ(&expected.gradients, &recorded.gradients);
        rows.push(row(": gradients", worst, case.gradient_tolerance));
    }
    Ok(rows)
}

/// All outputs taken together; infinitely far where names or shapes differ.
fn outputs_differ(expected: &[Numbers], found: &[Numbers]) -> Difference {
    let shapes = |outputs: &[Numbers]| outputs.iter().map(|o| (o.name.clone(), o.shape.clone())).collect::<Vec<_>>();
    if shapes(expected) != shapes(found) {
        return Difference { max_abs: f64::INFINITY, rel_l2: f64::INFINITY, largest: 1.0 };
    }
    Difference::between(&all(expected), &all(found))
}

fn all(numbers: &[Numbers]) -> Vec<f64> {
    numbers.iter().flat_map(|numbers| numbers.values.iter().copied()).collect()
}

/// The worst tensor, in units of its largest number. The gradient of a key projection's bias is zero but for rounding,
/// so no unit is smaller than a tenth of the largest number of all.
fn gradients_differ(expected: &[Numbers], found: &[Numbers]) -> Difference {
    let overall = outputs_differ(expected, found);
    let mut worst = Difference { max_abs: 0.0, rel_l2: overall.rel_l2, largest: 1.0 };
    if overall.max_abs.is_nan() || overall.max_abs.is_infinite() {
        return Difference { largest: 1.0, ..overall };
    }
    for (expected, found) in expected.iter().zip(found) {
        let difference = Difference::between(&expected.values, &found.values);
        let unit = difference.largest.max(overall.largest / 10.0);
        if unit > 0.0 {
            worst.max_abs = worst.max_abs.max(difference.max_abs / unit);
        } else if difference.max_abs > 0.0 {
            worst.max_abs = f64::INFINITY;
        }
    }
    worst
}

fn all_cases() -> Result<Vec<Case>, Error> {
    let mut cases = function_cases::all();
    cases.extend(attention_cases::all());
    cases.extend(module_cases::all());
    cases.extend(block_cases::all());
    cases.extend(model_cases::all()?);
    cases.extend(classifier_cases::all()?);
    cases.extend(empty_cases::all());
    Ok(cases)
}

/// Where the oracle runs: the first backend of this build that computes in 64 bits.
fn oracle() -> Result<Target, Error> {
    let Some(backend) = [Backend::Flex, Backend::NdArray].into_iter().find(|backend| backend.is_compiled()) else {
        let problem = "the oracle computes in 64 bits on `flex` or `ndarray`, and this build has neither";
        return Err(Error::backend(Backend::Flex, problem));
    };
    let device: Device = DeviceName::new(backend).open()?;
    Ok(Target { device, dtype: DType::F64, is_oracle: true, fault: 0.0 })
}
