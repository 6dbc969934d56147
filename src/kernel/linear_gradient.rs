//! The gradients of affine maps of flex tensors, each one product over all rows.

use std::sync::Mutex;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::Shape;

use super::flex::{Rows, dense, numbers, tensor};
use super::linear::{LinearKernels, matrix, with_whole_lines};
use super::optional::OptionalFloat;
use super::parallel;
use super::product::{Matrix, product};

impl<C: CheckpointStrategy> LinearKernels for Autodiff<Flex, C> {
    fn linear_kernel(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: OptionalFloat<Self>) -> FloatTensor<Self> {
        let ((x, x_node), (weight, weight_node)) = (x.into_parts(), weight.into_parts());
        let (bias, bias_node) = match bias {
            OptionalFloat::Present(bias) => {
                let (bias, node) = bias.into_parts();
                (OptionalFloat::Present(bias), node)
            }
            // A node that nothing hangs on.
            OptionalFloat::Absent => {
                let absent = FloatTensor::<Self>::new(tensor(Vec::new(), Shape::new([0])));
                (OptionalFloat::Absent, absent.node())
            }
        };
        match LinearBackward.prepare::<C>([x_node, weight_node, bias_node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let state = (x.clone(), weight.clone());
                preparation.finish(state, Flex::linear_kernel(x, weight, bias))
            }
            OpsKind::UnTracked(preparation) => preparation.finish(Flex::linear_kernel(x, weight, bias)),
        }
    }

    fn linear_pair_kernel(
        x: FloatTensor<Self>,
        weight_0: FloatTensor<Self>,
        weight_1: FloatTensor<Self>,
        bias_0: OptionalFloat<Self>,
        bias_1: OptionalFloat<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (Self::linear_kernel(x.clone(), weight_0, bias_0), Self::linear_kernel(x, weight_1, bias_1))
    }

    fn linear_triple_kernel(
        x: FloatTensor<Self>,
        weight_0: FloatTensor<Self>,
        weight_1: FloatTensor<Self>,
        weight_2: FloatTensor<Self>,
        bias_0: OptionalFloat<Self>,
        bias_1: OptionalFloat<Self>,
        bias_2: OptionalFloat<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let first = Self::linear_kernel(x.clone(), weight_0, bias_0);
        let (second, third) = Self::linear_pair_kernel(x, weight_1, weight_2, bias_1, bias_2);
        (first, second, third)
    }
}

/// dx = dy · weightᵀ, d_weight = xᵀ · dy, d_bias = the sum of the rows of dy.
#[derive(Debug)]
struct LinearBackward;

impl Backward<Flex, 3> for LinearBackward {
    /// The input and the weight.
    type State = (FlexTensor, FlexTensor);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (x, weight) = ops.state;
        let x = if Rows::of(&x).is_some() { x } else { dense(x) };
        let weight = with_whole_lines(weight);
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let shape = x.layout().shape().clone();
        let x = Rows::of(&x).expect("a dense tensor has rows");
        let weight = matrix(&weight);
        let [d_input, d_output] = weight.dims;
        let count = shape.num_elements() / d_input;
        let dy = Matrix { numbers: numbers(&dy), dims: [count, d_output], strides: [d_output, 1] };
        let [x_parent, weight_parent, bias_parent] = ops.parents;
        if let Some(parent) = x_parent {
            grads.register::<Flex>(parent.id, tensor(product(dy, weight.transposed(), None), shape));
        }
        if let Some(parent) = weight_parent {
            let x = Matrix { numbers: x.numbers, dims: [count, d_input], strides: [x.stride, 1] };
            grads.register::<Flex>(
                parent.id,
                tensor(product(x.transposed(), dy, None), Shape::new([d_input, d_output])),
            );
        }
        if let Some(parent) = bias_parent {
            grads.register::<Flex>(parent.id, tensor(sum_of_rows(dy), Shape::new([d_output])));
        }
    }
}

/// The sum of the rows of a matrix without gaps.
fn sum_of_rows(matrix: Matrix) -> Vec<f32> {
    /// Rows of which one thread makes a sum: each piece has its own, so that the order of additions is always the same.
    const PIECE: usize = 128;
    let width = matrix.dims[1];
    let pieces: Vec<_> = matrix.numbers.chunks(PIECE * width).map(|rows| (rows, Mutex::new(Vec::new()))).collect();
    let add = |sum: &mut [f32], row: &[f32]| sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
    parallel::each(pieces.len(), |index| {
        let (rows, found) = &pieces[index];
        let mut sum = vec![0.0; width];
        rows.chunks(width).for_each(|row| add(&mut sum, row));
        *found.lock().expect("no piece panicked") = sum;
    });
    let mut sum = vec![0.0; width];
    for (_, found) in pieces {
        add(&mut sum, &found.into_inner().expect("no piece panicked"));
    }
    sum
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tensor, module};

    use crate::kernel;

    /// Sums of up to 300 products of normal numbers, in two orders: the products' sizes sum to 300 · 2 / π = 191, and each order
    /// errs by about √300 · 2⁻²⁴ of that.
    const TOLERANCE: f32 = 2e-4;

    #[test]
    fn gradients_are_those_of_the_composed_map() {
        let device = Device::flex();
        let random = |dims: &[usize]| {
            let len: usize = dims.iter().product();
            Tensor::<1>::random([len], Distribution::Normal(0.0, 1.0), &device)
        };
        for [batch, seq, d_input, d_output] in [[1, 1, 5, 3], [2, 3, 8, 70], [3, 100, 33, 129], [1, 300, 64, 1]] {
            for (has_bias, is_transposed) in [(false, false), (true, false), (true, true)] {
                let inputs = [
                    random(&[batch, seq, d_input]),
                    random(&[d_input, d_output]),
                    random(&[d_output]),
                    random(&[batch, seq, d_output]),
                ];
                let gradients = |is_kernel: bool| {
                    let [x, weight, bias] = [0, 1, 2].map(|i| inputs[i].clone().autodiff().require_grad());
                    let of_x = x.clone().reshape([batch, seq, d_input]);
                    let of_weight = match is_transposed {
                        true => weight.clone().reshape([d_output, d_input]).transpose(),
                        false => weight.clone().reshape([d_input, d_output]),
                    };
                    let of_bias = has_bias.then(|| bias.clone());
                    let y = match is_kernel {
                        true => {
                            let [y] = kernel::linears(of_x, [(of_weight, of_bias)]);
                            y
                        }
                        false => module::linear(of_x, of_weight, of_bias),
                    };
                    let factors = inputs[3].clone().autodiff().reshape([batch, seq, d_output]);
                    let all = (y * factors).sum().backward();
                    let of = |tensor: &Tensor<1>| {
                        tensor.grad(&all).map(|grad| grad.into_data().iter::<f32>().collect::<Vec<_>>())
                    };
                    [of(&x), of(&weight), of(&bias)]
                };
                for (index, (found, expected)) in gradients(true).into_iter().zip(gradients(false)).enumerate() {
                    let what = format!("input {index} of {:?}", [batch, seq, d_input, d_output]);
                    let (Some(found), Some(expected)) = (&found, &expected) else {
                        assert!(index == 2 && !has_bias && found.is_none() && expected.is_none(), "{what}");
                        continue;
                    };
                    assert!(expected.iter().any(|number| number.abs() > 0.01), "{what} moves the result");
                    for (found, expected) in found.iter().zip(expected) {
                        assert!((found - expected).abs() <= TOLERANCE, "{what}: {found}, expected {expected}");
                    }
                }
            }
        }
    }
}
