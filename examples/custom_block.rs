//! A block put together by hand: grouped-query attention with normalised queries and keys, a gated network, norms
//! before and after each branch, rotary positions and a key/value cache.
//!
//! ```sh
//! cargo run --release --example custom_block
//! ```

use burn::tensor::{Distribution, Tensor};
use burnformer::Error;
use burnformer::activation::Activation;
use burnformer::attention::{
    AttentionMask, KvCache, MultiHeadAttentionConfig, ProjectionBias, QkNorm, QkNormScope, RotaryConfig,
};
use burnformer::backend::DeviceName;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::norm::{NormConfig, NormKind};
use burnformer::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlockConfig};

fn main() -> Result<(), Error> {
    let device = "flex".parse::<DeviceName>()?.open()?;
    let norm = NormConfig::new(NormKind::Rms).with_eps(1e-6);
    let attention = MultiHeadAttentionConfig::new(64, 8)
        .with_n_kv_heads(2)
        .with_bias(ProjectionBias::NONE)
        .with_qk_norm(QkNorm { scope: QkNormScope::PerHead, norm });
    let feed_forward =
        FeedForwardConfig::new(64, 160).with_gated(true).with_activation(Activation::Silu).with_bias(false);
    let config = TransformerBlockConfig::new(attention, feed_forward)
        .with_norm(norm)
        .with_layout(BlockLayout::new(NormPlacement::Sandwich));
    config.validate()?;
    let block = config.init(&device);

    let x = Tensor::<3>::random([1, 6, 64], Distribution::Normal(0.0, 1.0), &device);
    let (mask, rotary) = (AttentionMask::causal(), RotaryConfig::new(10_000.0));
    let run = |x: Tensor<3>, positions: std::ops::Range<usize>, cache: Option<&mut KvCache>| {
        let angles = rotary.angles(8, &[positions.collect()], &device);
        block.forward(x, BlockContext { rotary: Some(&angles), cache, ..BlockContext::masked(&mask) })
    };

    let whole = run(x.clone(), 0..6, None);
    let mut cache = KvCache::new();
    let first = run(x.clone().slice([0..1, 0..4]), 0..4, Some(&mut cache));
    let rest = run(x.slice([0..1, 4..6]), 4..6, Some(&mut cache));
    let difference = (whole - Tensor::cat(vec![first, rest], 1)).abs().max().into_scalar::<f32>();
    println!("{} parameters; in two pieces with a cache the answer differs by {difference:.1e}", config.n_parameters());
    Ok(())
}
