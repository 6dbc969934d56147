//! What each head of a model does: where it looks on a text, what it does when tokens repeat, and how much the loss
//! grows without it.
//!
//! ```
//! use burn::tensor::Device;
//! use burnformer::head_roles::{HeadInput, RepeatedTokens, head_scores};
//! use burnformer::model::ModelConfig;
//!
//! # fn main() -> Result<(), burnformer::Error> {
//! let config = ModelConfig::from_toml(
//!     r#"
//!     kind = "decoder"
//!     d_model = 16
//!     n_layers = 2
//!     max_seq_len = 64
//!     embedding.vocab_size = 32
//!     attention.n_heads = 4
//!     "#,
//! )?;
//! let model = config.init(&Device::default());
//! let repeated = RepeatedTokens::for_model(vec![], &config, 0);
//! for head in head_scores(&model, &HeadInput::new(vec![3, 1, 4, 1, 5]).with_repeated(repeated))? {
//!     println!("{}: {} ({:.2} on the token before)", head.id(), head.role.label(), head.previous_token.unwrap_or(0.0));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Attention weights are taken layer by layer and let go once they are read, so that memory holds one score square of all
//! heads of one layer.

mod ablation;
mod pattern;
mod repeated;
mod scores;

use burn::tensor::Tensor;

pub use ablation::{Ablation, ablate_heads, check_ablation};
pub use pattern::{AttentionPattern, Visibility};
pub use repeated::RepeatedTokens;
pub use scores::{CLEAR_ENTROPY, CLEAR_SHARE, HeadId, HeadRole, HeadScores};

use crate::backend;
use crate::error::Error;
use crate::model::{
    AttentionObserver, AttentionPart, AttentionPlace, ForwardOptions, Logits, ModelConfig, ModelInput, ModelKind,
    Transformer,
};

/// The fewest tokens on which the places that scores speak of are different ones.
const FEWEST_TOKENS: usize = 3;

/// What the heads of a model are looked at on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadInput {
    /// The text, as token ids.
    pub tokens: Vec<i64>,
    /// What the encoder reads, in a model that has one beside its decoder. Default: the text.
    pub source: Option<Vec<i64>>,
    /// The tokens on which induction is measured. Default: none, and it is not measured.
    pub repeated: Option<RepeatedTokens>,
}

impl HeadInput {
    /// A text.
    pub fn new(tokens: Vec<i64>) -> Self {
        Self { tokens, ..Self::default() }
    }

    setters! {
        with_source => source: Option<Vec<i64>>,
        with_repeated => repeated: Option<RepeatedTokens>,
    }

    /// The text in `rows` equal rows.
    fn text(&self, rows: usize, config: &ModelConfig) -> ModelInput {
        self.input(&self.tokens, rows, config)
    }

    fn input(&self, tokens: &[i64], rows: usize, config: &ModelConfig) -> ModelInput {
        let input = ModelInput::tokens(&vec![tokens.to_vec(); rows]);
        let source = self.source.as_ref().unwrap_or(&self.tokens);
        match config.encoder {
            Some(_) => input.with_source(ModelInput::tokens(&vec![source.clone(); rows])),
            None => input,
        }
    }
}

/// The scores of every head, by part, layer and head.
///
/// # Errors
///
/// When the text has fewer than three tokens, the model refuses it, its kernel cannot return weights, weights are no
/// numbers, or those of one layer do not fit into a buffer of the device.
pub fn head_scores(model: &Transformer, input: &HeadInput) -> Result<Vec<HeadScores>, Error> {
    let config = model.config();
    let mut scores = Vec::new();
    observe(model, input, &input.tokens, &|_| true, &mut |id, pattern| {
        scores.push(HeadScores::of(id, pattern, visibility(config, id.place())));
    })?;
    scores.sort_by_key(HeadScores::id);
    let Some(repeated) = input.repeated.as_ref().filter(|_| config.kind == ModelKind::Decoder) else {
        return Ok(scores);
    };
    let is_own = |place: AttentionPlace| place.part == AttentionPart::Decoder;
    observe(model, input, &repeated.tokens(), &is_own, &mut |id, pattern| {
        let [induction, duplicate_token] = repeated.scores(pattern, visibility(config, id.place()));
        if let Ok(index) = scores.binary_search_by_key(&id, HeadScores::id) {
            scores[index].add_repeated(induction, duplicate_token);
        }
    })?;
    Ok(scores)
}

