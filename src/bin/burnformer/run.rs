//! `burnformer run`

use std::time::Instant;

use burn::tensor::{DType, Tensor, TensorData};
use burnformer::Error;
use burnformer::model::{ForwardOptions, ModelInput};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Compute, Row, Target, positive};
use crate::model_argument::ModelArgument;
use crate::random::Random;
use crate::text_input::encode;
use crate::{Outcome, output};

/// Build a model and run it once.
#[derive(Args)]
#[command(after_help = "\
Without --tokens or --text the input is random: token ids, pixels for a model of images, or hidden states for a model \
without embeddings. Weights are \
random unless MODEL is a checkpoint. Both are drawn from --seed, the same on every backend.

Examples:
  burnformer run gpt2
  burnformer run encoder-layer --batch 2 --seq 10 --backend ndarray
  burnformer run path/to/checkpoint --tokens 1,5,9 --json")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    /// Token ids, separated by commas.
    #[arg(long, value_name = "IDS", allow_hyphen_values = true, conflicts_with_all = ["text", "seq"])]
    tokens: Option<Row<i64>>,
    /// Text, for a checkpoint with a tokenizer.
    #[arg(long, conflicts_with = "seq")]
    text: Option<String>,
    /// Number of rows; tokens or text are repeated.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    batch: usize,
    /// Length of random input [default: 16, or the longest the model takes].
    #[arg(long, value_name = "N", value_parser = positive)]
    seq: Option<usize>,
    /// Seed of random weights and input.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    compute: Compute,
}

/// How many of the highest logits are shown, and how many values of the output.
const TOP: usize = 5;
const FIRST: usize = 8;

#[derive(Serialize)]
struct Report {
    backend: String,
    parameters: u64,
    shape: [usize; 3],
    /// Of the forward, until its output is on the host.
    seconds: f64,
    output: Summary,
    /// The highest logits of the last position of the first row.
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Candidate>>,
}

#[derive(Serialize)]
struct Summary {
    mean: f64,
    std: f64,
    first: Vec<f64>,
}

#[derive(Serialize)]
struct Candidate {
    token: usize,
    logit: f64,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, tokens, text, batch, seq, seed, compute } = arguments;
    let argument = ModelArgument::resolve(&model)?;
    let target = compute.open()?;
    let given = match (tokens, text) {
        (Some(row), _) => Some(row.0),
        (None, Some(text)) => Some(encode(&argument, &text)?),
        (None, None) => None,
    };
    let config = argument.config();
    let seq = match (&given, config.patches) {
        (Some(row), _) => row.len(),
        (None, Some(_)) if seq.is_some() => {
            return Err(Error::Input("the model reads images, whose size it sets; leave out --seq".into()));
        }
        // As many as an image has patches, and the class token.
        (None, Some(_)) => config.max_seq_len,
        (None, None) => seq.unwrap_or(config.max_seq_len.min(16)),
    };
    argument.check_call([batch, seq], &target)?;
    let input = match given {
        Some(row) => ModelInput::tokens(&vec![row; batch]),
        None => random_input(&argument, [batch, seq], seed, &target),
    };
    // Encoder and decoder, where a model has both, read the same.
    let input = if config.encoder.is_some() { input.clone().with_source(input) } else { input };

    let built = argument.build(&target, seed)?;
    let start = Instant::now();
    let forward = built.forward(&input, None, ForwardOptions::default())?;
    let is_logits = forward.logits.is_some();
    let result = forward.logits.or(forward.scores).unwrap_or(forward.hidden);
    let shape = result.dims();
    let values: Vec<f64> = result.into_data().iter::<f64>().collect();
    let seconds = start.elapsed().as_secs_f64();

    let last = (is_logits && seq > 0).then(|| &values[(seq - 1) * shape[2]..seq * shape[2]]);
    let report = Report {
        backend: target.name.to_string(),
        parameters: config.n_parameters(),
        shape,
        seconds,
        output: summary(&values),
        top: last.map(highest),
    };
    argument.note_weights(seed, &compute.show);
    show(&report, compute.show.json)?;
    Ok(Outcome::Done)
}

fn random_input(argument: &ModelArgument, [batch, seq]: [usize; 2], seed: u64, target: &Target) -> ModelInput {
    let config = argument.config();
    let mut random = Random::new(seed);
    if config.embedding.is_some() {
        let mut row = || (0..seq).map(|_| random.below(config.vocab_size())).collect();
        let rows: Vec<Vec<i64>> = (0..batch).map(|_| row()).collect();
        return ModelInput::tokens(&rows);
    }
    let mut normal = |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal()).collect() };
    let dtype = DType::from(target.dtype);
    if let Some(patches) = config.patches {
        let [channels, height, width] = patches.image_shape();
        let pixels = TensorData::new(normal(batch * channels * height * width), [batch, channels, height, width]);
        return ModelInput::pixels(Tensor::from_data(pixels.convert_dtype(dtype), (&target.device, dtype)));
    }
    let states = TensorData::new(normal(batch * seq * config.d_model), [batch, seq, config.d_model]);
    ModelInput::hidden(Tensor::from_data(states.convert_dtype(dtype), (&target.device, dtype)))
}

fn summary(values: &[f64]) -> Summary {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    Summary { mean, std: variance.sqrt(), first: values.iter().take(FIRST).copied().collect() }
}

/// The highest logits; equal ones by token id.
fn highest(logits: &[f64]) -> Vec<Candidate> {
    let mut order: Vec<usize> = (0..logits.len()).filter(|token| !logits[*token].is_nan()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.into_iter().take(TOP).map(|token| Candidate { token, logit: logits[token] }).collect()
}

fn show(report: &Report, json: bool) -> Result<(), Error> {
    if json {
        return output::print_json(report);
    }
    let Report { backend, parameters, shape, seconds, output, top } = report;
    output::print(&format!(
        "{parameters} parameters on {backend}\noutput {shape:?} in {seconds:.4} s: mean {:.6}, std {:.6}, starts with {}",
        output.mean,
        output.std,
        output::numbers(output.first.iter().copied())
    ))?;
    if let Some(top) = top {
        let rows: Vec<_> = top.iter().map(|top| [top.token.to_string(), format!("{:.6}", top.logit)]).collect();
        output::print(&format!("highest logits of the last position:\n{}", output::table(["token", "logit"], &rows)))?;
    }
    Ok(())
}
