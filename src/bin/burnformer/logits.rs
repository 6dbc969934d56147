//! `burnformer logits`

use std::path::PathBuf;

use burn::tensor::{DType, Tensor};
use burnformer::Error;
use burnformer::images::Images;
use burnformer::model::{Cache, ForwardOptions, ModelInput, Transformer};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Compute, Row};
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Print all logits of a sequence, scores of labels, or the hidden states where the model has no head.
#[derive(Args)]
#[command(after_help = "\
Examples:
  burnformer logits path/to/checkpoint --tokens 1,5,9 --json
  burnformer logits path/to/checkpoint --tokens 1,5,9,2 --chunks 3,1        through the cache
  burnformer logits path/to/checkpoint --tokens 0,5,9 --attention-mask 0,1,1 --tokens 4,8,7 --attention-mask 1,1,1
  burnformer logits path/to/t5 --tokens 13959,1566,1 --decoder-tokens 0,644")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    /// Token ids, separated by commas; once for each row of the batch.
    #[arg(long, value_name = "IDS", required_unless_present = "pixels", allow_hyphen_values = true)]
    tokens: Vec<Row<i64>>,
    /// A safetensors file with images, the tensor `pixel_values`, in place of tokens.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "decoder_tokens", "chunks", "attention_mask"])]
    pixels: Option<PathBuf>,
    /// Token ids of the decoder of a model that has an encoder, which then reads `--tokens`; once for each row.
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    decoder_tokens: Vec<Row<i64>>,
    /// Lengths of the calls that the (decoder's) sequence is split into; the cache carries over from one to the next.
    #[arg(long, value_name = "LENGTHS")]
    chunks: Option<Row<usize>>,
    /// 1 for a token, 0 for padding; once for each row of the batch.
    #[arg(long, value_name = "MASK")]
    attention_mask: Vec<Row<u8>>,
    /// Seed of random weights, where the model has no others.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Serialize)]
struct Report {
    shape: [usize; 3],
    /// Row by row.
    data: Numbers,
}

/// Numbers with as many digits as they have.
#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, tokens, pixels, decoder_tokens, chunks, attention_mask, seed, compute } = arguments;
    let images = pixels.map(Images::open).transpose()?;
    let rows = |rows: Vec<Row<i64>>| -> Vec<Vec<i64>> { rows.into_iter().map(|row| row.0).collect() };
    let (tokens, decoder_tokens) = (rows(tokens), rows(decoder_tokens));
    let padding = padding(attention_mask, &tokens)?;
    let argument = ModelArgument::resolve(&model)?;
    let (tokens, padding, source) = match (argument.config().encoder.is_some(), decoder_tokens.is_empty()) {
        (false, true) => (tokens, padding, None),
        (true, false) => (decoder_tokens, None, Some(slice(&tokens, padding.as_deref(), 0..usize::MAX))),
        (true, true) => {
            let problem = "the model has an encoder, which reads --tokens, and a decoder; give --decoder-tokens too";
            return Err(Error::Input(problem.into()));
        }
        (false, false) => {
            let problem = "--decoder-tokens is for models with an encoder and a decoder, and this one has no encoder";
            return Err(Error::Input(problem.into()));
        }
    };
    let seq = tokens.first().map_or(0, |row| row.len());
    let chunks = chunks.map(|chunks| checked(chunks.0, seq)).transpose()?;
    let first = |input: ModelInput, start: usize| match &source {
        Some(source) if start == 0 => input.with_source(source.clone()),
        _ => input,
    };
    let target = compute.open()?;
    let dims = match &images {
        Some(images) => [images.len(), argument.config().max_seq_len],
        None => [tokens.len(), seq],
    };
    argument.check_call(dims, &target)?;
    let built = argument.build(&target, seed)?;

    let outputs = match (images, chunks) {
        (Some(images), _) => vec![forward(&built, ModelInput::pixels(images.tensor(&target.device)), None)?],
        (None, None) => vec![forward(&built, first(slice(&tokens, padding.as_deref(), 0..seq), 0), None)?],
        (None, Some(chunks)) => {
            let mut cache = built.new_cache();
            let mut start = 0;
            let mut outputs = Vec::with_capacity(chunks.len());
            for len in chunks {
                let input = first(slice(&tokens, padding.as_deref(), start..start + len), start);
                outputs.push(forward(&built, input, Some(&mut cache))?);
                start += len;
            }
            outputs
        }
    };
    let report = join(outputs);
    argument.note_weights(seed, &compute.show);
    match compute.show.json {
        true => output::print_json(&report)?,
        false => output::print(&text(&report))?,
    }
    Ok(Outcome::Done)
}

