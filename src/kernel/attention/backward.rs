//! Attention of flex tensors whose gradients are recorded. What is kept for the backward pass are inputs, output and a number
//! for each row of scores.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::Shape;

use super::super::flex::tensor;
use super::super::optional::{OptionalBool, OptionalFloat};
use super::ScoreRule;
use super::flex::{AttentionKernels, HeldInputs, view, with_whole_rows};
use super::gradient::{Upstream, gradients};

impl<C: CheckpointStrategy> AttentionKernels for Autodiff<Flex, C> {
    fn attention_kernel(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        bias: OptionalFloat<Self>,
        padding: OptionalBool<Self>,
        explicit: OptionalBool<Self>,
        rule: ScoreRule,
    ) -> FloatTensor<Self> {
        let [(query, query_node), (key, key_node), (value, value_node)] = [query, key, value].map(|x| x.into_parts());
        let (bias, bias_node) = match bias {
            OptionalFloat::Present(bias) => {
                let (bias, node) = bias.into_parts();
                (Some(bias), node)
            }
            // A node that nothing hangs on.
            OptionalFloat::Absent => (None, FloatTensor::<Self>::new(tensor(Vec::new(), Shape::new([0]))).node()),
        };
        let hidden = [padding.into_option(), explicit.into_option()];
        let inputs = HeldInputs::new([query, key, value], bias, hidden, rule);
        let nodes = [query_node, key_node, value_node, bias_node];
        match AttentionBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let (output, log_sums) = inputs.attend_with_log_sums();
                preparation.finish(State { inputs, output: output.clone(), log_sums: log_sums.into() }, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(inputs.attend()),
        }
    }
}

#[derive(Clone, Debug)]
struct State {
    inputs: HeldInputs,
    output: FlexTensor,
    /// Of the exponentials of each row of scores, `[batch, query_len, n_heads]`.
    log_sums: Arc<[f32]>,
}

#[derive(Debug)]
struct AttentionBackward;

