//! Products of flex tensors with quantised matrices, and their rows.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::{Device, Tensor, TensorData};

use super::super::flex::{Rows, dense, tensor};
use super::super::product::{Matrix, product_in_parts};
use super::QuantisedMatrix;
use super::product::add_product;

#[burn::backend::backend_extension(Flex)]
pub trait QuantisedKernels: Backend {
    /// `x · weight` over the last axis, of 32-bit numbers.
    fn quantised_product_kernel(x: FloatTensor<Self>, weight: QuantisedMatrix) -> FloatTensor<Self>;
}

/// Rows of `x` up to which each is taken alone: more are worth dequantising for.
const FEW: usize = 3;
/// Outputs whose weights are dequantised at a time.
const PART: usize = 256;

impl QuantisedKernels for Flex {
    fn quantised_product_kernel(x: FlexTensor, weight: QuantisedMatrix) -> FlexTensor {
        let mut shape = x.layout().shape().clone();
        let last = shape.num_dims() - 1;
        let [d_input, d_output] = weight.dims();
        assert_eq!(shape[last], d_input, "rows are as wide as the matrix is high");
        shape[last] = 1;
        let count = shape.num_elements();
        shape[last] = d_output;
        let x = if Rows::of(&x).is_some() { x } else { dense(x) };
        let x = Rows::of(&x).expect("a dense tensor has rows");
        let y = if count <= FEW {
            let mut y = vec![0.0; count * d_output];
            for (row, y) in y.chunks_mut(d_output).enumerate() {
                add_product(x.row(row), &weight, y);
            }
            y
        } else {
            let x = Matrix { numbers: x.numbers, dims: [count, d_input], strides: [x.stride, 1] };
            product_in_parts(x, d_output, PART, |outputs, numbers| weight.append(outputs, numbers))
        };
        tensor(y, shape)
    }
}

/// `x · weight` over the last axis of a flex tensor of 32-bit numbers, of each weight; one product where they are rows of
/// one stack that follow each other.
pub(in super::super) fn linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    weights: [QuantisedMatrix; N],
) -> [Tensor<D>; N] {
    let product = |x: &Tensor<D>, weight: QuantisedMatrix| -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::quantised_product_kernel(x.clone().into_dispatch(), weight))
    };
    let is_stacked = weights.windows(2).all(|pair| {
        Arc::ptr_eq(&pair[0].memory, &pair[1].memory)
            && pair[0].stack.start == pair[1].stack.start
            && pair[0].rows.end == pair[1].rows.start
    });
    if N == 1 || !is_stacked {
        return weights.map(|weight| product(&x, weight));
    }
    let first = weights[0].rows.start;
    let rows = first..weights[N - 1].rows.end;
    let y = product(&x, QuantisedMatrix { rows, ..weights[0].clone() });
    weights.map(|weight| y.clone().slice_dim(D - 1, weight.rows.start - first..weight.rows.end - first))
}

/// Rows of a matrix, one for each index, on `device`.
pub(in super::super) fn rows(matrix: &QuantisedMatrix, indices: &[usize], device: &Device) -> Tensor<2> {
    let [width, height] = matrix.dims();
    let mut numbers = Vec::with_capacity(indices.len() * width);
    for &index in indices {
        assert!(index < height, "row {index} of a table of {height}");
        matrix.append(index..index + 1, &mut numbers);
    }
    Tensor::from_data(TensorData::new(numbers, [indices.len(), width]), device)
}
