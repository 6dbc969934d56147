//! Comparing a model's outputs with outputs that another implementation stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Tensor, TensorData};
use safetensors::SafeTensors;
use serde::Serialize;

use crate::error::Error;
use crate::images::Images;
use crate::model::{ForwardOptions, ModelConfig, ModelInput, ModelOutput, Transformer};
use crate::stored_numbers::{floats, integers};
use crate::task_head::TaskInput;

/// The outputs that can be compared, by the names they have in a golden file.
const OUTPUTS: [&str; 5] = ["logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits"];

/// Inputs and expected outputs, read from a safetensors file.
///
/// The file holds `input_ids`, where they are needed `attention_mask` (1 = token, 0 = padding) and `token_type_ids`, all
/// `[batch, seq]`, or `pixel_values` `[batch, channels, height, width]`, and one or more outputs: `logits`, of words or of
/// labels, `[batch, seq, vocab_size]`, `[batch, seq, n_labels]` or `[batch, n_labels]`; `last_hidden_state`
/// `[batch, seq, d_model]`; `pooler_output` `[batch, d_model]`; `start_logits` and `end_logits` `[batch, seq]`. For a model
/// of encoder and decoder `input_ids` are what the encoder reads; the sequence that the outputs belong to are
/// `decoder_input_ids`, where needed with a `decoder_attention_mask`. Other
/// tensors are left alone.
#[derive(Clone, Debug)]
pub struct Golden {
    path: PathBuf,
    inputs: Inputs,
    /// By name: shape and values.
    expected: BTreeMap<&'static str, (Vec<usize>, Vec<f64>)>,
}

/// What the model reads.
#[derive(Clone, Debug)]
enum Inputs {
    /// Token ids, and what an encoder beside the decoder reads.
    Tokens(Sequences, Option<Sequences>),
    Images(Images),
}

/// Token ids of a batch, and what belongs to them.
#[derive(Clone, Debug)]
struct Sequences {
    ids: Vec<Vec<i64>>,
    types: Option<Vec<Vec<i64>>>,
    padding: Option<Vec<Vec<bool>>>,
}

impl Sequences {
    fn dims(&self) -> [usize; 2] {
        [self.ids.len(), self.ids.first().map_or(0, Vec::len)]
    }

    fn input(&self) -> ModelInput {
        let mut input = ModelInput::tokens(&self.ids);
        if let Some(types) = &self.types {
            input = input.with_types(types);
        }
        if let Some(padding) = &self.padding {
            input = input.with_padding(padding.clone());
        }
        input
    }
}

/// What [`verify`] found.
#[derive(Serialize, Clone, Debug)]
pub struct Verification {
    /// Whether every output lies within the tolerance.
    pub ok: bool,
    /// One entry per output that the golden file holds.
    pub outputs: Vec<OutputCheck>,
}

/// How far one output lies from the expected one.
#[derive(Serialize, Clone, Debug)]
pub struct OutputCheck {
    /// The output's name in the golden file.
    pub name: String,
    /// Largest difference; NaN where the output or the expected one has a NaN.
    pub max_abs: f64,
    /// Largest difference over the largest expected value.
    pub max_rel: f64,
    /// Share of positions whose largest entry is the expected one.
    pub argmax_agreement: f64,
}

impl Golden {
    /// Reads a golden file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, lacks `input_ids` and `pixel_values` or every output, or a shape does not fit the
    /// others.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| Error::file(path, format!("is not a whole safetensors file: {error}")))?;
        let fault = |problem: String| Error::file(path, problem);
        let find = |name: &str| tensors.tensor(name).ok();

