//! One step of AdamW over numbers in host memory, in one pass.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::Tensor;
use multiversion::multiversion;

use super::flex::{dense, numbers, own_numbers, tensor};
use super::parallel;

/// What one step does, its corrections and rates resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamWStep {
    /// Decay of the mean of gradients.
    pub beta_1: f32,
    /// Decay of the mean of squared gradients.
    pub beta_2: f32,
    /// Factor on the quotient of the two, bias corrections included.
    pub rate: f32,
    /// Added to the root of the mean of squares.
    pub eps: f32,
    /// Factor on the parameter, by which it decays.
    pub keep: f32,
}

#[burn::backend::backend_extension(Flex)]
pub trait OptimizerKernels: Backend {
    /// Parameter and both moments after a step, all of 32-bit numbers.
    fn adamw_kernel(
        parameter: FloatTensor<Self>,
        moment_1: FloatTensor<Self>,
        moment_2: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl OptimizerKernels for Flex {
    fn adamw_kernel(
        parameter: FlexTensor,
        moment_1: FlexTensor,
        moment_2: FlexTensor,
        gradient: FlexTensor,
        step: AdamWStep,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let gradient = dense(gradient);
        let [mut parameter, mut moment_1, mut moment_2] = [parameter, moment_1, moment_2].map(owned);
        let own = "it has been made the only owner";
        update(
            own_numbers(&mut parameter).expect(own),
            own_numbers(&mut moment_1).expect(own),
            own_numbers(&mut moment_2).expect(own),
            numbers(&gradient),
            step,
        );
        (parameter, moment_1, moment_2)
    }
}

/// `x`, dense and the only owner of its storage; copied where it is not.
fn owned(x: FlexTensor) -> FlexTensor {
    let mut x = dense(x);
    match own_numbers(&mut x) {
        Some(_) => x,
        None => tensor(numbers(&x).to_vec(), x.layout().shape().clone()),
    }
}

/// Parameter, first and second moment after a step, of flex tensors of 32-bit numbers: parameter, both moments, gradient.
/// What has no other owner changes in place.
pub(crate) fn adamw<const D: usize>(
    [parameter, moment_1, moment_2, gradient]: [Tensor<D>; 4],
    step: AdamWStep,
) -> [Tensor<D>; 3] {
    let (parameter, moment_1, moment_2) = Dispatch::adamw_kernel(
        parameter.into_dispatch(),
        moment_1.into_dispatch(),
        moment_2.into_dispatch(),
        gradient.into_dispatch(),
        step,
    );
    [parameter, moment_1, moment_2].map(Tensor::from_dispatch)
}

/// Numbers that one thread takes at a time.
const CHUNK: usize = 16 << 10;

fn update(parameter: &mut [f32], moment_1: &mut [f32], moment_2: &mut [f32], gradient: &[f32], step: AdamWStep) {
    let pieces = parameter.chunks_mut(CHUNK).zip(moment_1.chunks_mut(CHUNK)).zip(moment_2.chunks_mut(CHUNK));
    let mut pieces: Vec<_> = pieces.zip(gradient.chunks(CHUNK)).collect();
    parallel::pieces(&mut pieces, 1, |_, piece| {
        for (((parameter, moment_1), moment_2), gradient) in piece {
            update_slice(parameter, moment_1, moment_2, gradient, step);
        }
    });
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn update_slice(parameter: &mut [f32], moment_1: &mut [f32], moment_2: &mut [f32], gradient: &[f32], step: AdamWStep) {
    let moments = moment_1.iter_mut().zip(moment_2);
    for ((parameter, (moment_1, moment_2)), gradient) in parameter.iter_mut().zip(moments).zip(gradient) {
        *moment_1 = *moment_1 * step.beta_1 + gradient * (1.0 - step.beta_1);
        *moment_2 = *moment_2 * step.beta_2 + gradient * gradient * (1.0 - step.beta_2);
        *parameter = *parameter * step.keep - step.rate * *moment_1 / (moment_2.sqrt() + step.eps);
    }
}
