//! Switching heads off, one at a time, and what the loss says to it.

use std::collections::BTreeMap;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Serialize;

use super::{HeadId, HeadInput, check_heads};
use crate::error::Error;
use crate::model::{AttentionObserver, AttentionPlace, ForwardOptions, ModelConfig, ModelKind, Transformer};
use crate::precision::widen;

/// Rows run at a time hold at most this many bytes of logits, and are at most this many.
const LARGEST_LOGITS: usize = 64 << 20;
const MOST_ROWS: usize = 32;

/// What switching heads off does to the loss, in nats per token.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Ablation {
    /// The loss of the whole model: the mean of −ln p(token | tokens before it) over all tokens but the first.
    pub loss: f64,
    /// For each head, by how much the loss grows without it. Negative where the model is better off without.
    pub effects: Vec<f64>,
}

/// Measures the next-token loss on the text of `input` with the output of one head set to zero, for each of `heads`.
/// `progress` is called with how many are done.
///
/// A head's output is zeroed before the output projection, whose bias stays.
///
/// # Errors
///
/// When the model does not predict the next token, there is no such head, the text has fewer than two tokens, or the
/// model refuses it.
pub fn ablate_heads(
    model: &Transformer,
    input: &HeadInput,
    heads: &[HeadId],
    progress: &mut dyn FnMut(usize),
) -> Result<Ablation, Error> {
    check_ablation(model.config(), input, heads)?;
    let logits_of_row = input.tokens.len() * model.config().vocab_size() * size_of::<f32>();
    let chunk = (LARGEST_LOGITS / logits_of_row).clamp(1, MOST_ROWS);
    let whole_and_without: Vec<Option<HeadId>> = std::iter::once(None).chain(heads.iter().copied().map(Some)).collect();
    let mut losses = Vec::with_capacity(whole_and_without.len());
    for without in whole_and_without.chunks(chunk) {
        losses.extend(next_token_losses(model, input, without)?);
        progress(losses.len() - 1);
    }
    let loss = losses[0];
    Ok(Ablation { loss, effects: losses[1..].iter().map(|without| without - loss).collect() })
}

/// Whether [`ablate_heads`] can be carried out on a model of this configuration.
///
/// # Errors
///
/// When the model does not predict the next token, there is no such head, or the text has fewer than two tokens.
pub fn check_ablation(config: &ModelConfig, input: &HeadInput, heads: &[HeadId]) -> Result<(), Error> {
    if config.kind != ModelKind::Decoder || config.head.is_none() {
        let problem = "switching heads off is measured by the next-token loss, and this model predicts no next token";
        return Err(Error::Input(problem.into()));
    }
    if input.tokens.len() < 2 {
        let problem = format!("the next-token loss needs at least 2 tokens, the text has {}", input.tokens.len());
        return Err(Error::Input(problem));
    }
    check_heads(config, heads)
}

/// The loss of one row for each entry, without the head that it names.
fn next_token_losses(model: &Transformer, input: &HeadInput, without: &[Option<HeadId>]) -> Result<Vec<f64>, Error> {
    let (rows, device) = (without.len(), model.device());
    let mut switches = Switches::new(model, without, &device);
    let output =
        model.forward_observed(&input.text(rows, model.config()), None, ForwardOptions::default(), &mut switches)?;
    let logits = widen(output.logits.ok_or_else(|| Error::Input("the model gives no logits".into()))?);
    let predicted = input.tokens.len() - 1;
    let targets = input.tokens[1..].repeat(rows);
    let targets = Tensor::<3, Int>::from_data(TensorData::new(targets, [rows, predicted, 1]), &device);
    let log_probabilities = log_softmax(logits.slice_dim(1, 0..predicted), 2).gather(2, targets);
    let values: Vec<f64> = log_probabilities.into_data().iter::<f64>().collect();
    let mean = |row: &[f64]| -row.iter().sum::<f64>() / predicted as f64;
    Ok(values.chunks(predicted).map(mean).collect())
}

/// Switches one head off per row.
struct Switches {
    gates: BTreeMap<AttentionPlace, Tensor<2>>,
}

impl Switches {
    fn new(model: &Transformer, without: &[Option<HeadId>], device: &Device) -> Self {
        let mut off: BTreeMap<AttentionPlace, Vec<(usize, usize)>> = BTreeMap::new();
        for (row, head) in without.iter().enumerate().filter_map(|(row, head)| Some((row, (*head)?))) {
            off.entry(head.place()).or_default().push((row, head.head));
        }
        let dtype = model.layers[0].attention.query.dtype();
        let gates = off.into_iter().map(|(place, off)| {
            let n_heads = super::n_heads(model.config(), place.part);
            let mut gates = vec![1f32; without.len() * n_heads];
            for (row, head) in off {
                gates[row * n_heads + head] = 0.0;
            }
            let gates = TensorData::new(gates, [without.len(), n_heads]).convert_dtype(dtype);
            (place, Tensor::from_data(gates, (device, dtype)))
        });
        Self { gates: gates.collect() }
    }
}

impl AttentionObserver for Switches {
    fn gates(&self, place: AttentionPlace) -> Option<Tensor<2>> {
        self.gates.get(&place).cloned()
    }
}