        let matrix = |name: &str| -> Result<Option<Vec<Vec<i64>>>, Error> {
            let Some(tensor) = find(name) else { return Ok(None) };
            let &[batch, seq] = tensor.shape() else {
                return Err(fault(format!("`{name}` has shape {:?}, expected [batch, seq]", tensor.shape())));
            };
            let values = integers(&tensor).map_err(|problem| fault(format!("`{name}` {problem}")))?;
            Ok(Some((0..batch).map(|row| values[row * seq..(row + 1) * seq].to_vec()).collect()))
        };
        let sequences = |ids_name: &str, mask_name: &str, types_name: &str| -> Result<Option<Sequences>, Error> {
            let Some(ids) = matrix(ids_name)? else { return Ok(None) };
            let beside = |name: &str| -> Result<Option<Vec<Vec<i64>>>, Error> {
                let (Some(rows), Some(tensor)) = (matrix(name)?, find(name)) else { return Ok(None) };
                let expected = [ids.len(), ids.first().map_or(0, Vec::len)];
                match tensor.shape() == expected {
                    true => Ok(Some(rows)),
                    false => Err(fault(format!("`{name}` has shape {:?}, expected {expected:?}", tensor.shape()))),
                }
            };
            let is_padding = |row: &Vec<i64>| row.iter().map(|entry| *entry == 0).collect();
            let padding = beside(mask_name)?.map(|rows| rows.iter().map(is_padding).collect());
            Ok(Some(Sequences { types: beside(types_name)?, padding, ids }))
        };
        let input = sequences("input_ids", "attention_mask", "token_type_ids")?;
        let decoded = sequences("decoder_input_ids", "decoder_attention_mask", "")?;
        let inputs = match (decoded, input, find("pixel_values")) {
            (Some(decoded), Some(input), _) => Inputs::Tokens(decoded, Some(input)),
            (None, Some(input), _) => Inputs::Tokens(input, None),
            (None, None, Some(_)) => Inputs::Images(Images::open(path)?),
            _ => {
                let names = tensors.names().join(", ");
                return Err(fault(format!("has no tensor `input_ids` or `pixel_values`; there are: {names}")));
            }
        };
        let (batch, seq) = match &inputs {
            Inputs::Tokens(sequences, _) => (sequences.dims()[0], Some(sequences.dims()[1])),
            Inputs::Images(images) => (images.len(), None),
        };
        let mut expected = BTreeMap::new();
        for name in OUTPUTS {
            let Some(tensor) = find(name) else { continue };
            let fits = |len: usize| seq.is_none_or(|seq| seq == len);
            let is_fit = match (name, tensor.shape()) {
                ("logits" | "last_hidden_state", [b, s, _]) => *b == batch && fits(*s),
                ("logits" | "pooler_output", [b, _]) => *b == batch,
                ("start_logits" | "end_logits", [b, s]) => *b == batch && fits(*s),
                _ => false,
            };
            if !is_fit {
                let shape = tensor.shape();
                return Err(fault(format!("`{name}` has shape {shape:?}, which does not fit the inputs")));
            }
            let values = floats(&tensor).map_err(|problem| fault(format!("`{name}` {problem}")))?;
            expected.insert(name, (tensor.shape().to_vec(), values));
        }
        if expected.is_empty() {
            return Err(fault(format!("holds nothing to compare with; expected one of {}", OUTPUTS.join(", "))));
        }
        Ok(Self { path: path.to_path_buf(), inputs, expected })
    }

    /// Batch and sequence length; the model says how long an image is.
    pub fn dims(&self, config: &ModelConfig) -> [usize; 2] {
        match &self.inputs {
            Inputs::Tokens(sequences, _) => sequences.dims(),
            Inputs::Images(images) => [images.len(), config.max_seq_len],
        }
    }

    fn is_padding(&self, row: usize, position: usize) -> bool {
        match &self.inputs {
            Inputs::Tokens(Sequences { padding: Some(padding), .. }, _) => padding[row][position],
            Inputs::Tokens(..) | Inputs::Images(_) => false,
        }
    }

    /// The rows of an output along its last axis, without what stands at padded positions.
    fn unpadded(&self, name: &str, shape: &[usize], values: &[f64]) -> Vec<Vec<f64>> {
        let width = shape.last().copied().unwrap_or(0).max(1);
        let rows = values.chunks(width);
        match *shape {
            [_, seq, _] => {
                let is_token = |index: &usize| !self.is_padding(index / seq, index % seq);
                rows.enumerate().filter(|(index, _)| is_token(index)).map(|(_, row)| row.to_vec()).collect()
            }
            // Each position is an entry of its row.
            _ if ["start_logits", "end_logits"].contains(&name) => {
                let tokens = |row: usize, values: &[f64]| -> Vec<f64> {
                    let places = values.iter().enumerate();
                    places.filter(|(at, _)| !self.is_padding(row, *at)).map(|(_, value)| *value).collect()
                };
                rows.enumerate().map(|(row, values)| tokens(row, values)).filter(|row| !row.is_empty()).collect()
            }
            // One row for each sequence.
            _ => rows.map(<[f64]>::to_vec).collect(),
        }
    }
}

