//! What the oracle itself is worth: two backends in 64 bits agree to rounding, and its gradients are those of finite
//! differences.

use burn::tensor::DType;

use super::numbers::draw;
use super::probe::{Numbers, Target, evaluate};
use super::{all_cases, gradients_differ, oracle, outputs_differ};
#[cfg(feature = "ndarray")]
use crate::backend::{Backend, DeviceName};

/// An operation that fell back to 32 bits anywhere would be off by 1e-8 at least.
#[cfg(feature = "ndarray")]
#[test]
fn two_backends_agree_in_64_bits() {
    let flex = oracle().unwrap();
    let device = DeviceName::new(Backend::NdArray).open().unwrap();
    let ndarray = Target { device, dtype: DType::F64, is_oracle: true, fault: 0.0 };
    for case in all_cases().unwrap() {
        let a = evaluate(&case.run, &flex, case.has_gradients).unwrap();
        let b = evaluate(&case.run, &ndarray, case.has_gradients).unwrap();
        let outputs = outputs_differ(&a.outputs, &b.outputs);
        assert!(outputs.is_within(1e-12), "{}: {outputs:?}", case.name);
        let gradients = gradients_differ(&a.gradients, &b.gradients);
        assert!(gradients.is_within(1e-11), "{}: {gradients:?}", case.name);
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    /// The step is small enough for its square and large enough for the rounding of 64 bits.
    const STEP: f64 = 1e-5;
    let loss = |outputs: &[Numbers]| -> f64 {
        let weighted = outputs.iter().map(|output| {
            let factors = draw(&format!("{}.gradient", output.name), output.values.len(), 1.0);
            output.values.iter().zip(factors).map(|(value, factor)| value * factor).sum::<f64>()
        });
        weighted.sum()
    };
    let mut checked = 0;
    for case in all_cases().unwrap().into_iter().filter(|case| case.has_gradients) {
        // All first numbers of parameters move together.
        let at =
            |fault: f64| loss(&evaluate(&case.run, &Target { fault, ..oracle().unwrap() }, false).unwrap().outputs);
        let measured = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        let gradients = evaluate(&case.run, &oracle().unwrap(), true).unwrap().gradients;
        let of_parameters = gradients.iter().filter(|gradient| gradient.name.contains('.'));
        let computed: f64 = of_parameters.map(|gradient| gradient.values[0]).sum();
        checked += usize::from(computed != 0.0);
        let error = (measured - computed).abs() / computed.abs().max(1.0);
        assert!(error < 1e-6, "{}: measured {measured}, computed {computed}", case.name);
    }
    assert!(checked >= 60, "{checked} cases with parameters");
}
