//! Comparing a model's outputs with outputs that another implementation stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::error::Error;
use crate::model::{ForwardOptions, ModelInput, Transformer};

/// The outputs that can be compared, by the names they have in a golden file.
const OUTPUTS: [&str; 3] = ["logits", "last_hidden_state", "pooler_output"];

/// Inputs and expected outputs, read from a safetensors file.
///
/// The file holds `input_ids`, where they are needed `attention_mask` (1 = token, 0 = padding) and `token_type_ids`, all
/// `[batch, seq]`, and one or more of `logits` `[batch, seq, vocab_size]`, `last_hidden_state` `[batch, seq, d_model]` and
/// `pooler_output` `[batch, d_model]`. For a model of encoder and decoder these ids are what the encoder reads; the
/// sequence that the outputs belong to are `decoder_input_ids`, where needed with a `decoder_attention_mask`. Other
/// tensors are left alone.
#[derive(Clone, Debug)]
pub struct Golden {
    path: PathBuf,
    sequences: Sequences,
    /// What an encoder beside the decoder reads.
    source: Option<Sequences>,
    /// By name: shape and values.
    expected: BTreeMap<&'static str, (Vec<usize>, Vec<f64>)>,
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
    /// When the file cannot be read, lacks `input_ids` or every output, or a shape does not fit the others.
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
        let input = sequences("input_ids", "attention_mask", "token_type_ids")?.ok_or_else(|| {
            let names = tensors.names().join(", ");
            fault(format!("has no tensor `input_ids`; there are: {names}"))
        })?;
        let (sequences, source) = match sequences("decoder_input_ids", "decoder_attention_mask", "")? {
            Some(decoded) => (decoded, Some(input)),
            None => (input, None),
        };
        let [batch, seq] = sequences.dims();
        let mut expected = BTreeMap::new();
        for name in OUTPUTS {
            let Some(tensor) = find(name) else { continue };
            let fits = match tensor.shape() {
                [b, s, _] => name != "pooler_output" && [*b, *s] == [batch, seq],
                [b, _] => name == "pooler_output" && *b == batch,
                _ => false,
            };
            if !fits {
                let input = [batch, seq];
                return Err(fault(format!("`{name}` has shape {:?}, the token ids {input:?}", tensor.shape())));
            }
            let values = floats(&tensor).map_err(|problem| fault(format!("`{name}` {problem}")))?;
            expected.insert(name, (tensor.shape().to_vec(), values));
        }
        if expected.is_empty() {
            return Err(fault(format!("holds nothing to compare with; expected one of {}", OUTPUTS.join(", "))));
        }
        Ok(Self { path: path.to_path_buf(), sequences, source, expected })
    }

    /// Batch and sequence length.
    pub fn dims(&self) -> [usize; 2] {
        self.sequences.dims()
    }

    fn is_padding(&self, row: usize, position: usize) -> bool {
        self.sequences.padding.as_ref().is_some_and(|padding| padding[row][position])
    }
}

/// Runs `model` on the inputs of `golden` and compares what it gives with what is expected, padded positions left out.
/// An output holds when its largest difference is at most `tolerance` times the largest expected value; NaN never holds.
///
/// # Errors
///
/// When the model cannot take the inputs, does not give an output that is expected, or there is nothing to compare.
pub fn verify(model: &Transformer, golden: &Golden, tolerance: f64) -> Result<Verification, Error> {
    let mut input = golden.sequences.input();
    if let Some(source) = &golden.source {
        input = input.with_source(source.input());
    }
    let output = model.forward(&input, None, ForwardOptions::default())?;
    let mut outputs = Vec::new();
    for name in OUTPUTS {
        let Some((shape, expected)) = golden.expected.get(name) else { continue };
        let got = match name {
            "logits" => output.logits.clone().map(|logits| logits.into_data()),
            "last_hidden_state" => Some(output.hidden.clone().into_data()),
            _ => output.pooled.clone().map(|pooled| pooled.into_data()),
        };
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

/// Compares row by row along the last axis; `None` where every row belongs to padding.
fn compare(name: &str, golden: &Golden, shape: &[usize], got: &TensorData, expected: &[f64]) -> Option<OutputCheck> {
    let width = *shape.last()?;
    let seq = if shape.len() == 3 { shape[1] } else { 1 };
    let got: Vec<f64> = got.iter::<f64>().collect();
    let (mut max_abs, mut largest) = (0f64, 0f64);
    let (mut positions, mut agreeing) = (0usize, 0usize);
    for (index, (got, expected)) in got.chunks(width.max(1)).zip(expected.chunks(width.max(1))).enumerate() {
        if golden.is_padding(index / seq, index % seq) {
            continue;
        }
        positions += 1;
        agreeing += usize::from(argmax(got) == argmax(expected));
        for (got, expected) in got.iter().zip(expected) {
            max_abs = larger(max_abs, (got - expected).abs());
            largest = larger(largest, expected.abs());
        }
    }
    (positions > 0).then(|| OutputCheck {
        name: name.to_owned(),
        max_abs,
        // All expected values may be zero.
        max_rel: if max_abs == 0.0 { 0.0 } else { max_abs / largest },
        argmax_agreement: agreeing as f64 / positions as f64,
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

fn integers(tensor: &TensorView) -> Result<Vec<i64>, String> {
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::I64 => numbers(data, i64::from_le_bytes),
        Dtype::I32 => numbers(data, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::U8 | Dtype::BOOL => data.iter().map(|byte| i64::from(*byte)).collect(),
        other => return Err(format!("has type {other:?}, expected whole numbers")),
    })
}

fn floats(tensor: &TensorView) -> Result<Vec<f64>, String> {
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F64 => numbers(data, f64::from_le_bytes),
        Dtype::F32 => numbers(data, |bytes| f32::from_le_bytes(bytes).into()),
        Dtype::F16 => numbers(data, |bytes| f16::from_le_bytes(bytes).into()),
        Dtype::BF16 => numbers(data, |bytes| bf16::from_le_bytes(bytes).into()),
        other => return Err(format!("has type {other:?}, expected floating-point numbers")),
    })
}

/// Numbers of `N` bytes each.
fn numbers<const N: usize, T>(data: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.chunks_exact(N).map(|bytes| read(bytes.try_into().expect("chunks have this length"))).collect()
}
