//! Whole models: in one pass, through the cache, and in a padded batch.

use burn::tensor::Tensor;

use super::case::{Case, Kind};
use super::numbers::draw_below;
use super::probe::Probe;
use super::shrink::{ablations, shrunk, without_dropout};
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, QkNorm, QkNormScope, RotaryConfig};
use crate::embedding::{EmbeddingConfig, EmbeddingScale};
use crate::error::Error;
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::mixture_of_experts::{MixtureOfExpertsConfig, SharedExpertConfig};
use crate::model::{ForwardOptions, LayerPattern, ModelConfig, ModelInput, ModelKind, ModelOutput, Transformer};
use crate::norm::{NormConfig, NormKind};
use crate::positions::{LearnedPositions, Positions};
use crate::transformer_block::{BlockLayout, NormPlacement};

/// Presets that between them have every option that published models have.
const PRESETS: [&str; 19] = [
    "transformer-base-encoder",
    "gpt2",
    "bert-base",
    "llama-3.2-1b",
    "gemma-2-2b",
    "gemma-3-1b",
    "olmo-2-1b",
    "phi-2",
    "pythia-160m",
    "falcon-7b",
    "bloom-560m",
    "mpt-7b",
    "opt-125m",
    "qwen3-0.6b",
    "stablelm-3b",
    "starcoder2-3b",
    "mixtral-8x7b",
    "t5-small",
    "vit-base",
];

/// Tokens per sequence, more than a window shows.
const SEQ: usize = 13;
/// Tokens of each sequence of a padded batch.
pub(super) const LENGTHS: [usize; 3] = [SEQ, 9, 4];
/// A model of more parameters is shrunk.
const LARGEST: u64 = 2_000_000;

pub(super) fn all() -> Result<Vec<Case>, Error> {
    let mut models = Vec::new();
    for name in PRESETS {
        models.push((format!("model/{name}"), shrunk(&ModelConfig::preset(name)?)));
    }
    models.push(("model/rarer options".into(), rarer_options()));
    models.push(("model/padding positions".into(), padding_positions()));
    models.push(("model/dense layers and mixtures".into(), dense_layers_and_mixtures()));
    let mut cases = Vec::new();
    for (name, config) in models {
        let twins = ablations(&config);
        let run = config.clone();
        let mut whole = Case::new(Kind::Model, &name, move |probe| in_one_pass(&run, probe));
        for (option, twin) in twins {
            whole = whole.without(option, move |probe| in_one_pass(&twin, probe));
        }
        cases.push(whole);
        if config.patches.is_some() {
            continue;
        }
        let side = if config.kind == ModelKind::Decoder { "left" } else { "right" };
        if config.kind == ModelKind::Decoder {
            let run = config.clone();
            cases.push(
                Case::new(Kind::Model, format!("{name}, cached"), move |probe| in_parts(&run, probe)).forward_only(),
            );
            let run = config.clone();
            let padded = move |probe: &mut Probe| padded(&run, true, true, probe);
            cases.push(Case::new(Kind::Model, format!("{name}, {side} padding, cached"), padded).forward_only());
        }
        let (run, twin) = (config.clone(), config);
        let case =
            Case::new(Kind::Model, format!("{name}, {side} padding"), move |probe| padded(&run, true, false, probe));
        cases.push(case.forward_only().without("padding", move |probe| padded(&twin, false, false, probe)));
    }
    Ok(cases)
}

/// The cases of one model, as it is if it is small.
pub(super) fn of_config(config: &ModelConfig) -> Result<Vec<Case>, Error> {
    config.validate()?;
    let is_small = config.n_parameters() <= LARGEST;
    let small = if is_small { without_dropout(config) } else { shrunk(config) };
    small.validate()?;
    let name = if is_small {
        "model".to_owned()
    } else {
        format!("model, shrunk to {} layers of width {}", small.n_layers, small.d_model)
    };
    let run = small.clone();
    let mut cases = vec![Case::new(Kind::AnyModel, &name, move |probe| in_one_pass(&run, probe))];
    if small.kind == ModelKind::Decoder {
        cases.push(
            Case::new(Kind::AnyModel, format!("{name}, cached"), move |probe| in_parts(&small, probe)).forward_only(),
        );
    }
    Ok(cases)
}

