//! The gradients of norms over rows in host memory. What is kept for the backward pass is the input and the weight alone.

use std::sync::Mutex;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::Shape;
use multiversion::multiversion;

use super::Normalization;
use super::flex::{dense, numbers, tensor};
use super::normalize::{CHUNK, NormKernels, NormParameters, mean_and_factor};
use super::parallel;

impl<C: CheckpointStrategy> NormKernels for Autodiff<Flex, C> {
    fn norm_kernel(
        x: FloatTensor<Self>,
        parameters: NormParameters<Self>,
        normalization: Normalization,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let (parameters, [weight_node, bias_node]) = without_nodes(parameters);
        let weight = match &parameters {
            NormParameters::None => None,
            NormParameters::Weight(weight) | NormParameters::WeightAndBias(weight, _) => Some(weight.clone()),
        };
        match NormBackward.prepare::<C>([node, weight_node, bias_node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let state = (x.clone(), weight, normalization);
                preparation.finish(state, Flex::norm_kernel(x, parameters, normalization))
            }
            OpsKind::UnTracked(preparation) => preparation.finish(Flex::norm_kernel(x, parameters, normalization)),
        }
    }
}

/// The parameters, and the nodes of weight and bias; an absent one has a node that nothing hangs on.
fn without_nodes<C: CheckpointStrategy>(
    parameters: NormParameters<Autodiff<Flex, C>>,
) -> (NormParameters<Flex>, [NodeGuard; 2]) {
    let absent = || FloatTensor::<Autodiff<Flex, C>>::new(tensor(Vec::new(), Shape::new([0]))).node();
    match parameters {
        NormParameters::None => (NormParameters::None, [absent(), absent()]),
        NormParameters::Weight(weight) => {
            let (weight, node) = weight.into_parts();
            (NormParameters::Weight(weight), [node, absent()])
        }
        NormParameters::WeightAndBias(weight, bias) => {
            let ((weight, weight_node), (bias, bias_node)) = (weight.into_parts(), bias.into_parts());
            (NormParameters::WeightAndBias(weight, bias), [weight_node, bias_node])
        }
    }
}

#[derive(Debug)]
struct NormBackward;

impl Backward<Flex, 3> for NormBackward {
    type State = (FlexTensor, Option<FlexTensor>, Normalization);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (x, weight, normalization) = ops.state;
        let (x, weight) = (dense(x), weight.map(dense));
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let shape = x.layout().shape().clone();
        let width = shape[shape.num_dims() - 1];
        let gradient = gradient(numbers(&x), weight.as_ref().map(numbers), numbers(&dy), width, normalization);
        let [x_parent, weight_parent, bias_parent] = ops.parents;
        if let Some(parent) = x_parent {
            grads.register::<Flex>(parent.id, tensor(gradient.x, shape));
        }
        if let Some(parent) = weight_parent {
            grads.register::<Flex>(parent.id, tensor(gradient.weight, Shape::new([width])));
        }
        if let Some(parent) = bias_parent {
            grads.register::<Flex>(parent.id, tensor(gradient.bias, Shape::new([width])));
        }
    }
}

