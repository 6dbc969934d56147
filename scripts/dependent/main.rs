//! A program outside the repository that depends on the crate with `default-features = false, features = ["flex"]`;
//! `scripts/test-dependent` builds and runs it. It trains one block for a few steps and checks that the loss falls.

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor};
use burnformer::attention::{AttentionMask, MultiHeadAttentionConfig};
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::transformer_block::{BlockContext, TransformerBlockConfig};

fn main() {
    let device = Device::flex().autodiff();
    device.seed(7);
    let config =
        TransformerBlockConfig::new(MultiHeadAttentionConfig::new(16, 4).with_n_kv_heads(2), FeedForwardConfig::new(16, 40));
    config.validate().expect("the configuration is valid");
    let mut block = config.init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let random = || Tensor::<3>::random([4, 9, 16], Distribution::Normal(0.0, 1.0), &device);
    let (x, target) = (random(), random());
    let mask = AttentionMask::causal();
    let mut losses = Vec::new();
    for _ in 0..20 {
        let loss = (block.forward(x.clone(), BlockContext::masked(&mask)) - target.clone()).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &block);
        block = optimizer.step(0.02, block, gradients);
    }
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("loss {first:.4} -> {last:.4}");
    assert!(last < 0.7 * first, "the loss did not fall: {losses:?}");
}