/// What no preset above has.
fn rarer_options() -> ModelConfig {
    let qk_norm = QkNorm { scope: QkNormScope::PerHeadOwnWeight, norm: NormConfig::new(NormKind::LayerNoBias) };
    let attention = MultiHeadAttentionConfig::new(28, 6)
        .with_n_kv_heads(2)
        .with_d_head(10)
        .with_clip_qkv(1.0)
        .with_softcap(2.0)
        .with_qk_norm(qk_norm);
    let feed_forward = FeedForwardConfig::new(28, 40).with_activation(Activation::ReluSquared);
    let embedding = EmbeddingConfig::new(61)
        .with_d_embedding(18)
        .with_scale(EmbeddingScale::Constant(3.0))
        .with_n_types(3)
        .with_norm(true);
    let head =
        HeadConfig::new(false).with_bias(true).with_transform(Activation::Gelu).with_scale(0.6).with_softcap(2.0);
    let mut config = ModelConfig::new(ModelKind::Decoder, 3, 20, attention, feed_forward)
        .with_embedding(embedding)
        .with_positions(Positions::Learned(LearnedPositions { offset: 2, padding_id: None }))
        .with_norm(NormConfig::new(NormKind::LayerPlusOne))
        .with_block(BlockLayout::new(NormPlacement::Pre).with_residual_multiplier(0.6))
        .with_final_norm(true)
        .with_head(head);
    config.scale_scores_by_layer = true;
    config
}

/// Positions that count tokens other than padding, as RoBERTa's.
fn padding_positions() -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(48, 6);
    ModelConfig::new(ModelKind::Encoder, 2, 20, attention, FeedForwardConfig::new(48, 80))
        .with_embedding(EmbeddingConfig::new(61).with_norm(true))
        .with_positions(Positions::Learned(LearnedPositions { offset: 2, padding_id: Some(1) }))
        .with_block(BlockLayout::new(NormPlacement::Post))
}

/// Layers with experts and layers without, and an expert that every token passes through, as in Qwen 2 MoE.
fn dense_layers_and_mixtures() -> ModelConfig {
    let network =
        |d_ff| FeedForwardConfig::new(0, d_ff).with_gated(true).with_bias(false).with_activation(Activation::Silu);
    let attention = MultiHeadAttentionConfig::new(48, 6).with_n_kv_heads(2);
    let mixture = MixtureOfExpertsConfig::new(network(22), 5, 3)
        .with_renormalize(false)
        .with_shared(SharedExpertConfig { expert: network(26), gated: true });
    let mut config = ModelConfig::new(ModelKind::Decoder, 3, 20, attention, network(40))
        .with_embedding(EmbeddingConfig::new(61))
        .with_positions(Positions::rotary(RotaryConfig::new(100.0)))
        .with_norm(NormConfig::new(NormKind::Rms))
        .with_final_norm(true)
        .with_layers(vec![LayerPattern::default(), LayerPattern { dense: true, ..LayerPattern::default() }])
        .with_head(HeadConfig::new(false));
    config.mixture = Some(mixture);
    config
}

pub(super) fn build(config: &ModelConfig, probe: &mut Probe) -> Transformer {
    let mut config = config.clone();
    config.attention.kernel = probe.kernel(config.attention.kernel);
    if let Some(encoder) = &mut config.encoder {
        encoder.attention.kernel = probe.kernel(encoder.attention.kernel);
    }
    probe.module("model", config.init(probe.device()))
}

/// A sequence that the model can take.
pub(super) fn seq(config: &ModelConfig) -> usize {
    config.position_limit().map_or(SEQ, |limit| limit.min(SEQ))
}

/// The input of two sequences: token ids and types, images, or hidden states.
pub(super) struct Sequences {
    ids: Vec<Vec<i64>>,
    types: Option<Vec<Vec<i64>>>,
    images: Option<Tensor<4>>,
    states: Option<Tensor<3>>,
    /// What an encoder beside the decoder reads.
    sources: Option<Vec<Vec<i64>>>,
}