impl Backward<Flex, 4> for AttentionBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let State { inputs, output, log_sums } = ops.state;
        let gradient = with_whole_rows(grads.consume::<Flex>(&ops.node));
        let upstream = Upstream { output: view(&output), gradient: view(&gradient), log_sums: &log_sums };
        let [query, key, value, bias] = ops.parents;
        let found = gradients(inputs.sequences(), &inputs.scores(), &upstream, bias.is_some());
        let of_sequences = [(query, found.query), (key, found.key), (value, found.value)];
        for ((parent, gradient), input) in of_sequences.into_iter().zip(inputs.tensors()) {
            if let Some(parent) = parent {
                grads.register::<Flex>(parent.id, tensor(gradient, input.layout().shape().clone()));
            }
        }
        if let (Some(parent), Some(gradient), Some(bias)) = (bias, found.bias, inputs.bias()) {
            grads.register::<Flex>(parent.id, tensor(gradient, bias.layout().shape().clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bool, Device, Distribution, Tensor, Tolerance};

    use crate::attention::{AttentionKernel, AttentionMask, ScoreOptions, scaled_dot_product_attention};

    /// Gradients up to 10, sums of up to 300 products in another order than the twin's: roundings of 1e-6, of which the root
    /// of their number arrives.
    const TOLERANCE: f32 = 3e-5;

    /// One request.
    #[derive(Clone)]
    struct Case {
        heads: [usize; 2],
        lens: [usize; 2],
        widths: [usize; 2],
        mask: AttentionMask,
        bias: Option<[usize; 3]>,
        softcap: Option<f64>,
    }

    impl Case {
        fn new(heads: [usize; 2], lens: [usize; 2], mask: AttentionMask) -> Self {
            Self { heads, lens, widths: [16, 16], mask, bias: None, softcap: None }
        }

        /// Queries, keys and values, heads side by side in memory as projections leave them; factors on the output; the bias.
        fn inputs(&self) -> Vec<Tensor<4>> {
            const BATCH: usize = 2;
            let ([n_heads, n_kv_heads], [query_len, key_len]) = (self.heads, self.lens);
            let [d_head, d_value] = self.widths;
            let dims = [
                [BATCH, query_len, n_heads, d_head],
                [BATCH, key_len, n_kv_heads, d_head],
                [BATCH, key_len, n_kv_heads, d_value],
                [BATCH, n_heads, query_len, d_value],
            ];
            let bias = self.bias.map(|[a, b, c]| [a, b, c, key_len]);
            let device = Device::flex();
            let random = |dims| Tensor::<4>::random(dims, Distribution::Normal(0.0, 1.5), &device);
            dims.into_iter().chain(bias).map(random).collect()
        }

        /// Gradients of queries, keys, values and, where there is one, of the bias.
        fn gradients(&self, inputs: &[Tensor<4>], kernel: AttentionKernel) -> Vec<Tensor<4>> {
            let mut inputs: Vec<_> = inputs.iter().map(|x| x.clone().autodiff().require_grad()).collect();
            let factors = inputs.remove(3).detach();
            let options = ScoreOptions { softcap: self.softcap, kernel, ..ScoreOptions::default() };
            let [q, k, v] = [0, 1, 2].map(|index: usize| inputs[index].clone().swap_dims(1, 2));
            let context = scaled_dot_product_attention(q, k, v, &self.mask, inputs.get(3), &options).context;
            let gradients = (context * factors).sum().backward();
            inputs.iter().map(|x| x.grad(&gradients).expect("it is tracked")).collect()
        }
    }

    fn assert_same(name: &str, case: &Case) {
        let inputs = case.inputs();
        let gradients = |kernel| case.gradients(&inputs, kernel);
        let (found, expected) = (gradients(AttentionKernel::Fused), gradients(AttentionKernel::Composed));
        assert_eq!(found.len(), expected.len(), "{name}");
        for (input, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            println!("{name}, input {input}");
            found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(TOLERANCE));
        }
    }

    #[test]
    fn gradients_are_those_of_the_composed_twin() {
        let plain = Case::new([2, 2], [5, 5], AttentionMask::none());
        let causal = AttentionMask::causal;
        let padding = |rows: [Vec<bool>; 2]| {
            let [batch, len] = [2, rows[0].len()];
            let marks: Vec<bool> = rows.concat();
            Tensor::<1, Bool>::from_data(marks.as_slice(), &Device::flex().autodiff()).reshape([batch, len])
        };
        // The second sequence is all padding: rows without any visible key.
        let padded = padding([vec![false, false, true, false, true], vec![true; 5]]);
        for (name, case) in [
            ("plain", plain.clone()),
            ("one query", Case::new([4, 2], [1, 7], causal())),
            ("causal, over several tiles", Case::new([2, 2], [300, 300], causal())),
            ("grouped, more keys than queries", Case::new([6, 2], [70, 150], causal())),
            ("fewer keys than queries", Case::new([2, 1], [9, 4], causal())),
            ("window", Case::new([2, 2], [200, 200], causal().with_window(30))),
            ("window on both sides", Case::new([2, 1], [150, 150], AttentionMask::none().with_window(20))),
            ("padding", Case::new([2, 2], [5, 5], causal().with_padding(padded))),
            ("softcap", Case { softcap: Some(3.0), ..Case::new([4, 2], [40, 40], causal()) }),
            ("bias of all", Case { bias: Some([2, 2, 5]), ..plain.clone() }),
            ("shared bias", Case { bias: Some([1, 2, 1]), softcap: Some(2.0), ..plain.clone() }),
            ("bias of heads", Case { bias: Some([1, 4, 50]), ..Case::new([4, 2], [50, 50], causal()) }),
            ("other widths", Case { widths: [24, 7], ..Case::new([4, 2], [33, 40], causal()) }),
        ] {
            assert_same(name, &case);
        }
    }

    #[test]
    fn every_option_moves_gradients() {
        let plain = Case::new([2, 2], [20, 20], AttentionMask::none());
        let inputs = Case { bias: Some([1, 2, 20]), ..plain.clone() }.inputs();
        let gradients = |case: &Case| {
            let count = if case.bias.is_some() { 5 } else { 4 };
            case.gradients(&inputs[..count], AttentionKernel::Fused).remove(0)
        };
        let reference = gradients(&plain);
        for (name, case) in [
            ("causal", Case { mask: AttentionMask::causal(), ..plain.clone() }),
            ("window", Case { mask: AttentionMask::none().with_window(5), ..plain.clone() }),
            ("softcap", Case { softcap: Some(2.0), ..plain.clone() }),
            ("bias", Case { bias: Some([1, 2, 20]), ..plain.clone() }),
        ] {
            let moved = (gradients(&case) - reference.clone()).abs().max().into_scalar::<f32>();
            assert!(moved > 100.0 * TOLERANCE, "{name} moves gradients by {moved}");
        }
    }
}
