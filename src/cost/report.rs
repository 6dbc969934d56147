//! Everything that a configuration costs, in one document.

use burn::tensor::{DType, FloatDType};
use serde::Serialize;

use super::flops::{Crossover, FlopsByPart, ForwardFlops, crossovers, forward_flops};
use super::kv_cache::{KvCacheMemory, kv_cache_memory};
use super::layer_kinds::{LayerKind, layer_kinds};
use super::parameters::{BlockParameters, Parameters};
use super::products::{self, Call, Pairs};
use super::roofline::{Machine, Roofline, roofline};
use super::training_compute::TrainingCompute;
use super::training_memory::{BlockActivations, StepSize, TrainingMemory};
use crate::error::Error;
use crate::model::ModelConfig;

/// For what the cost is computed.
#[derive(Clone, Copy, Debug)]
pub struct CostOptions {
    /// Sequences. Default: 1.
    pub batch: usize,
    /// Tokens of each sequence. Default: 2,048, or the longest that the model was made for if that is shorter; for a model
    /// of images as many as an image has.
    pub seq: Option<usize>,
    /// Tokens that the encoder of an encoder-decoder reads. Default: as many as `seq`.
    pub source: Option<usize>,
    /// The type of weights, activations, keys and values. Default: 32 bits.
    pub dtype: FloatDType,
    /// Tokens of a training run. Default: 20 per parameter.
    pub train_tokens: Option<f64>,
    /// The N of `6 · N · D`. Default: the parameters that a token passes through.
    pub parameters: Option<f64>,
    /// The machine that times are for. Default: none, and no times.
    pub machine: Option<Machine>,
}

impl Default for CostOptions {
    fn default() -> Self {
        Self {
            batch: 1,
            seq: None,
            source: None,
            dtype: FloatDType::F32,
            train_tokens: None,
            parameters: None,
            machine: None,
        }
    }
}

/// Lengths that are taken where none is given go to here.
const USUAL_LEN: usize = 2048;

/// Above this, whole numbers are no longer exact in 64-bit floating point, nor is there room for products of them.
const MOST_PARAMETERS: u64 = 1 << 53;
/// Tokens of one batch beyond this are refused, for the same reason.
const MOST_TOKENS: u64 = 1 << 32;

/// The sizes of a model, as papers tabulate them.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Blocks; of an encoder-decoder, those of the decoder.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Features per head.
    pub d_head: usize,
    /// Inner width of the feed-forward network, or of one expert; `None` in blocks without one.
    pub d_ff: Option<usize>,
    /// Experts of a mixture.
    pub n_experts: Option<usize>,
    /// Token ids; 0 without embeddings.
    pub vocab_size: usize,
    /// Longest sequence.
    pub max_seq_len: usize,
}

/// What layers of one kind cost, each of them.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct BlockCost {
    /// Whether the layers are those of the encoder beside a decoder.
    pub in_encoder: bool,
    /// How many layers are of this kind.
    pub layers: u64,
    /// How many keys a query sees; `None` is all.
    pub window: Option<usize>,
    /// Parameters of one layer.
    pub parameters: BlockParameters,
    /// Operations of one layer with every pair of query and key.
    pub flops: FlopsByPart,
    /// Those of products with weights: all but the scores.
    pub weight_flops: u64,
    /// The scores with the visible pairs only.
    pub visible_score_flops: u64,
    /// The length from which on scores take more than products with weights.
    pub crossover: Crossover,
    /// Bytes of activations that one layer keeps for the backward pass.
    pub activations: BlockActivations,
}

/// What a model costs.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct CostReport {
    /// Its sizes.
    pub shape: ModelShape,
    /// Sequences.
    pub batch: usize,
    /// Tokens of each sequence.
    pub seq: usize,
    /// Tokens that the encoder reads; `None` in a model without an encoder beside its decoder.
    pub source_seq: Option<usize>,
    /// The type of numbers: `f32`, `f64`, `f16` or `bf16`.
    pub dtype: &'static str,
    /// Parameters by part.
    pub parameters: Parameters,
    /// Operations of one forward over the batch, by part, with logits of every position.
    pub flops: ForwardFlops,
    /// `flops.full.total` for each token of the batch.
    pub flops_per_token: f64,
    /// The blocks, one entry for layers that cost the same.
    pub blocks: Vec<BlockCost>,
    /// Keys and values of a decoder at this length.
    pub kv_cache: Option<KvCacheMemory>,
    /// Memory of a training step over the batch.
    pub training_memory: TrainingMemory,
    /// Compute of a training run in sequences of this length.
    pub training_compute: TrainingCompute,
    /// Work, traffic and time.
    pub roofline: Roofline,
}

