//! One causal block learns to repeat what stood three tokens before.
//!
//! ```sh
//! cargo run --release --example train_one_block
//! cargo run --release --example train_one_block -- ndarray
//! ```

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Int, Tensor, TensorData};
use burnformer::Error;
use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::backend::DeviceName;
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{ForwardOptions, ModelConfig, ModelInput, ModelKind};
use burnformer::positions::Positions;

const VOCAB: usize = 16;
const SEQ: usize = 24;
const BACK: usize = 3;

fn main() -> Result<(), Error> {
    let backend = std::env::args().nth(1).unwrap_or_else(|| "flex".into());
    let device = backend.parse::<DeviceName>()?.open()?.autodiff();
    device.seed(1);
    let config = ModelConfig::new(
        ModelKind::Decoder,
        1,
        SEQ,
        MultiHeadAttentionConfig::new(32, 4),
        FeedForwardConfig::new(32, 64),
    )
    .with_embedding(EmbeddingConfig::new(VOCAB))
    .with_positions(Positions::rotary(RotaryConfig::default()))
    .with_final_norm(true)
    .with_head(HeadConfig::new(false));
    config.validate()?;
    let mut model = config.init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let loss_of = CrossEntropyLossConfig::new().init(&device);
    let mut random = 1_u64;

    for step in 0..=120 {
        let rows: Vec<Vec<i64>> = (0..16).map(|_| (0..SEQ).map(|_| token(&mut random)).collect()).collect();
        let output = model.forward(&ModelInput::tokens(&rows), None, ForwardOptions::default())?;
        let logits = output.logits.expect("the model has a head").slice([0..16, BACK..SEQ]);
        let targets: Vec<i64> = rows.iter().flat_map(|row| row[..SEQ - BACK].to_vec()).collect();
        let targets = Tensor::<1, Int>::from_data(TensorData::from(targets.as_slice()), &device);
        let loss = loss_of.forward(logits.reshape([16 * (SEQ - BACK), VOCAB]), targets);
        if step % 20 == 0 {
            println!("step {step:3}  loss {:.4}", loss.clone().into_scalar::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }
    println!("{} parameters", model.num_params());
    Ok(())
}

fn token(state: &mut u64) -> i64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as i64 % VOCAB as i64
}
