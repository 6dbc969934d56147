//! Two layers of attention learn to say a random sequence once more; one layer is left to guess.
//!
//! A row is some tokens that do not matter, then a pattern of distinct tokens, then the same pattern again. Its length
//! differs from row to row, so that what comes next does not stand at a fixed distance, nor is it the token that has not
//! been seen for the longest time: it is what followed the same token before. To find it takes two heads, one above the
//! other ([Olsson et al. 2022](https://arxiv.org/abs/2209.11895)): the lower one tells each token which token stands before
//! it, the upper one, an induction head, looks for the token that was told of the present one.
//!
//! ```sh
//! cargo run --release --example induction
//! cargo run --release --example induction -- ndarray
//! ```

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burnformer::Error;
use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::backend::DeviceName;
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::head_roles::{HeadInput, HeadScores, RepeatedTokens, head_scores};
use burnformer::model::{ForwardOptions, ModelConfig, ModelInput, ModelKind, Transformer};
use burnformer::positions::Positions;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const VOCAB: usize = 16;
const SEQ: usize = 20;
/// Lengths of patterns.
const LENGTHS: std::ops::RangeInclusive<usize> = 4..=8;
const BATCH: usize = 64;
const LEARNING_RATE: f64 = 0.01;
pub const STEPS: usize = 1800;

/// How well a model goes on with rows that it has not seen.
pub struct Measure {
    /// Mean cross-entropy of the tokens that can be known, in nats.
    pub loss: f64,
    /// Share of them that the model holds for the likeliest.
    pub accuracy: f64,
}

/// Rows with the positions whose next token can be known: those in the second saying of the pattern.
struct Batch {
    rows: Vec<Vec<i64>>,
    /// Row and position in one, `row · (SEQ - 1) + position`.
    places: Vec<i64>,
    answers: Vec<i64>,
}

impl Batch {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        let mut batch = Self { rows: Vec::new(), places: Vec::new(), answers: Vec::new() };
        for row in 0..BATCH {
            let length = random.random_range(LENGTHS);
            let mut tokens: Vec<i64> = (0..VOCAB as i64).collect();
            tokens.shuffle(random);
            let (pattern, others) = tokens.split_at(length);
            let before = SEQ - 2 * length;
            let mut sequence: Vec<i64> = (0..before).map(|_| others[random.random_range(0..others.len())]).collect();
            sequence.extend_from_slice(&pattern.repeat(2));
            for place in before + length..SEQ - 1 {
                batch.places.push((row * (SEQ - 1) + place) as i64);
                batch.answers.push(sequence[place + 1]);
            }
            batch.rows.push(sequence[..SEQ - 1].to_vec());
        }
        batch
    }

    /// What the model says at the places, `[places, VOCAB]`, and the mean cross-entropy of the answers.
    fn ask(&self, model: &Transformer) -> Result<(Tensor<2>, Tensor<1>), Error> {
        let output = model.forward(&ModelInput::tokens(&self.rows), None, ForwardOptions::default())?;
        let logits = output.logits.expect("the model has a head").reshape([BATCH * (SEQ - 1), VOCAB]);
        let device = logits.device();
        let ids = |ids: &[i64]| Tensor::<1, Int>::from_data(TensorData::from(ids), &device);
        let logits = logits.select(0, ids(&self.places));
        let likelihoods = log_softmax(logits.clone(), 1).gather(1, ids(&self.answers).unsqueeze_dim(1));
        Ok((logits, likelihoods.mean().neg()))
    }
}

/// Trains a model of `n_layers` layers of attention, without feed-forward networks, and measures it.
pub fn train(n_layers: usize, steps: usize, seed: u64, device: &Device) -> Result<(Transformer, Measure), Error> {
    let device = device.clone().autodiff();
    device.seed(seed);
    let attention = MultiHeadAttentionConfig::new(32, 2);
    let mut config = ModelConfig::new(ModelKind::Decoder, n_layers, SEQ, attention, FeedForwardConfig::new(32, 32))
        .with_embedding(EmbeddingConfig::new(VOCAB))
        .with_positions(Positions::rotary(RotaryConfig::default()))
        .with_final_norm(true)
        .with_head(HeadConfig::new(false));
    config.feed_forward = None;
    config.validate()?;
    let mut model = config.init(&device);
    let clipping = GradientClippingConfig::Norm(1.0);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).with_grad_clipping(Some(clipping)).init();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for step in 0..steps {
        let (_, loss) = Batch::draw(&mut random).ask(&model)?;
        if step % 100 == 0 {
            println!("{n_layers} layers, step {step:3}: loss {:.3}", loss.clone().into_scalar::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        // Constant, and falling to zero over the second half.
        let left = 2.0 * (steps - step) as f64 / steps as f64;
        model = optimizer.step(LEARNING_RATE * left.min(1.0), model, gradients);
    }
    let model = model.valid();
    let measure = measure(&model, &mut random)?;
    Ok((model, measure))
}

fn measure(model: &Transformer, random: &mut ChaCha8Rng) -> Result<Measure, Error> {
    let batch = Batch::draw(random);
    let (logits, loss) = batch.ask(model)?;
    let guesses: Vec<i64> = logits.argmax(1).into_data().iter::<i64>().collect();
    let right = guesses.iter().zip(&batch.answers).filter(|(guess, answer)| guess == answer).count();
    let loss = f64::from(loss.into_scalar::<f32>());
    Ok(Measure { loss, accuracy: right as f64 / guesses.len() as f64 })
}

/// What the heads of a model do with eight random tokens that are said twice.
pub fn heads(model: &Transformer) -> Result<Vec<HeadScores>, Error> {
    let repeated = RepeatedTokens::random(Vec::new(), *LENGTHS.end(), VOCAB, 1);
    head_scores(model, &HeadInput::new(repeated.tokens()).with_repeated(Some(repeated)))
}

fn main() -> Result<(), Error> {
    let backend = std::env::args().nth(1).unwrap_or_else(|| "flex".into());
    let device = backend.parse::<DeviceName>()?.open()?;
    let mut rows = Vec::new();
    for n_layers in [1, 2] {
        let (model, Measure { loss, accuracy }) = train(n_layers, STEPS, 0, &device)?;
        rows.push(format!("{n_layers:6}   {loss:.3}   {:5.1} %", 100.0 * accuracy));
        for HeadScores { layer, head, previous_token, induction, .. } in heads(&model)? {
            let [previous, induction] = [previous_token, induction].map(|score| score.unwrap_or_default());
            let scores = format!("looks at the previous token {previous:.2}, at what followed its own {induction:.2}");
            rows.push(format!("         layer {layer}, head {head}: {scores}"));
        }
    }
    println!("\nlayers    loss   correct   (chance: loss {:.3}, {:.1} %)", (VOCAB as f64).ln(), 100.0 / VOCAB as f64);
    println!("{}", rows.join("\n"));
    Ok(())
}