/// Runs `model` on the inputs of `golden` and compares what it gives with what is expected, padded positions left out.
/// An output holds when its largest difference is at most `tolerance` times the largest expected value; NaN never holds.
///
/// # Errors
///
/// When the model cannot take the inputs, does not give an output that is expected, or there is nothing to compare.
pub fn verify(model: &Transformer, golden: &Golden, tolerance: f64) -> Result<Verification, Error> {
    let input = match &golden.inputs {
        Inputs::Tokens(sequences, None) => sequences.input(),
        Inputs::Tokens(sequences, Some(source)) => sequences.input().with_source(source.input()),
        Inputs::Images(images) => ModelInput::pixels(images.tensor(&model.device())),
    };
    let output = model.forward(&input, None, ForwardOptions::default())?;
    let mut outputs = Vec::new();
    for name in OUTPUTS {
        let Some((shape, expected)) = golden.expected.get(name) else { continue };
        let got = named(&output, model.config(), name);
        let fault = |problem: String| Error::file(&golden.path, format!("expects `{name}`, {problem}"));
        let got = got.ok_or_else(|| fault("which the model does not give".into()))?;
        if got.shape().as_slice() != shape.as_slice() {
            return Err(fault(format!("of shape {shape:?}; the model gives {:?}", got.shape().as_slice())));
        }
        let check = compare(name, golden, shape, &got, expected);
        outputs.push(check.ok_or_else(|| fault("and has no position that is not padding".into()))?);
    }
    // A NaN is not below anything.
    let ok = outputs.iter().all(|output| output.max_rel <= tolerance);
    Ok(Verification { ok, outputs })
}

/// The output that golden files have under `name`.
fn named(output: &ModelOutput, config: &ModelConfig, name: &str) -> Option<TensorData> {
    let end_of_answer = |which: usize| {
        let scores = output.scores.clone()?;
        let [batch, seq, n_labels] = scores.dims();
        (which < n_labels).then(|| scores.slice_dim(2, which..which + 1).reshape([batch, seq]).into_data())
    };
    match (name, output.scores.clone(), &config.task) {
        ("logits", Some(scores), Some(task)) if task.input != TaskInput::EveryToken => {
            let [batch, _, n_labels] = scores.dims();
            Some(scores.reshape([batch, n_labels]).into_data())
        }
        ("logits", Some(scores), _) => Some(scores.into_data()),
        ("logits", None, _) => output.logits.clone().map(Tensor::into_data),
        ("last_hidden_state", ..) => Some(output.hidden.clone().into_data()),
        ("start_logits", ..) => end_of_answer(0),
        ("end_logits", ..) => end_of_answer(1),
        _ => output.pooled.clone().map(Tensor::into_data),
    }
}

/// Compares row by row along the last axis; `None` where every row belongs to padding.
fn compare(name: &str, golden: &Golden, shape: &[usize], got: &TensorData, expected: &[f64]) -> Option<OutputCheck> {
    let got: Vec<f64> = got.iter::<f64>().collect();
    let (got, expected) = (golden.unpadded(name, shape, &got), golden.unpadded(name, shape, expected));
    let (mut max_abs, mut largest) = (0f64, 0f64);
    let mut agreeing = 0usize;
    for (got, expected) in got.iter().zip(&expected) {
        agreeing += usize::from(argmax(got) == argmax(expected));
        for (got, expected) in got.iter().zip(expected) {
            max_abs = larger(max_abs, (got - expected).abs());
            largest = larger(largest, expected.abs());
        }
    }
    (!expected.is_empty()).then(|| OutputCheck {
        name: name.to_owned(),
        max_abs,
        // All expected values may be zero.
        max_rel: if max_abs == 0.0 { 0.0 } else { max_abs / largest },
        argmax_agreement: agreeing as f64 / expected.len() as f64,
    })
}

/// The larger number; NaN as soon as one is NaN, unlike `f64::max`.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b <= a { a } else { b }
}

/// Index of the largest entry, the first of equal ones.
fn argmax(values: &[f64]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}
