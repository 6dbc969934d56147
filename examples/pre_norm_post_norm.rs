//! Why deep transformers put their norms before the branches ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).
//!
//! At initialisation, the gradients of a post-norm model are as large in the last layer whatever the depth,
//! O(d √ln d), and shrink towards the input. Those of a pre-norm model shrink with the depth, O(d √(ln d / L)). So the
//! steps that are right for one part of a deep post-norm model are too long for another, and it needs a warm-up of the
//! learning rate where a pre-norm model does not.
//!
//! ```sh
//! cargo run --release --example pre_norm_post_norm
//! cargo run --release --example pre_norm_post_norm -- ndarray gradients.png
//! ```

use burn::module::{Initializer, Module, ModuleMapper, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burnformer::Error;
use burnformer::activation::Activation;
use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::backend::DeviceName;
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::gradient_norms::{BlockPart, GradientNorms};
use burnformer::head::HeadConfig;
use burnformer::model::{ForwardOptions, ModelConfig, ModelInput, ModelKind, Transformer};
use burnformer::plot::{AxisScale, Series, gradient_norms, save};
use burnformer::positions::Positions;
use burnformer::transformer_block::{BlockLayout, NormPlacement};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The paper's initialisation: Xavier for every matrix, biases of zero, token vectors with entries of deviation 1.
struct Xavier {
    path: Vec<String>,
    device: Device,
}

impl ModuleMapper for Xavier {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape: [usize; D] = param.lazy_shape().dims();
        match self.path.last().map(String::as_str) {
            Some("tokens") => Initializer::Normal { mean: 0.0, std: 1.0 }.init(shape, &self.device),
            Some("bias") => Initializer::Zeros.init(shape, &self.device),
            _ if D == 2 => {
                Initializer::XavierNormal { gain: 1.0 }.init_with(shape, Some(shape[0]), Some(shape[1]), &self.device)
            }
            _ => param,
        }
    }
}

/// A decoder of `depth` blocks, with the inner width of the paper's analysis, `d_ff = d_model`.
pub fn model(placement: NormPlacement, depth: usize, d_model: usize, vocab: usize, device: &Device) -> Transformer {
    let feed_forward = FeedForwardConfig::new(d_model, d_model).with_activation(Activation::Relu);
    ModelConfig::new(ModelKind::Decoder, depth, 64, MultiHeadAttentionConfig::new(d_model, d_model / 16), feed_forward)
        .with_embedding(EmbeddingConfig::new(vocab))
        .with_positions(Positions::rotary(RotaryConfig::default()))
        .with_block(BlockLayout::new(placement))
        .with_final_norm(placement == NormPlacement::Pre)
        .with_head(HeadConfig::new(false))
        .init(device)
        .map(&mut Xavier { path: Vec::new(), device: device.clone() })
}

fn draw(random: &mut ChaCha8Rng, [rows, len]: [usize; 2], vocab: usize) -> Vec<Vec<i64>> {
    (0..rows).map(|_| (0..len).map(|_| random.random_range(0..vocab as i64)).collect()).collect()
}

/// The norm of the gradient of the output weights of each feed-forward network, as in the paper's figure 3, as a mean over
/// eight models and random tokens.
pub fn gradients(placement: NormPlacement, depth: usize, device: &Device) -> Result<Vec<f64>, Error> {
    let mut mean = vec![0.0; depth];
    for seed in 0..8 {
        device.seed(seed);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [tokens, targets] = std::array::from_fn(|_| draw(&mut random, [8, 32], 64));
        let model = model(placement, depth, 64, 64, device);
        let norms = GradientNorms::of_targets(&model, &ModelInput::tokens(&tokens), &targets)?;
        mean.iter_mut().zip(norms.by_layer(BlockPart::Down)).for_each(|(sum, norm)| *sum += norm / 8.0);
    }
    Ok(mean)
}

/// Trains a model of twelve blocks to say which token stood three places before, by Adam with a learning rate of 0.003
/// that is reached after `warm_up` steps; gives the mean loss of the last ten of `steps` steps.
pub fn train(placement: NormPlacement, warm_up: usize, steps: usize, device: &Device) -> Result<f64, Error> {
    let [batch, len, back, vocab] = [16, 16, 3, 16];
    let device = device.clone().autodiff();
    device.seed(0);
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut model = model(placement, 12, 32, vocab, &device);
    let mut optimizer = AdamConfig::new().with_beta_2(0.98).with_epsilon(1e-9).init();
    let mut last = Vec::new();
    for step in 0..steps {
        let rows = draw(&mut random, [batch, len], vocab);
        let output = model.forward(&ModelInput::tokens(&rows), None, ForwardOptions::default())?;
        let logits = output.logits.expect("the model has a head").slice_dim(1, back..len);
        let answers: Vec<i64> = rows.iter().flat_map(|row| row[..len - back].to_vec()).collect();
        let answers = TensorData::new(answers, [batch * (len - back), 1]);
        let answers = Tensor::<2, Int>::from_data(answers, &device);
        let loss = log_softmax(logits.reshape([batch * (len - back), vocab]), 1).gather(1, answers).mean().neg();
        if step + 10 >= steps {
            last.push(f64::from(loss.clone().into_scalar::<f32>()));
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let share = (step + 1) as f64 / warm_up.max(1) as f64;
        model = optimizer.step(0.003 * share.min(1.0), model, gradients);
    }
    Ok(last.iter().sum::<f64>() / last.len() as f64)
}

/// The means of the first and of the last quarter of the layers.
pub fn ends(norms: &[f64]) -> [f64; 2] {
    let count = (norms.len() / 4).max(1);
    [&norms[..count], &norms[norms.len() - count..]].map(|norms| norms.iter().sum::<f64>() / count as f64)
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let backend = arguments.next().unwrap_or_else(|| "flex".into());
    let device = backend.parse::<DeviceName>()?.open()?;
    println!("norm of the gradient at initialisation: first and last quarter of the layers, last layer\n");
    println!("       post-norm               pre-norm");
    println!("depth  first   last  layer     first   last  layer   layer · √depth");
    let mut lines = Vec::new();
    for depth in [2, 4, 8, 12, 16, 24] {
        let mut row = format!("{depth:5}");
        for (name, placement) in [("post-norm", NormPlacement::Post), ("pre-norm", NormPlacement::Pre)] {
            let norms = gradients(placement, depth, &device)?;
            let ([first, last], layer) = (ends(&norms), norms[depth - 1]);
            row += &format!("{first:7.3}{last:7.3}{layer:7.3}   ");
            if placement == NormPlacement::Pre {
                row += &format!("{:8.3}", layer * (depth as f64).sqrt());
            }
            if depth >= 12 {
                lines.push(Series::counted(format!("{name}, {depth} layers"), &norms));
            }
        }
        println!("{row}");
    }
    if let Some(picture) = arguments.next() {
        let title = "Gradients of the feed-forward output weights at initialisation";
        save(gradient_norms(title, lines, AxisScale::Linear), &picture, None)?;
    }
    println!("\nloss after 200 steps, depth 12 (a guess has {:.3})\n", 16_f64.ln());
    for (name, placement, warm_up) in [
        ("pre-norm, no warm-up", NormPlacement::Pre, 0),
        ("post-norm, no warm-up", NormPlacement::Post, 0),
        ("post-norm, warm-up of 100 steps", NormPlacement::Post, 100),
    ] {
        println!("{name:32} {:.3}", train(placement, warm_up, 200, &device)?);
    }
    Ok(())
}