impl Sequences {
    pub fn draw(config: &ModelConfig, seq: usize, probe: &mut Probe) -> Self {
        let padding_id = padding_id(config);
        let rows = |name: &str, bound: usize| -> Vec<Vec<i64>> {
            draw_below(name, 2 * seq, bound.max(1) as u64).chunks(seq).map(<[i64]>::to_vec).collect()
        };
        let mut ids = rows("ids", config.vocab_size());
        // A token that happens to be the padding would not count.
        ids.iter_mut().flatten().filter(|id| Some(**id) == padding_id).for_each(|id| *id = 0);
        let n_types = config.embedding.as_ref().map_or(0, |embedding| embedding.n_types);
        let images = config.patches.map(|patches| {
            let [channels, height, width] = patches.image_shape();
            probe.input("images", [2, channels, height, width])
        });
        let is_bare = config.embedding.is_none() && images.is_none();
        let states = is_bare.then(|| probe.input("states", [2, seq, config.d_model]));
        let types = (n_types > 0).then(|| rows("types", n_types));
        let sources = config.encoder.is_some().then(|| rows("sources", config.vocab_size()));
        Self { ids, types, images, states, sources }
    }

    /// The tokens `start..end` of each sequence; the source goes with the first of them. Images are whole.
    pub fn part(&self, start: usize, end: usize) -> ModelInput {
        let cut = |rows: &Vec<Vec<i64>>| rows.iter().map(|row| row[start..end].to_vec()).collect::<Vec<_>>();
        if let Some(images) = &self.images {
            return ModelInput::pixels(images.clone());
        }
        let input = match (&self.states, &self.types) {
            (Some(states), _) => ModelInput::hidden(states.clone().slice_dim(1, start..end)),
            (None, Some(types)) => ModelInput::tokens(&cut(&self.ids)).with_types(&cut(types)),
            (None, None) => ModelInput::tokens(&cut(&self.ids)),
        };
        match &self.sources {
            Some(sources) if start == 0 => input.with_source(ModelInput::tokens(sources)),
            _ => input,
        }
    }
}

fn padding_id(config: &ModelConfig) -> Option<i64> {
    match config.positions {
        Positions::Learned(LearnedPositions { padding_id, .. }) => padding_id.map(i64::from),
        _ => None,
    }
}

fn in_one_pass(config: &ModelConfig, probe: &mut Probe) -> Result<(), Error> {
    let model = build(config, probe);
    let seq = seq(config);
    let input = Sequences::draw(config, seq, probe).part(0, seq);
    let output = model.forward(&input, None, ForwardOptions::default())?;
    probe.output("hidden", output.hidden);
    if let Some(logits) = output.logits {
        probe.output("logits", logits);
    }
    if let Some(pooled) = output.pooled {
        probe.output("pooled", pooled);
    }
    if let Some(scores) = output.scores {
        probe.output("scores", scores);
    }
    Ok(())
}

/// A prompt in two parts, then token by token; the oracle takes the whole sequence at once.
fn in_parts(config: &ModelConfig, probe: &mut Probe) -> Result<(), Error> {
    if probe.is_oracle() {
        return in_one_pass(config, probe);
    }
    let model = build(config, probe);
    let seq = seq(config);
    let sequences = Sequences::draw(config, seq, probe);
    let mut cache = model.new_cache();
    let mut outputs = Vec::new();
    let mut start = 0;
    for end in [4, 7].into_iter().filter(|end| *end < seq).chain(8.min(seq)..=seq) {
        outputs.push(model.forward(&sequences.part(start, end), Some(&mut cache), ForwardOptions::default())?);
        start = end;
    }
    probe.output("hidden", cat(&outputs, |output| Some(output.hidden.clone())).expect("there are hidden states"));
    if let Some(logits) = cat(&outputs, |output| output.logits.clone()) {
        probe.output("logits", logits);
    }
    Ok(())
}

fn cat(outputs: &[ModelOutput], part: impl Fn(&ModelOutput) -> Option<Tensor<3>>) -> Option<Tensor<3>> {
    let parts: Option<Vec<_>> = outputs.iter().map(part).collect();
    parts.map(|parts| Tensor::cat(parts, 1))
}

