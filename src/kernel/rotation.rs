//! Turning pairs of features of heads in host memory, as rotary positions do.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex};
use burn::tensor::Tensor;
use multiversion::multiversion;

use super::flex::{dense, numbers, tensor};
use super::parallel;

#[burn::backend::backend_extension(Flex, Autodiff)]
pub trait RotationKernels: Backend {
    /// Turns the first pairs of features of each head, `[batch, heads, seq, d_head]`, by angles
    /// `[1 or batch, 1, seq, pairs]`.
    fn rotation_kernel(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        is_interleaved: bool,
    ) -> FloatTensor<Self>;
}

impl RotationKernels for Flex {
    fn rotation_kernel(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, is_interleaved: bool) -> FlexTensor {
        let x = if x.layout().strides()[3] == 1 && x.layout().strides().iter().all(|&stride| stride >= 0) {
            x
        } else {
            dense(x)
        };
        let (cos, sin) = (dense(cos), dense(sin));
        let shape = x.layout().shape().clone();
        let dims: [usize; 4] = std::array::from_fn(|axis| shape[axis]);
        let strides: [usize; 3] = std::array::from_fn(|axis| x.layout().strides()[axis] as usize);
        let heads = Heads { numbers: &x.storage::<f32>()[x.layout().start_offset()..], dims, strides };
        let angles = Angles {
            cos: numbers(&cos),
            sin: numbers(&sin),
            pairs: cos.layout().shape()[3],
            is_shared: cos.layout().shape()[0] == 1,
        };
        tensor(turn(heads, angles, is_interleaved), shape)
    }
}

impl<C: CheckpointStrategy> RotationKernels for Autodiff<Flex, C> {
    fn rotation_kernel(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        is_interleaved: bool,
    ) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        match RotationBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let state = (cos.clone(), sin.clone(), is_interleaved);
                preparation.finish(state, Flex::rotation_kernel(x, cos, sin, is_interleaved))
            }
            OpsKind::UnTracked(preparation) => preparation.finish(Flex::rotation_kernel(x, cos, sin, is_interleaved)),
        }
    }
}

/// The gradient turns back. Angles are constants.
#[derive(Debug)]
struct RotationBackward;

impl Backward<Flex, 1> for RotationBackward {
    type State = (FlexTensor, FlexTensor, bool);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (cos, sin, is_interleaved) = ops.state;
        unary::<Flex, _>(ops.parents, ops.node, grads, |dy| {
            let sin = dense(sin);
            let back = numbers(&sin).iter().map(|sin| -sin).collect();
            let back = tensor(back, sin.layout().shape().clone());
            Flex::rotation_kernel(dy, cos, back, is_interleaved)
        });
    }
}

/// Turns heads of a flex tensor of 32-bit numbers.
pub(super) fn rotation(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>, is_interleaved: bool) -> Tensor<4> {
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::rotation_kernel(x, cos, sin, is_interleaved))
}

/// `[batch, heads, seq, d_head]`, the last axis without gaps.
#[derive(Clone, Copy)]
struct Heads<'a> {
    numbers: &'a [f32],
    dims: [usize; 4],
    /// Of the first three axes.
    strides: [usize; 3],
}

/// Cosines and sines, a row of `pairs` for each position, for each row of the batch where they are not shared.
#[derive(Clone, Copy)]
struct Angles<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    is_shared: bool,
}

/// Numbers that one thread takes at a time.
const CHUNK: usize = 16 << 10;

/// The heads turned, without gaps.
fn turn(x: Heads, angles: Angles, is_interleaved: bool) -> Vec<f32> {
    let [_, heads, seq, d_head] = x.dims;
    let rows_at_once = (CHUNK / d_head).max(1);
    parallel::fill(x.dims.iter().product(), rows_at_once * d_head, |piece, y| {
        for (index, y) in y.chunks_mut(d_head).enumerate() {
            let row = piece * rows_at_once + index;
            let at = [row / seq / heads, row / seq % heads, row % seq];
            let start: usize = at.iter().zip(x.strides).map(|(at, stride)| at * stride).sum();
            let position = if angles.is_shared { at[2] } else { at[0] * seq + at[2] };
            let [cos, sin] = [angles.cos, angles.sin].map(|all| &all[position * angles.pairs..][..angles.pairs]);
            turn_row(y, &x.numbers[start..][..d_head], cos, sin, is_interleaved);
        }
    })
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn turn_row(y: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32], is_interleaved: bool) {
    let pairs = cos.len();
    let (turning, rest) = x.split_at(2 * pairs);
    let (turned, kept) = y.split_at_mut(2 * pairs);
    kept.copy_from_slice(rest);
    if is_interleaved {
        let pairs = turned.as_chunks_mut::<2>().0.iter_mut().zip(turning.as_chunks::<2>().0);
        for (([y_u, y_v], [u, v]), (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
            *y_u = u * cos - v * sin;
            *y_v = v * cos + u * sin;
        }
    } else {
        let (y_u, y_v) = turned.split_at_mut(pairs);
        let (u, v) = turning.split_at(pairs);
        for i in 0..pairs {
            y_u[i] = u[i] * cos[i] - v[i] * sin[i];
            y_v[i] = v[i] * cos[i] + u[i] * sin[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Angles, Heads, turn};

    /// Two products of numbers below one, each rounded.
    const TOLERANCE: f32 = 2e-7;

    #[test]
    fn pairs_are_turned_in_both_styles_at_any_strides() {
        let (batch, heads, seq, d_head, pairs) = (2, 3, 5, 10, 4);
        let number = |i: usize| ((i * 2_654_435_761) % 10_007) as f32 / 10_007.0 - 0.5;
        let numbers: Vec<f32> = (0..batch * seq * heads * d_head).map(number).collect();
        // The memory of `[batch, seq, heads, d_head]`.
        let x = Heads {
            numbers: &numbers,
            dims: [batch, heads, seq, d_head],
            strides: [seq * heads * d_head, d_head, heads * d_head],
        };
        for is_shared in [true, false] {
            let angle: Vec<f32> =
                (0..if is_shared { 1 } else { batch } * seq * pairs).map(|i| i as f32 * 0.7).collect();
            let (cos, sin): (Vec<f32>, Vec<f32>) = angle.iter().map(|angle| (angle.cos(), angle.sin())).unzip();
            for is_interleaved in [false, true] {
                let y = turn(x, Angles { cos: &cos, sin: &sin, pairs, is_shared }, is_interleaved);
                assert_eq!(y.len(), numbers.len());
                for (row, y) in y.chunks(d_head).enumerate() {
                    let (b, h, s) = (row / seq / heads, row / seq % heads, row % seq);
                    let x = &numbers[((b * seq + s) * heads + h) * d_head..][..d_head];
                    let mut expected = x.to_vec();
                    for pair in 0..pairs {
                        let (i, j) = if is_interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                        let at = (if is_shared { s } else { b * seq + s }) * pairs + pair;
                        expected[i] = x[i] * cos[at] - x[j] * sin[at];
                        expected[j] = x[j] * cos[at] + x[i] * sin[at];
                    }
                    for (y, expected) in y.iter().zip(expected) {
                        assert!((y - expected).abs() <= TOLERANCE, "interleaved {is_interleaved}: {y} {expected}");
                    }
                }
            }
        }
    }
}
