//! LayerNorm and RMSNorm over rows in host memory.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex};
use burn::tensor::Tensor;
use multiversion::multiversion;

use super::Normalization;
use super::flex::{Rows, dense, numbers, tensor};
use super::parallel;

/// The learned part of a norm.
#[derive(ExtensionType)]
pub enum NormParameters<B: Backend> {
    /// Nothing.
    None,
    /// A factor for each feature.
    Weight(FloatTensor<B>),
    /// And a term.
    WeightAndBias(FloatTensor<B>, FloatTensor<B>),
}

#[burn::backend::backend_extension(Flex, Autodiff)]
pub trait NormKernels: Backend {
    /// Normalises the last axis of 32-bit numbers.
    fn norm_kernel(
        x: FloatTensor<Self>,
        #[extension_type] parameters: NormParameters<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self>;
}

impl NormKernels for Flex {
    fn norm_kernel(x: FlexTensor, parameters: NormParameters<Self>, normalization: Normalization) -> FlexTensor {
        let x = if Rows::of(&x).is_some() { x } else { dense(x) };
        let rows = Rows::of(&x).expect("dense rows");
        let [weight, bias] = match parameters {
            NormParameters::None => [None, None],
            NormParameters::Weight(weight) => [Some(dense(weight)), None],
            NormParameters::WeightAndBias(weight, bias) => [Some(dense(weight)), Some(dense(bias))],
        };
        let affine = Affine {
            weight: weight.as_ref().map(numbers),
            weight_offset: normalization.weight_offset,
            bias: bias.as_ref().map(numbers),
        };
        let shape = x.layout().shape().clone();
        let dims = [shape.num_elements() / rows.width.max(1), rows.width];
        let y = normalize(dims, |row| rows.row(row), affine, normalization);
        tensor(y, shape)
    }
}

/// Normalises the last axis of a flex tensor of 32-bit numbers.
pub(super) fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Option<Tensor<1>>,
    bias: Option<Tensor<1>>,
    normalization: Normalization,
) -> Tensor<D> {
    let parameters = match (weight, bias) {
        (Some(weight), Some(bias)) => NormParameters::WeightAndBias(weight.into_dispatch(), bias.into_dispatch()),
        (Some(weight), None) => NormParameters::Weight(weight.into_dispatch()),
        (None, _) => NormParameters::None,
    };
    Tensor::from_dispatch(Dispatch::norm_kernel(x.into_dispatch(), parameters, normalization))
}

/// The learned part of a norm, as slices.
#[derive(Clone, Copy)]
struct Affine<'a> {
    weight: Option<&'a [f32]>,
    weight_offset: f32,
    bias: Option<&'a [f32]>,
}

/// Numbers that one thread takes at a time.
pub(super) const CHUNK: usize = 16 << 10;

fn normalize<'a>(
    [count, width]: [usize; 2],
    rows: impl Fn(usize) -> &'a [f32] + Sync,
    affine: Affine,
    normalization: Normalization,
) -> Vec<f32> {
    let rows_at_once = (CHUNK / width).max(1);
    parallel::fill(count * width, rows_at_once * width, |piece, y| {
        for (index, y) in y.chunks_mut(width).enumerate() {
            normalize_row(y, rows(piece * rows_at_once + index), affine, normalization);
        }
    })
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn normalize_row(y: &mut [f32], x: &[f32], affine: Affine, normalization: Normalization) {
    let (mean, factor) = mean_and_factor(x, normalization);
    match affine.weight {
        None => y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) * factor),
        Some(weight) => {
            let offset = affine.weight_offset;
            for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                *y = (x - mean) * factor * (weight + offset);
            }
        }
    }
    if let Some(bias) = affine.bias {
        y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
}

/// What is subtracted from the numbers of a row, and the factor on the difference.
#[inline(always)]
pub(super) fn mean_and_factor(x: &[f32], normalization: Normalization) -> (f32, f32) {
    let width = x.len() as f32;
    let mean = if normalization.is_centered { sum(x, |value| value) / width } else { 0.0 };
    let mean_square = sum(x, |value| (value - mean) * (value - mean)) / width;
    (mean, 1.0 / (mean_square + normalization.eps as f32).sqrt())
}

/// The sum of `f` of each number, in as many partial sums as fill the vector units: a running sum could not be split.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    const LANES: usize = 32;
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for block in blocks {
        for (sum, &value) in sums.iter_mut().zip(block) {
            *sum += f(value);
        }
    }
    let mut len = LANES;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            sums[i] += sums[i + len];
        }
    }
    sums[0] + rest.iter().map(|&value| f(value)).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::{Affine, Normalization, normalize};

    /// Three roundings of numbers up to 8, and the rounding of a mean that is 100 times the deviation.
    const TOLERANCE: f64 = 2e-5;

    fn exact(x: &[f32], affine: Affine, normalization: Normalization) -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let width = x.len() as f64;
        let mean = if normalization.is_centered { x.iter().sum::<f64>() / width } else { 0.0 };
        let mean_square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width;
        let weight = |i: usize| affine.weight.map_or(1.0, |w| f64::from(w[i]) + f64::from(affine.weight_offset));
        let bias = |i: usize| affine.bias.map_or(0.0, |b| f64::from(b[i]));
        let root = (mean_square + normalization.eps).sqrt();
        x.iter().enumerate().map(|(i, x)| (x - mean) / root * weight(i) + bias(i)).collect()
    }

    #[test]
    fn rows_are_normalised_with_every_option() {
        let number = |i: usize, scale: f32| (((i * 2_654_435_761) % 10_007) as f32 / 10_007.0 - 0.5) * scale;
        for width in [1, 3, 32, 77, 576] {
            let (rows, stride) = (5, width + 3);
            let x: Vec<f32> = (0..rows * stride).map(|i| number(i, 2.0) + 0.3).collect();
            let weight: Vec<f32> = (0..width).map(|i| number(i + 5, 3.0)).collect();
            let bias: Vec<f32> = (0..width).map(|i| number(i + 9, 3.0)).collect();
            for is_centered in [false, true] {
                for (weight, weight_offset, bias, eps) in [
                    (None, 0.0, None, 1e-5),
                    (Some(&weight[..]), 0.0, None, 1e-5),
                    (Some(&weight[..]), 1.0, None, 0.5),
                    (Some(&weight[..]), 0.0, Some(&bias[..]), 1e-5),
                ] {
                    let affine = Affine { weight, weight_offset, bias };
                    let normalization = Normalization { is_centered, eps, weight_offset };
                    let row = |row: usize| &x[row * stride..][..width];
                    let y = normalize([rows, width], row, affine, normalization);
                    assert_eq!(y.len(), rows * width);
                    for (index, y) in y.chunks(width).enumerate() {
                        for (y, expected) in y.iter().zip(exact(row(index), affine, normalization)) {
                            let error = (f64::from(*y) - expected).abs();
                            assert!(error <= TOLERANCE, "width {width}, {normalization:?}: {y}, expected {expected}");
                        }
                    }
                }
            }
        }
    }
}
