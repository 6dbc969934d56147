//! The gradients of activation functions over numbers in host memory. What is kept for the backward pass is the inputs
//! alone.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use multiversion::multiversion;

use super::elementwise::{ElementwiseKernels, map, of_slice};
use super::flex::{dense, numbers, tensor};
use super::function::Function;
use super::scalar;

impl<C: CheckpointStrategy> ElementwiseKernels for Autodiff<Flex, C> {
    fn apply_kernel(x: FloatTensor<Self>, function: Function) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match ApplyBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let state = (x.clone(), function);
                preparation.finish(state, Flex::apply_kernel(x, function))
            }
            OpsKind::UnTracked(preparation) => preparation.finish(Flex::apply_kernel(x, function)),
        }
    }

    fn gate_kernel(gate: FloatTensor<Self>, up: FloatTensor<Self>, function: Function) -> FloatTensor<Self> {
        let ((gate, gate_node), (up, up_node)) = (gate.into_parts(), up.into_parts());
        match GateBackward.prepare::<C>([gate_node, up_node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let state = (gate.clone(), up.clone(), function);
                preparation.finish(state, Flex::gate_kernel(gate, up, function))
            }
            OpsKind::UnTracked(preparation) => preparation.finish(Flex::gate_kernel(gate, up, function)),
        }
    }
}

#[derive(Debug)]
struct ApplyBackward;

impl Backward<Flex, 1> for ApplyBackward {
    type State = (FlexTensor, Function);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (x, function) = ops.state;
        let (x, dy) = (dense(x), dense(grads.consume::<Flex>(&ops.node)));
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            let times_derivative = times_derivative(function);
            let dx = map([numbers(&x), numbers(&dy)], |dx, [_, dy]| times_derivative(dx, dy));
            grads.register::<Flex>(parent.id, tensor(dx, x.layout().shape().clone()));
        }
    }
}

#[derive(Debug)]
struct GateBackward;

impl Backward<Flex, 2> for GateBackward {
    type State = (FlexTensor, FlexTensor, Function);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (gate, up, function) = ops.state;
        let (gate, up, dy) = (dense(gate), dense(up), dense(grads.consume::<Flex>(&ops.node)));
        let shape = gate.layout().shape().clone();
        let [gate_parent, up_parent] = ops.parents;
        if let Some(parent) = up_parent {
            let of_slice = of_slice(function);
            let d_up = map([numbers(&gate), numbers(&dy)], |d_up, [_, dy]| {
                of_slice(d_up);
                multiply(d_up, dy);
            });
            grads.register::<Flex>(parent.id, tensor(d_up, shape.clone()));
        }
        if let Some(parent) = gate_parent {
            let times_derivative = times_derivative(function);
            let d_gate = map([numbers(&gate), numbers(&dy), numbers(&up)], |d_gate, [_, dy, up]| {
                times_derivative(d_gate, dy);
                multiply(d_gate, up);
            });
            grads.register::<Flex>(parent.id, tensor(d_gate, shape));
        }
    }
}

/// What makes `x = function'(x) · dy` of a slice.
fn times_derivative(function: Function) -> fn(&mut [f32], &[f32]) {
    match function {
        Function::Gelu => derivative::gelu_derivative,
        Function::GeluTanh => derivative::gelu_tanh_derivative,
        Function::QuickGelu => derivative::quick_gelu_derivative,
        Function::Silu => derivative::silu_derivative,
    }
}

fn multiply(x: &mut [f32], factors: &[f32]) {
    x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
}

/// One function that changes a slice for each derivative.
mod derivative {
    use super::{multiversion, scalar};

    macro_rules! of_slice {
        ($($name:ident),*) => {$(
            #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
            pub(super) fn $name(x: &mut [f32], dy: &[f32]) {
                for (x, dy) in x.iter_mut().zip(dy) {
                    *x = scalar::$name(*x) * dy;
                }
            }
        )*};
    }
    of_slice!(gelu_derivative, gelu_tanh_derivative, quick_gelu_derivative, silu_derivative);
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tensor};

    use super::super::{Function, gate};
    use super::times_derivative;

    /// The expected value is good to the square of the step, 1e-10. The argument of the exponential has three roundings
    /// and a slope of at most a quarter; the result has four roundings of numbers up to 1.2.
    const TOLERANCE: f64 = 6e-7;

    type Exact = fn(f64) -> f64;

    const FUNCTIONS: [(Function, Exact); 4] = [
        (Function::Gelu, |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))),
        (Function::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }),
        (Function::QuickGelu, |x| x / (1.0 + (-1.702 * x).exp())),
        (Function::Silu, |x| x / (1.0 + (-x).exp())),
    ];

    #[test]
    fn derivatives_are_those_of_the_exact_functions() {
        let inputs: Vec<f32> = (-2000..=2000).map(|i| i as f32 * 4e-3).collect();
        let dy = vec![1.0; inputs.len()];
        for (function, exact) in FUNCTIONS {
            let mut found = inputs.clone();
            times_derivative(function)(&mut found, &dy);
            for (&x, found) in inputs.iter().zip(found) {
                let x = f64::from(x);
                let expected = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
                assert!((f64::from(found) - expected).abs() <= TOLERANCE, "{function:?}'({x}): {found}, {expected}");
            }
        }
    }

    #[test]
    fn gates_have_the_gradients_of_the_composed_twin() {
        let device = Device::flex().autodiff();
        let random = || Tensor::<2>::random([9, 70], Distribution::Normal(0.0, 2.0), &device).require_grad();
        let (gates, ups, weights) = (random(), random(), random());
        let gradients = |y: Tensor<2>| {
            let gradients = (y * weights.clone().detach()).sum().backward();
            [&gates, &ups].map(|input| input.grad(&gradients).expect("it is tracked").into_data())
        };
        for (function, _) in FUNCTIONS {
            let found = gradients(gate(function, gates.clone(), ups.clone()));
            let expected = gradients(function.composed(gates.clone()) * ups.clone());
            for (found, expected) in found.iter().zip(&expected) {
                // Products of up to four factors below 8.
                found.assert_approx_eq::<f32>(expected, burn::tensor::Tolerance::absolute(2e-5));
            }
        }
    }
}
