//! What broke for users of other projects, with the right values. The reports themselves are linked; the numbers were
//! computed with PyTorch 2.9 and transformers 5.24.
//!
//! A test of an option has a twin: the same computation without the option must be off by at least a hundred times the
//! tolerance, as a test that passes without the thing it is about says nothing.

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod masks;
mod positions;
mod precision;
mod shapes;

use std::time::Instant;

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use burnformer::activation::Activation;
use burnformer::attention::{
    AttentionContext, AttentionKernel, AttentionMask, KvCache, MultiHeadAttentionConfig, RotaryConfig, RotaryScaling,
    RotaryStyle, ScoreOptions, alibi_slopes, scaled_dot_product_attention,
};
use burnformer::backend::{DeviceName, float_dtype, largest_buffer};
use burnformer::embedding::EmbeddingConfig;
use burnformer::error::Error;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{Cache, ForwardOptions, LayerPattern, Logits, ModelConfig, ModelInput, ModelKind, Transformer};
use burnformer::norm::{NormConfig, NormKind};
use burnformer::positions::{Positions, sinusoidal};
use burnformer::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlockConfig};
use serde_json::{Value, json};

use common::{
    Array, Changed, EPSILON, FiveKeys, Fixture, Greedy, Numbers, argmax, assert_apart, assert_close, checkpoint_folder,
    devices, flex, golden, gradient, largest, load, logits, logits_in_chunks, randomised, values,
};

/// Attention over five keys, whose values go up to 9: a handful of roundings of 6e-8 relative to that, and the six
/// digits after the point in which the reports give values.
const MICRO: f64 = 1e-5;

/// A whole tiny model, relative to the largest logit: twenty operations of a few roundings of 6e-8 each; measured are
/// 1.2e-6.
const MODEL: f64 = 1e-5;

/// One rounding to 16 bits.
const HALF: f64 = 1.0 / 2048.0;

/// The kernels that take any mask on any backend, with and without recording gradients.
const KERNELS: [AttentionKernel; 3] = [AttentionKernel::Auto, AttentionKernel::Composed, AttentionKernel::Blockwise];

fn with_kernel(kernel: AttentionKernel) -> ScoreOptions<'static> {
    ScoreOptions { kernel, ..ScoreOptions::default() }
}

/// Attention over five keys on every backend, plain and with autodiff, through every kernel.
fn everywhere(mut check: impl FnMut(&str, &FiveKeys, AttentionKernel)) {
    for (backend, plain) in devices() {
        for device in [plain.clone(), plain.autodiff()] {
            let autodiff = if device.is_autodiff() { " with autodiff" } else { "" };
            let set = FiveKeys::new(&device);
            for kernel in KERNELS {
                check(&format!("{backend}{autodiff}, {kernel:?}"), &set, kernel);
            }
        }
    }
}

// Answers over five keys.
const NO_MASK: [f64; 6] = [4.009529, 5.009528, 5.035807, 6.035807, 4.0, 5.0];
const CAUSAL: [f64; 6] = [1.728677, 2.728677, 2.570342, 3.570342, 4.0, 5.0];
const CAUSAL_FROM_THE_START: [f64; 6] = [0.0, 1.0, 1.339523, 2.339523, 2.0, 3.0];
const CAUSAL_AND_PADDED: [f64; 6] = [3.174958, 4.174958, 3.221836, 4.221837, 5.0, 6.0];
const PADDED: [f64; 6] = [5.166183, 6.166183, 5.660709, 6.660708, 5.0, 6.0];
const CAUSAL_ROW_1_MASKED: [f64; 6] = [1.728677, 2.728677, 0.0, 0.0, 4.0, 5.0];
const CAUSAL_INVERTED: [f64; 6] = [6.2141, 7.2141, 8.0, 9.0, 0.0, 0.0];
const ROW_1: [&str; 3] = [".....", "xxxxx", "....."];
const CAUSAL_PAIRS: [&str; 3] = ["...xx", "....x", "....."];

/// The logits of a tiny checkpoint on every backend against what transformers gives.
fn compare_everywhere(name: &str) {
    let golden = golden(name);
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let got = logits(&load(name, &device), &ModelInput::tokens(&rows));
        assert_close(&format!("{backend}, {name}"), &got, &want, MODEL * largest(&want));
    }
}

/// A changed checkpoint must give other logits than the right ones.
fn must_differ(what: &str, name: &str, changed: &Changed) {
    let golden = golden(name);
    let want = golden.values("logits");
    let got = changed.logits(&golden.rows("input_ids"));
    assert_apart(what, &got, &want, 100.0 * MODEL * largest(&want));
}

fn message<T>(result: Result<T, Error>, what: &str) -> String {
    match result {
        Ok(_) => panic!("{what}: must be an error"),
        Err(error) => error.to_string(),
    }
}

fn forward(model: &Transformer, rows: &[Vec<i64>], cache: &mut Cache) -> Result<Tensor<3>, Error> {
    let output = model.forward(&ModelInput::tokens(rows), Some(cache), ForwardOptions::default())?;
    Ok(output.logits.expect("the model has a head"))
}

/// A small decoder with grouped heads and rotary positions.
fn small_decoder(max_seq_len: usize, window: Option<usize>) -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(16, 4).with_n_kv_heads(2);
    ModelConfig::new(ModelKind::Decoder, 2, max_seq_len, attention, FeedForwardConfig::new(16, 24))
        .with_embedding(EmbeddingConfig::new(20))
        .with_positions(Positions::rotary(RotaryConfig::new(1e4)))
        .with_layers(vec![LayerPattern { window, ..LayerPattern::default() }])
        .with_head(HeadConfig::new(true))
}