/// The gradients of all inputs of a norm.
struct Gradient {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

fn gradient(x: &[f32], weight: Option<&[f32]>, dy: &[f32], width: usize, normalization: Normalization) -> Gradient {
    let piece_len = (CHUNK / width).max(1) * width;
    // Of each piece its own sums, so that the order in which they are added does not hang on the threads.
    let sums: Vec<_> = (0..x.len().div_ceil(piece_len)).map(|_| Mutex::new(Vec::new())).collect();
    let dx = parallel::fill(x.len(), piece_len, |index, dx| {
        let mut of_piece = vec![0.0; 2 * width];
        let (d_weight, d_bias) = of_piece.split_at_mut(width);
        let start = index * piece_len;
        let rows = x[start..].chunks(width).zip(dy[start..].chunks(width));
        for (dx, (x, dy)) in dx.chunks_mut(width).zip(rows) {
            gradient_of_row(dx, d_weight, d_bias, x, weight, dy, normalization);
        }
        *sums[index].lock().expect("no piece panicked") = of_piece;
    });
    let mut total = vec![0.0; 2 * width];
    for of_piece in sums {
        let of_piece = of_piece.into_inner().expect("no piece panicked");
        total.iter_mut().zip(of_piece).for_each(|(total, sum)| *total += sum);
    }
    let bias = total.split_off(width);
    Gradient { x: dx, weight: total, bias }
}

/// With x̂ the normalised row and g = dy · weight: dx = factor · (g − mean(g) − x̂ · mean(g · x̂)), without the mean of g
/// where nothing was subtracted.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn gradient_of_row(
    dx: &mut [f32],
    d_weight: &mut [f32],
    d_bias: &mut [f32],
    x: &[f32],
    weight: Option<&[f32]>,
    dy: &[f32],
    normalization: Normalization,
) {
    let (mean, factor) = mean_and_factor(x, normalization);
    match weight {
        Some(weight) => {
            let offset = normalization.weight_offset;
            for ((g, dy), weight) in dx.iter_mut().zip(dy).zip(weight) {
                *g = dy * (weight + offset);
            }
        }
        None => dx.copy_from_slice(dy),
    }
    const LANES: usize = 16;
    let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
    for (g, x) in dx.chunks(LANES).zip(x.chunks(LANES)) {
        for (lane, (g, x)) in g.iter().zip(x).enumerate() {
            sums[lane] += g;
            products[lane] += g * ((x - mean) * factor);
        }
    }
    let width = x.len() as f32;
    let mean_g = if normalization.is_centered { sums.iter().sum::<f32>() / width } else { 0.0 };
    let mean_product = products.iter().sum::<f32>() / width;
    for (g, x) in dx.iter_mut().zip(x) {
        *g = factor * (*g - mean_g - (x - mean) * factor * mean_product);
    }
    for ((d_weight, dy), x) in d_weight.iter_mut().zip(dy).zip(x) {
        *d_weight += dy * ((x - mean) * factor);
    }
    d_bias.iter_mut().zip(dy).for_each(|(d_bias, dy)| *d_bias += dy);
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::{Device, Distribution, Tensor, Tolerance};

    use crate::norm::{Norm, NormConfig, NormKind};

    /// Sums over 80 rows of products up to 20, in another order than the twin's; its gradients have up to ten roundings.
    const TOLERANCE: f32 = 2e-4;

    #[test]
    fn gradients_are_those_of_the_composed_twin() {
        let device = Device::flex().autodiff();
        let random = |dims: [usize; 3]| Tensor::<3>::random(dims, Distribution::Normal(0.5, 1.5), &device);
        for width in [1, 6, 300] {
            for kind in [
                NormKind::Layer,
                NormKind::LayerNoBias,
                NormKind::LayerNoAffine,
                NormKind::LayerPlusOne,
                NormKind::Rms,
                NormKind::RmsPlusOne,
            ] {
                let mut norm = NormConfig::new(kind).with_eps(0.1).init(width, &device);
                let parameter = || Param::from_tensor(random([1, 1, width]).reshape([width]));
                norm.weight = norm.weight.map(|_| parameter());
                norm.bias = norm.bias.map(|_| parameter());
                let x = random([2, 40, width]).require_grad();
                let factors = random([2, 40, width]);
                let gradients = |norm: &Norm, y: Tensor<3>| {
                    let gradients = (y * factors.clone()).sum().backward();
                    let of_parameters = [&norm.weight, &norm.bias].into_iter().flatten();
                    let of_parameters = of_parameters.map(|param| param.val().grad(&gradients).expect("tracked"));
                    let of_x = x.grad(&gradients).expect("tracked").into_data();
                    std::iter::once(of_x).chain(of_parameters.map(Tensor::into_data)).collect::<Vec<_>>()
                };
                let found = gradients(&norm, norm.forward(x.clone()));
                let expected = gradients(&norm, norm.composed(x.clone()));
                for (found, expected) in found.iter().zip(&expected) {
                    found.assert_approx_eq::<f32>(expected, Tolerance::absolute(TOLERANCE));
                }
            }
        }
    }
}