/// Sequences of unequal lengths in one batch, padded on the left (an encoder's on the right), of which only the tokens
/// are compared; the oracle takes each sequence alone. Without `is_marked` (the mistake that twins make) padding is
/// taken for tokens.
fn padded(config: &ModelConfig, is_marked: bool, is_cached: bool, probe: &mut Probe) -> Result<(), Error> {
    let model = build(config, probe);
    let longest = LENGTHS[0];
    let ids: Vec<Vec<i64>> = LENGTHS.iter().map(|len| sentence(config, *len)).collect();
    if probe.is_oracle() && is_marked {
        for (row, ids) in ids.into_iter().enumerate() {
            let len = ids.len();
            let mut input = ModelInput::tokens(&[ids]);
            if config.encoder.is_some() {
                input = input.with_source(ModelInput::tokens(&[source(config, len)]));
            }
            let output = model.forward(&input, None, ForwardOptions::default())?;
            probe.output(&format!("row {row}"), result(output).reshape([len as i32, -1]));
        }
        return Ok(());
    }
    let is_left = config.kind == ModelKind::Decoder;
    let pad = |tokens: Vec<i64>, with: i64| {
        let padding = std::iter::repeat_n(with, longest - tokens.len());
        if is_left { padding.chain(tokens).collect() } else { tokens.into_iter().chain(padding).collect::<Vec<_>>() }
    };
    let flags: Vec<Vec<bool>> =
        ids.iter().map(|ids| pad(vec![0; ids.len()], 1).into_iter().map(|x| x == 1).collect()).collect();
    let rows: Vec<Vec<i64>> = ids.iter().map(|ids| pad(ids.clone(), padding_id(config).unwrap_or(0))).collect();
    let input = |start: usize, end: usize| {
        let input = ModelInput::tokens(&rows.iter().map(|row| row[start..end].to_vec()).collect::<Vec<_>>());
        let cut = flags.iter().map(|row| row[start..end].to_vec()).collect();
        let input = if is_marked { input.with_padding(cut) } else { input };
        if config.encoder.is_none() || start > 0 {
            return input;
        }
        // Sources are as long as their sequences, and padded on the same side.
        let sources: Vec<_> = LENGTHS.iter().map(|len| pad(source(config, *len), 0)).collect();
        let sources = ModelInput::tokens(&sources);
        input.with_source(if is_marked { sources.with_padding(flags.clone()) } else { sources })
    };
    let output = if is_cached {
        let mut cache = model.new_cache();
        let parts = [(0, 6), (6, longest - 1), (longest - 1, longest)].map(|(start, end)| {
            Ok(result(model.forward(&input(start, end), Some(&mut cache), ForwardOptions::default())?))
        });
        Tensor::cat(parts.into_iter().collect::<Result<Vec<_>, Error>>()?, 1)
    } else {
        result(model.forward(&input(0, longest), None, ForwardOptions::default())?)
    };
    for (row, len) in LENGTHS.into_iter().enumerate() {
        let tokens = if is_left { longest - len..longest } else { 0..len };
        let of_row = output.clone().slice_dim(0, row..row + 1).slice_dim(1, tokens);
        probe.output(&format!("row {row}"), of_row.reshape([len as i32, -1]));
    }
    Ok(())
}

/// `len` token ids, none of them the padding.
pub(super) fn sentence(config: &ModelConfig, len: usize) -> Vec<i64> {
    let ids = draw_below(&format!("sentence of {len}"), len, config.vocab_size() as u64);
    ids.into_iter().map(|id| if Some(id) == padding_id(config) { 0 } else { id }).collect()
}

/// What the encoder reads for a sentence of `len` tokens.
fn source(config: &ModelConfig, len: usize) -> Vec<i64> {
    draw_below(&format!("source of {len}"), len, config.vocab_size() as u64)
}

/// Logits, or hidden states of a model without a head.
fn result(output: ModelOutput) -> Tensor<3> {
    output.logits.unwrap_or(output.hidden)
}
