//! A step of training.

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};

use super::task::{Task, Work, finish, timed};
use crate::attention::{AttentionMask, MultiHeadAttentionConfig};
use crate::feed_forward::FeedForwardConfig;
use crate::training::OptimizerConfig;
use crate::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlock, TransformerBlockConfig};

const BLOCKS: usize = 4;
const BATCH: usize = 4;
const SEQ: usize = 256;
const D_MODEL: usize = 512;
const D_FF: usize = 2048;
const N_HEADS: usize = 8;
const RATE: f64 = 1e-4;

/// What is trained.
#[derive(Module, Debug)]
struct Stack {
    blocks: Vec<TransformerBlock>,
}

pub(super) fn train_step(device: &Device) -> Task<'_> {
    let attention = MultiHeadAttentionConfig::new(D_MODEL, N_HEADS);
    let config = TransformerBlockConfig::new(attention, FeedForwardConfig::new(D_MODEL, D_FF))
        .with_layout(BlockLayout::new(NormPlacement::Pre));
    let recording = device.clone().autodiff();
    let mut stack = Some(Stack { blocks: (0..BLOCKS).map(|_| config.init(&recording)).collect() }.train());
    let mut optimizer: Option<ModuleOptimizer> = None;
    let x = Tensor::<3>::random([BATCH, SEQ, D_MODEL], Distribution::Normal(0.0, 1.0), &recording);
    let mask = AttentionMask::causal();
    let [blocks, batch, seq, d_model, d_ff] = [BLOCKS, BATCH, SEQ, D_MODEL, D_FF].map(|size| size as f64);
    // As the block's row, with the half of the scores that causality leaves visible; and twice as much backward.
    let forward = batch * (8.0 * seq * d_model * d_model + 2.0 * seq * seq * d_model + 4.0 * seq * d_model * d_ff);
    let run = move || {
        timed(|| {
            let before = stack.take().expect("each step gives the stack back");
            let optimizer = optimizer.get_or_insert_with(|| OptimizerConfig::default().init(&before));
            let y = before.blocks.iter().fold(x.clone(), |x, block| block.forward(x, BlockContext::masked(&mask)));
            let loss = y.powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &before);
            let after = optimizer.step(RATE, before, gradients);
            let last = after.blocks.last().expect("there are blocks");
            finish(device, last.feed_forward.as_ref().expect("it has one").down.weight.val().inner());
            stack = Some(after);
        })
    };
    Task {
        shape: vec![BATCH, SEQ, D_MODEL],
        work: Work::Flops(3.0 * blocks * forward),
        tokens: None,
        run: Box::new(run),
    }
}