/// The attention weights of chosen heads on the text of `input`, in the order of `heads`.
///
/// # Errors
///
/// As [`head_scores`], and when there is no such head.
pub fn attention_patterns(
    model: &Transformer,
    input: &HeadInput,
    heads: &[HeadId],
) -> Result<Vec<AttentionPattern>, Error> {
    check_heads(model.config(), heads)?;
    let mut found = vec![None; heads.len()];
    let is_asked_for = |place| heads.iter().any(|head| head.place() == place);
    observe(model, input, &input.tokens, &is_asked_for, &mut |id, pattern| {
        for (_, slot) in heads.iter().zip(&mut found).filter(|(head, _)| **head == id) {
            *slot = Some(pattern.clone());
        }
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Every head of a model, by part, layer and head.
pub fn all_heads(config: &ModelConfig) -> Vec<HeadId> {
    let of_part = |part| {
        let layers = 0..n_layers(config, part);
        layers.flat_map(move |layer| (0..n_heads(config, part)).map(move |head| HeadId { part, layer, head }))
    };
    AttentionPart::ALL.into_iter().flat_map(of_part).collect()
}

/// The configuration of the stack that a part belongs to, if the model has it.
fn stack_of(config: &ModelConfig, part: AttentionPart) -> Option<&ModelConfig> {
    match (part, config.kind) {
        (AttentionPart::Encoder, ModelKind::Encoder) | (AttentionPart::Decoder, ModelKind::Decoder) => Some(config),
        (AttentionPart::Encoder, ModelKind::Decoder) => config.encoder.as_deref(),
        (AttentionPart::Decoder, ModelKind::Encoder) => None,
        (AttentionPart::Cross, _) => config.encoder.as_ref().map(|_| config),
    }
}

fn n_layers(config: &ModelConfig, part: AttentionPart) -> usize {
    stack_of(config, part).map_or(0, |stack| stack.n_layers)
}

fn n_heads(config: &ModelConfig, part: AttentionPart) -> usize {
    let Some(stack) = stack_of(config, part) else { return 0 };
    match part {
        AttentionPart::Cross => config.cross_attention().map_or(0, |cross| cross.n_heads),
        AttentionPart::Encoder | AttentionPart::Decoder => stack.attention.n_heads,
    }
}

/// Which keys the queries of an attention see.
fn visibility(config: &ModelConfig, place: AttentionPlace) -> Visibility {
    if place.part == AttentionPart::Cross {
        return Visibility::default();
    }
    let pattern = stack_of(config, place.part).and_then(|stack| stack.layer_patterns().get(place.layer).copied());
    Visibility { is_causal: place.part == AttentionPart::Decoder, window: pattern.and_then(|pattern| pattern.window) }
}

/// Fails where the model has no such head.
fn check_heads(config: &ModelConfig, heads: &[HeadId]) -> Result<(), Error> {
    for head in heads {
        let (n_layers, n_heads) = (n_layers(config, head.part), n_heads(config, head.part));
        if n_layers == 0 {
            return Err(Error::Input(format!("there is no head {head}: the model has no {} attention", head.part)));
        }
        if head.layer >= n_layers || head.head >= n_heads {
            return Err(Error::Input(format!(
                "there is no head {head}: the layers are 0 to {} and their heads 0 to {}",
                n_layers - 1,
                n_heads - 1
            )));
        }
    }
    Ok(())
}

/// Runs the model on `tokens` and gives the pattern of each head of the places that are asked for.
fn observe(
    model: &Transformer,
    input: &HeadInput,
    tokens: &[i64],
    is_asked_for: &dyn Fn(AttentionPlace) -> bool,
    see: &mut dyn FnMut(HeadId, &AttentionPattern),
) -> Result<(), Error> {
    if tokens.len() < FEWEST_TOKENS {
        let count = tokens.len();
        return Err(Error::Input(format!(
            "heads are told apart on at least {FEWEST_TOKENS} tokens, the text has {count}"
        )));
    }
    check_fits(model, input, tokens.len())?;
    let mut observer = PatternObserver { is_asked_for, see, not_finite: None };
    let options = ForwardOptions { logits: Logits::None, ..ForwardOptions::default() };
    model.forward_observed(&input.input(tokens, 1, model.config()), None, options, &mut observer)?;
    match observer.not_finite {
        None => Ok(()),
        Some(AttentionPlace { part, layer }) => Err(Error::Input(format!(
            "attention weights of {part} layer {layer} are NaN or infinite, so that its heads cannot be told apart"
        ))),
    }
}

/// Fails where the weights of one layer do not fit into one buffer of the device.
fn check_fits(model: &Transformer, input: &HeadInput, len: usize) -> Result<(), Error> {
    let Some(limit) = backend::largest_buffer(&model.device()) else { return Ok(()) };
    let config = model.config();
    let source = input.source.as_ref().map_or(input.tokens.len(), Vec::len);
    let len = if config.encoder.is_some() { len.max(source) } else { len };
    let bytes = (config.attention.n_heads * len * len * size_of::<f32>()) as u64;
    if bytes <= limit {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Error::Input(format!(
        "the attention weights of one layer on {len} tokens have {} MiB and this device's largest buffer is {} MiB; use a \
         shorter text or a CPU backend",
        mib(bytes),
        mib(limit)
    )))
}

/// Brings weights to the host, head by head.
struct PatternObserver<'a> {
    is_asked_for: &'a dyn Fn(AttentionPlace) -> bool,
    see: &'a mut dyn FnMut(HeadId, &AttentionPattern),
    not_finite: Option<AttentionPlace>,
}

impl AttentionObserver for PatternObserver<'_> {
    fn wants_weights(&self, place: AttentionPlace) -> bool {
        (self.is_asked_for)(place)
    }

    fn see_weights(&mut self, place: AttentionPlace, weights: Tensor<4>) {
        let [_, n_heads, query_len, key_len] = weights.dims();
        let data = weights.into_data();
        let mut values = data.iter::<f64>();
        for head in 0..n_heads {
            let weights = values.by_ref().take(query_len * key_len).collect();
            let pattern = AttentionPattern::new(weights, key_len);
            if !pattern.is_finite() {
                self.not_finite.get_or_insert(place);
            }
            (self.see)(HeadId { part: place.part, layer: place.layer, head }, &pattern);
        }
    }
}
