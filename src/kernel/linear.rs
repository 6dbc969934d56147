//! Affine maps of flex tensors.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::{DType, Tensor};

use super::flex::{Rows, dense, numbers, tensor};
use super::optional::OptionalFloat;
use super::product::{Matrix, product};

#[burn::backend::backend_extension(Flex, Autodiff)]
pub trait LinearKernels: Backend {
    /// `x · weight + bias` over the last axis, of 32-bit numbers.
    fn linear_kernel(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: OptionalFloat<Self>,
    ) -> FloatTensor<Self>;

    /// The same with two weights.
    fn linear_pair_kernel(
        x: FloatTensor<Self>,
        weight_0: FloatTensor<Self>,
        weight_1: FloatTensor<Self>,
        #[extension_type] bias_0: OptionalFloat<Self>,
        #[extension_type] bias_1: OptionalFloat<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The same with three weights.
    fn linear_triple_kernel(
        x: FloatTensor<Self>,
        weight_0: FloatTensor<Self>,
        weight_1: FloatTensor<Self>,
        weight_2: FloatTensor<Self>,
        #[extension_type] bias_0: OptionalFloat<Self>,
        #[extension_type] bias_1: OptionalFloat<Self>,
        #[extension_type] bias_2: OptionalFloat<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl LinearKernels for Flex {
    fn linear_kernel(x: FlexTensor, weight: FlexTensor, bias: OptionalFloat<Self>) -> FlexTensor {
        let [y] = products(x, [weight], [bias]);
        y
    }

    fn linear_pair_kernel(
        x: FlexTensor,
        weight_0: FlexTensor,
        weight_1: FlexTensor,
        bias_0: OptionalFloat<Self>,
        bias_1: OptionalFloat<Self>,
    ) -> (FlexTensor, FlexTensor) {
        products(x, [weight_0, weight_1], [bias_0, bias_1]).into()
    }

    fn linear_triple_kernel(
        x: FlexTensor,
        weight_0: FlexTensor,
        weight_1: FlexTensor,
        weight_2: FlexTensor,
        bias_0: OptionalFloat<Self>,
        bias_1: OptionalFloat<Self>,
        bias_2: OptionalFloat<Self>,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        products(x, [weight_0, weight_1, weight_2], [bias_0, bias_1, bias_2]).into()
    }
}

/// Whether the kernels take these parameters beside an input that is recorded for gradients or not. A parameter that
/// differs in this has a backend of another type.
pub(super) fn takes((weight, bias): &(Tensor<2>, Option<Tensor<1>>), is_recorded: bool) -> bool {
    let is_alike = |dtype: DType, is_autodiff: bool| dtype == DType::F32 && is_autodiff == is_recorded;
    is_alike(weight.dtype(), weight.is_autodiff())
        && bias.as_ref().is_none_or(|bias| is_alike(bias.dtype(), bias.is_autodiff()))
}

/// Affine maps of one flex tensor of 32-bit numbers; one product where the weights are columns of one matrix in memory.
pub(super) fn linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    parameters: [(Tensor<2>, Option<Tensor<1>>); N],
) -> [Tensor<D>; N] {
    let x = x.into_dispatch();
    let mut parameters = parameters.into_iter().map(|(weight, bias)| {
        let bias = match bias {
            Some(bias) => OptionalFloat::Present(bias.into_dispatch()),
            None => OptionalFloat::Absent,
        };
        (weight.into_dispatch(), bias)
    });
    let mut next = || parameters.next().expect("there are N of them");
    let outputs = match N {
        1 => {
            let (weight, bias) = next();
            vec![Dispatch::linear_kernel(x, weight, bias)]
        }
        2 => {
            let [(w0, b0), (w1, b1)] = [next(), next()];
            let (y0, y1) = Dispatch::linear_pair_kernel(x, w0, w1, b0, b1);
            vec![y0, y1]
        }
        3 => {
            let [(w0, b0), (w1, b1), (w2, b2)] = [next(), next(), next()];
            let (y0, y1, y2) = Dispatch::linear_triple_kernel(x, w0, w1, w2, b0, b1, b2);
            vec![y0, y1, y2]
        }
        _ => unreachable!("no module maps one input more than three times"),
    };
    let mut outputs = outputs.into_iter().map(Tensor::from_dispatch);
    std::array::from_fn(|_| outputs.next().expect("there is one for each"))
}

fn products<const N: usize>(
    x: FlexTensor,
    weights: [FlexTensor; N],
    biases: [OptionalFloat<Flex>; N],
) -> [FlexTensor; N] {
    let x = if Rows::of(&x).is_some() { x } else { dense(x) };
    let weights = weights.map(with_whole_lines);
    let biases = biases.map(|bias| bias.into_option().map(dense));
    let rows = Rows::of(&x).expect("dense rows");
    let widths = weights.each_ref().map(|weight| weight.layout().shape()[1]);
    let shape_of = |width: usize| {
        let mut shape = x.layout().shape().clone();
        let last = shape.num_dims() - 1;
        shape[last] = width;
        shape
    };
    let count = shape_of(1).num_elements();
    let rows = Matrix { numbers: rows.numbers, dims: [count, rows.width], strides: [rows.stride, 1] };
    let biases = biases.each_ref().map(|bias| bias.as_ref().map(numbers));
    if let Some(weight) = side_by_side(&weights) {
        let mut first = 0;
        let firsts = widths.map(|width| {
            first += width;
            first - width
        });
        let mut bias = vec![0.0; if biases.iter().any(Option::is_some) { first } else { 0 }];
        for (first, part) in firsts.into_iter().zip(biases) {
            if let Some(part) = part {
                bias[first..][..part.len()].copy_from_slice(part);
            }
        }
        let bias = Some(bias.as_slice()).filter(|bias| !bias.is_empty());
        let y = tensor(product(rows, weight, bias), shape_of(weight.dims[1]));
        let axis = y.layout().shape().num_dims() - 1;
        return std::array::from_fn(|i| y.narrow(axis, firsts[i], widths[i]));
    }
    std::array::from_fn(|i| tensor(product(rows, matrix(&weights[i]), biases[i]), shape_of(widths[i])))
}

/// `weight`, one of its axes without gaps and none backwards.
pub(super) fn with_whole_lines(weight: FlexTensor) -> FlexTensor {
    let strides = weight.layout().strides();
    let is_whole = strides.contains(&1) && strides.iter().all(|&stride| stride >= 0);
    if is_whole { weight } else { dense(weight) }
}

/// A weight, [`with_whole_lines`].
pub(super) fn matrix(weight: &FlexTensor) -> Matrix<'_> {
    let layout = weight.layout();
    let [down, across] = [0, 1].map(|axis| layout.strides()[axis] as usize);
    let dims = [0, 1].map(|axis| layout.shape()[axis]);
    Matrix { numbers: &weight.storage::<f32>()[layout.start_offset()..], dims, strides: [down, across] }
}

/// The matrix of which the weights are columns, each beginning where the one before it ends.
fn side_by_side<const N: usize>(weights: &[FlexTensor; N]) -> Option<Matrix<'_>> {
    let first = matrix(&weights[0]);
    let data = weights[0].data_arc();
    let mut columns = 0;
    for weight in weights {
        let layout = weight.layout();
        let follows = Arc::ptr_eq(&weight.data_arc(), &data)
            && layout.strides() == weights[0].layout().strides()
            && layout.start_offset() == weights[0].layout().start_offset() + columns * first.strides[1];
        if !follows {
            return None;
        }
        columns += layout.shape()[1];
    }
    Some(Matrix { dims: [first.dims[0], columns], ..first })
}
