//! The block and attention, and Burn's own.

use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use burn::tensor::module::attention as burn_attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Tensor};

use super::task::{Task, Work, finish, timed};
use crate::attention::{
    AttentionKernel, AttentionMask, MultiHeadAttentionConfig, ScoreOptions, scaled_dot_product_attention,
};
use crate::backend;
use crate::feed_forward::FeedForwardConfig;
use crate::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlockConfig};

const SEQ: usize = 512;
const D_MODEL: usize = 768;
const D_FF: usize = 3072;
const N_HEADS: usize = 12;
const D_HEAD: usize = 64;
const LEN: usize = 2048;

pub(super) fn block(device: &Device) -> Task<'_> {
    // Burn's layer has these defaults: norm after the sum, exact GELU, biases, LayerNorm with eps 1e-5.
    let attention = MultiHeadAttentionConfig::new(D_MODEL, N_HEADS);
    let config = TransformerBlockConfig::new(attention, FeedForwardConfig::new(D_MODEL, D_FF));
    let block = config.with_layout(BlockLayout::new(NormPlacement::Post)).init(device);
    let mask = AttentionMask::none();
    block_task(device, move |x| block.forward(x, BlockContext::masked(&mask)))
}

pub(super) fn burn_nn_block(device: &Device) -> Task<'_> {
    let config = TransformerEncoderConfig::new(D_MODEL, D_FF, N_HEADS, 1).with_dropout(0.0);
    let block = config.init(device);
    block_task(device, move |x| block.forward(TransformerEncoderInput::new(x)))
}

fn block_task<'a>(device: &'a Device, forward: impl Fn(Tensor<3>) -> Tensor<3> + 'a) -> Task<'a> {
    let [seq, d_model, d_ff] = [SEQ, D_MODEL, D_FF].map(|size| size as f64);
    let x = Tensor::<3>::random([1, SEQ, D_MODEL], Distribution::Normal(0.0, 1.0), device);
    Task {
        shape: vec![1, SEQ, D_MODEL],
        // Four projections of d_model², scores and values of seq each, two projections of d_model · d_ff.
        work: Work::Flops(8.0 * seq * d_model * d_model + 4.0 * seq * seq * d_model + 4.0 * seq * d_model * d_ff),
        tokens: None,
        run: Box::new(move || timed(|| finish(device, forward(x.clone())))),
    }
}

pub(super) fn attention(device: &Device, kernel: AttentionKernel) -> Task<'_> {
    let inputs = heads(LEN, device);
    attention_task(move || timed(|| finish(device, causal(&inputs, kernel))))
}

pub(super) fn burn_attention_task(device: &Device) -> Task<'_> {
    let [query, key, value] = heads(LEN, device);
    let options = AttentionModuleOptions { is_causal: true, ..AttentionModuleOptions::default() };
    attention_task(move || {
        timed(|| finish(device, burn_attention(query.clone(), key.clone(), value.clone(), None, None, options)))
    })
}

fn attention_task<'a>(run: impl FnMut() -> std::time::Duration + 'a) -> Task<'a> {
    Task {
        shape: vec![1, N_HEADS, LEN, D_HEAD],
        // Scores and values, 2 · len² · d_head each per head; the half that causality leaves visible, whether or not the
        // other half is computed too.
        work: Work::Flops(2.0 * (LEN * LEN * D_HEAD * N_HEADS) as f64),
        tokens: None,
        run: Box::new(run),
    }
}

/// What keeps attention that holds all scores from running on a device.
pub(super) fn obstacle_to_scores(device: &Device) -> Option<String> {
    let limit = backend::largest_buffer(device)?;
    let square = (N_HEADS * LEN * LEN * size_of::<f32>()) as u64;
    (square > limit).then(|| {
        let mib = |bytes: u64| bytes >> 20;
        format!("the scores have {} MiB, the device's largest buffer {} MiB", mib(square), mib(limit))
    })
}

/// Queries, keys and values of `len` tokens.
pub(super) fn heads(len: usize, device: &Device) -> [Tensor<4>; 3] {
    std::array::from_fn(|_| Tensor::random([1, N_HEADS, len, D_HEAD], Distribution::Normal(0.0, 1.0), device))
}

pub(super) fn causal([query, key, value]: &[Tensor<4>; 3], kernel: AttentionKernel) -> Tensor<4> {
    let options = ScoreOptions { kernel, ..ScoreOptions::default() };
    let mask = AttentionMask::causal();
    scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context
}