impl CostReport {
    /// The cost of the model that `config` describes.
    ///
    /// # Errors
    ///
    /// When the configuration is not valid, a size or number of tokens is zero or not a number, sequences are longer than
    /// learned positions reach or of another length than images have, or the counts would not fit in 64 bits.
    pub fn new(config: &ModelConfig, options: &CostOptions) -> Result<Self, Error> {
        config.validate()?;
        let call = checked_call(config, options)?;
        for (value, what) in [(options.train_tokens, "training tokens"), (options.parameters, "parameters")] {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value <= 0.0) {
                return Err(Error::Input(format!("the number of {what} must be above 0, got {value}")));
            }
        }
        let Call { batch, new: seq, source, .. } = call;
        let CostOptions { dtype, train_tokens, parameters: given, machine, .. } = options;
        let parameters = Parameters::of(config);
        let flops = forward_flops(config, call);
        let size = StepSize { batch, seq, source, dtype: *dtype };
        let mut blocks = block_costs(config, call, size, false);
        if let Some(encoder) = &config.encoder {
            let size = StepSize { seq: source, ..size };
            blocks.extend(block_costs(encoder, Call { new: source, ..call }, size, true));
        }
        let network = config.feed_forward.as_ref().or(config.mixture.as_ref().map(|mixture| &mixture.expert));
        Ok(Self {
            shape: ModelShape {
                d_model: config.d_model,
                n_layers: config.n_layers,
                n_heads: config.attention.n_heads,
                n_kv_heads: config.attention.n_kv_heads(),
                d_head: config.attention().d_head(),
                d_ff: network.map(|network| network.d_ff),
                n_experts: config.mixture.as_ref().map(|mixture| mixture.n_experts),
                vocab_size: config.vocab_size(),
                max_seq_len: config.max_seq_len,
            },
            batch,
            seq,
            source_seq: config.encoder.as_ref().map(|_| source),
            dtype: name_of(*dtype),
            flops_per_token: flops.full.total as f64 / (batch as f64 * seq as f64),
            blocks,
            kv_cache: kv_cache_memory(config, [batch, seq, source], *dtype),
            training_memory: TrainingMemory::of(config, [batch, seq, source], *dtype),
            training_compute: TrainingCompute::of(&parameters, &flops, call, *train_tokens, *given),
            roofline: roofline(config, call, *dtype, machine.as_ref()),
            parameters,
            flops,
        })
    }
}

/// The call that options ask for, if the model can take it.
fn checked_call(config: &ModelConfig, options: &CostOptions) -> Result<Call, Error> {
    let fail = |problem: String| Err(Error::Input(problem));
    let parameters = config.n_parameters();
    if parameters > MOST_PARAMETERS {
        return fail(format!("the model has {parameters} parameters, more than can be counted exactly"));
    }
    let batch = options.batch;
    let seq = match (options.seq, config.patches) {
        (Some(seq), Some(_)) if seq != config.max_seq_len => {
            let own = config.max_seq_len;
            return fail(format!(
                "the model reads images, which are sequences of {own}, not of {seq}; leave out --seq"
            ));
        }
        (_, Some(_)) => config.max_seq_len,
        (seq, None) => seq.unwrap_or(config.max_seq_len.min(USUAL_LEN)),
    };
    if options.source.is_some() && config.encoder.is_none() {
        return fail("a source length is given, and the model has no encoder beside its decoder".into());
    }
    let source = options.source.unwrap_or(seq);
    for (size, what) in [(batch, "the batch"), (seq, "the sequence length"), (source, "the source length")] {
        if size == 0 {
            return fail(format!("{what} must be at least 1, got 0"));
        }
        if let Some(limit) = config.position_limit().filter(|limit| size > *limit && what != "the batch") {
            return fail(format!("{what} is {size}, and the model's learned positions end at {limit} (max_seq_len)"));
        }
    }
    let tokens = (batch as u64).saturating_mul(seq.max(source) as u64);
    let call = Call::whole(batch, seq).with_source(source);
    if tokens > MOST_TOKENS || forward_flops(config, call).full.total > u64::MAX / 8 {
        return fail(format!("{batch} sequences of {seq} tokens take more operations than can be counted in 64 bits"));
    }
    Ok(call)
}

fn block_costs(config: &ModelConfig, call: Call, size: StepSize, in_encoder: bool) -> Vec<BlockCost> {
    let cost = |(mut kind, crossover): (LayerKind, Crossover)| {
        let layers = std::mem::replace(&mut kind.layers, 1);
        let products = products::of_layers(&kind, config.kind, call);
        let flops = FlopsByPart::of(&products, Pairs::Full);
        BlockCost {
            in_encoder,
            layers,
            window: kind.window,
            parameters: BlockParameters::of(&kind.block),
            weight_flops: flops.weights(),
            flops,
            visible_score_flops: FlopsByPart::of(&products, Pairs::Visible).scores,
            crossover,
            activations: BlockActivations::of(&kind, size),
        }
    };
    layer_kinds(config).into_iter().zip(crossovers(config)).map(cost).collect()
}

/// The name of a number type on the command line.
fn name_of(dtype: FloatDType) -> &'static str {
    DType::from(dtype).name()
}