/// `true` where a token is padding.
fn padding(mask: Vec<Row<u8>>, tokens: &[Vec<i64>]) -> Result<Option<Vec<Vec<bool>>>, Error> {
    if mask.is_empty() {
        return Ok(None);
    }
    let fault = |problem: String| Err(Error::Input(format!("attention mask: {problem}")));
    if mask.len() != tokens.len() {
        return fault(format!("expected one for each of the {} rows of tokens, got {}", tokens.len(), mask.len()));
    }
    for (index, (mask, tokens)) in mask.iter().zip(tokens).enumerate() {
        if mask.0.len() != tokens.len() {
            return fault(format!("row {index} has {} entries for {} tokens", mask.0.len(), tokens.len()));
        }
        if let Some(entry) = mask.0.iter().find(|entry| **entry > 1) {
            return fault(format!("row {index} has the entry {entry}; 1 is a token and 0 is padding"));
        }
    }
    Ok(Some(mask.into_iter().map(|row| row.0.into_iter().map(|entry| entry == 0).collect()).collect()))
}

fn checked(chunks: Vec<usize>, seq: usize) -> Result<Vec<usize>, Error> {
    match chunks.iter().try_fold(0usize, |sum, len| sum.checked_add(*len)) {
        Some(sum) if sum == seq && !chunks.is_empty() => Ok(chunks),
        sum => {
            let sum = sum.map_or_else(|| "more than can be counted".into(), |sum| sum.to_string());
            Err(Error::Input(format!("the chunks sum to {sum}, and there are {seq} tokens")))
        }
    }
}

/// Some columns of the batch. Rows of unequal length are left to the library to refuse.
fn slice(tokens: &[Vec<i64>], padding: Option<&[Vec<bool>]>, columns: std::ops::Range<usize>) -> ModelInput {
    fn cut<T: Clone>(rows: &[Vec<T>], columns: &std::ops::Range<usize>) -> Vec<Vec<T>> {
        let of_row = |row: &Vec<T>| row[columns.start.min(row.len())..columns.end.min(row.len())].to_vec();
        rows.iter().map(of_row).collect()
    }
    let input = ModelInput::tokens(&cut(tokens, &columns));
    match padding {
        Some(padding) => input.with_padding(cut(padding, &columns)),
        None => input,
    }
}

fn forward(model: &Transformer, input: ModelInput, cache: Option<&mut Cache>) -> Result<Tensor<3>, Error> {
    let output = model.forward(&input, cache, ForwardOptions::default())?;
    Ok(output.logits.or(output.scores).unwrap_or(output.hidden))
}

/// The outputs of all chunks, joined along the sequence on the host.
fn join(outputs: Vec<Tensor<3>>) -> Report {
    let [batch, _, width] = outputs[0].dims();
    let lengths: Vec<usize> = outputs.iter().map(|output| output.dims()[1]).collect();
    let shape = [batch, lengths.iter().sum(), width];
    let data: Vec<_> = outputs.into_iter().map(Tensor::into_data).collect();
    fn rows<T: Copy>(chunks: &[Vec<T>], lengths: &[usize], batch: usize, width: usize) -> Vec<T> {
        let of_row = |row: usize| {
            chunks.iter().zip(lengths).flat_map(move |(chunk, len)| &chunk[row * len * width..(row + 1) * len * width])
        };
        (0..batch).flat_map(of_row).copied().collect()
    }
    let data = if data[0].dtype() == DType::F64 {
        let chunks: Vec<Vec<f64>> = data.iter().map(|data| data.iter::<f64>().collect()).collect();
        Numbers::Double(rows(&chunks, &lengths, batch, width))
    } else {
        let chunks: Vec<Vec<f32>> = data.iter().map(|data| data.iter::<f32>().collect()).collect();
        Numbers::Single(rows(&chunks, &lengths, batch, width))
    };
    Report { shape, data }
}

/// One line per position.
fn text(report: &Report) -> String {
    let values: Vec<f64> = match &report.data {
        Numbers::Single(values) => values.iter().map(|value| f64::from(*value)).collect(),
        Numbers::Double(values) => values.clone(),
    };
    let lines = values.chunks(report.shape[2]).map(|position| output::numbers(position.iter().copied()));
    std::iter::once(format!("shape {:?}", report.shape)).chain(lines).collect::<Vec<_>>().join("\n")
}
