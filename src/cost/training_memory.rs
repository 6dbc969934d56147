//! The memory of training with AdamW: weights and what belongs to each of them, and the activations that wait for the
//! backward pass.

use burn::tensor::{DType, FloatDType};
use serde::Serialize;

use super::kv_cache::bytes_of;
use super::layer_kinds::{LayerKind, layer_kinds};
use crate::attention::MultiHeadAttentionConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::mixture_of_experts::MixtureOfExpertsConfig;
use crate::model::ModelConfig;
use crate::transformer_block::{BlockTopology, NormPlacement};

/// Bytes that a training step holds at once.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingMemory {
    /// The parameters, in the number type of the computation.
    pub weights: u64,
    /// Their gradients, in the same type.
    pub gradients: u64,
    /// AdamW's two moments, in 32 bits or more.
    pub moments: u64,
    /// A copy of the parameters in 32 bits, which half precision needs to take small steps; 0 otherwise.
    pub master_weights: u64,
    /// What waits for the backward pass.
    pub activations: ActivationMemory,
    /// All of it, the activations of every block kept.
    pub total: u64,
    /// All of it, each block keeping its input alone.
    pub total_with_checkpointing: u64,
}

/// Bytes of activations.
///
/// What counts is the input of each operation whose gradient needs it, once, in the number type of the computation, and
/// one byte for each place of a dropout mask, as in
/// [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198), whose `34 · s · b · h + 5 · a · s² · b` bytes for a block in
/// half precision this gives where every dropout is on. Without dropout masks, it is `32 · s · b · h + 2 · a · s² · b`.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationMemory {
    /// Of all blocks.
    pub blocks: u64,
    /// What of `blocks` grows with the square of the length: weights of attention, which a kernel that makes them anew in
    /// the backward pass need not keep.
    pub scores: u64,
    /// Of all blocks where each keeps its input alone and is computed again in the backward pass: the inputs, and the
    /// largest block.
    pub blocks_with_checkpointing: u64,
    /// Outside the blocks: inputs of the final norm and of the head, dropout on embeddings.
    pub outside: u64,
    /// The logits of every position, in 32 bits or more.
    pub logits: u64,
}

/// The sizes of a training step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSize {
    pub batch: usize,
    pub seq: usize,
    pub source: usize,
    pub dtype: FloatDType,
}

impl TrainingMemory {
    /// A step over `batch` sequences of `seq` tokens, whose encoder reads `source` tokens each, computed in `dtype`.
    pub fn of(config: &ModelConfig, [batch, seq, source]: [usize; 3], dtype: FloatDType) -> Self {
        let size = StepSize { batch, seq, source, dtype };
        let parameters = config.n_parameters();
        let of_parameters = |bytes: u64| parameters.saturating_mul(bytes);
        let activations = ActivationMemory::of(config, size);
        let is_half = matches!(dtype, FloatDType::F16 | FloatDType::BF16);
        let memory = Self {
            weights: of_parameters(bytes_of(dtype)),
            gradients: of_parameters(bytes_of(dtype)),
            moments: of_parameters(2 * widened(dtype)),
            master_weights: if is_half { of_parameters(bytes_of(FloatDType::F32)) } else { 0 },
            activations,
            total: 0,
            total_with_checkpointing: 0,
        };
        let [total, total_with_checkpointing] =
            [activations.blocks, activations.blocks_with_checkpointing].map(|blocks| {
                let others = [memory.gradients, memory.moments, memory.master_weights, activations.outside];
                let all = others.into_iter().fold(memory.weights, u64::saturating_add);
                all.saturating_add(activations.logits).saturating_add(blocks)
            });
        Self { total, total_with_checkpointing, ..memory }
    }
}

/// Bytes of a number in which small differences are kept.
fn widened(dtype: FloatDType) -> u64 {
    bytes_of(dtype).max(DType::F32.size() as u64)
}

impl ActivationMemory {
    fn of(config: &ModelConfig, size: StepSize) -> Self {
        let bytes = bytes_of(size.dtype);
        let tokens = size.batch as u64 * size.seq as u64;
        let mut memory = Self { blocks: 0, scores: 0, blocks_with_checkpointing: 0, outside: 0, logits: 0 };
        let mut largest = 0;
        let mut add = |config: &ModelConfig, size: StepSize| {
            let tokens = size.batch as u64 * size.seq as u64;
            for kind in layer_kinds(config) {
                let block = BlockActivations::of(&kind, size);
                memory.blocks = memory.blocks.saturating_add(block.total.saturating_mul(kind.layers));
                memory.scores = memory.scores.saturating_add(block.scores.saturating_mul(kind.layers));
                let inputs = (tokens * config.d_model as u64 * bytes).saturating_mul(kind.layers);
                memory.blocks_with_checkpointing = memory.blocks_with_checkpointing.saturating_add(inputs);
                largest = block.total.max(largest);
            }
        };
        add(config, size);
        if let Some(encoder) = &config.encoder {
            add(encoder, StepSize { seq: size.source, ..size });
        }
        memory.blocks_with_checkpointing = memory.blocks_with_checkpointing.saturating_add(largest);

        let stream = tokens * config.d_model as u64;
        let dropout = if config.dropout > 0.0 { stream } else { 0 };
        let final_norm = if config.final_norm { stream * bytes } else { 0 };
        let source = match &config.encoder {
            Some(encoder) => {
                let stream = size.batch as u64 * size.source as u64 * encoder.d_model as u64;
                // What its final norm reads, and its output, which every block of the decoder reads.
                let norm = if encoder.final_norm { stream * bytes } else { 0 };
                let dropout = if config.dropout > 0.0 { stream } else { 0 };
                norm + stream * bytes + dropout
            }
            None => 0,
        };
        memory.outside = dropout + final_norm + source;
        if config.head.is_some() {
            memory.outside += tokens * config.d_embedding() as u64 * bytes;
            memory.logits = tokens.saturating_mul(config.vocab_size() as u64).saturating_mul(widened(size.dtype));
        }
        memory
    }
}

/// Bytes of the activations of one block.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockActivations {
    /// All of them.
    pub total: u64,
    /// What of them grows with the square of the length.
    pub scores: u64,
}

impl BlockActivations {
    pub(super) fn of(kind: &LayerKind, size: StepSize) -> Self {
        let block = &kind.block;
        let d_model = block.attention.d_model as u64;
        let network = block.feed_forward.is_some() || block.mixture.is_some();
        let branches = 1 + u64::from(block.cross_attention.is_some()) + u64::from(network);
        let is_shared = block.layout.topology == BlockTopology::ParallelSharedNorm;
        let norms_per_branch = match block.layout.placement {
            NormPlacement::None => 0,
            NormPlacement::Pre | NormPlacement::Post | NormPlacement::Output => 1,
            NormPlacement::Sandwich => 2,
        };
        let normed = if is_shared { 1 } else { branches * norms_per_branch };
        // What branches read: the same in blocks that share a norm.
        let inputs = if is_shared { 1 } else { branches };
        let masks = match (block.dropout > 0.0, block.layout.topology) {
            (false, _) => 0,
            (true, BlockTopology::Sequential) => branches,
            // On the sum of the branches.
            (true, _) => 1,
        };
        let mut per_token = Numbers { kept: (normed + inputs) * d_model, masks: masks * d_model };
        let mut per_source_token = Numbers::default();
        per_token.add(of_queries(&block.attention));
        per_token.add(of_keys(&block.attention));
        let mut per_pair = vec![(of_scores(&block.attention), size.seq as u64)];
        if let Some(cross) = &block.cross_attention {
            per_token.add(of_queries(cross));
            per_source_token.add(of_keys(cross));
            per_pair.push((of_scores(cross), size.source as u64));
        }
        if let Some(feed_forward) = &block.feed_forward {
            per_token.add(of_network(feed_forward));
        }
        if let Some(mixture) = &block.mixture {
            per_token.add(of_mixture(mixture, d_model));
        }

        let (batch, bytes) = (size.batch as u64, bytes_of(size.dtype));
        let tokens = batch * size.seq as u64;
        let scores = per_pair.into_iter().fold(0u64, |sum, (numbers, keys)| {
            sum.saturating_add(numbers.bytes(bytes).saturating_mul(tokens).saturating_mul(keys))
        });
        let rest = per_token.bytes(bytes).saturating_mul(tokens);
        let source = per_source_token.bytes(bytes).saturating_mul(batch * size.source as u64);
        Self { total: rest.saturating_add(source).saturating_add(scores), scores }
    }
}

/// How many numbers and how many places of dropout masks are kept.
#[derive(Clone, Copy, Default)]
struct Numbers {
    kept: u64,
    masks: u64,
}

impl Numbers {
    fn add(&mut self, other: Self) {
        self.kept += other.kept;
        self.masks += other.masks;
    }

    fn bytes(self, per_number: u64) -> u64 {
        self.kept * per_number + self.masks
    }
}

/// Per query: the query and the input of the output projection, the input of the query's norm and of its clip.
fn of_queries(attention: &MultiHeadAttentionConfig) -> Numbers {
    let width = attention.n_heads as u64 * attention.d_head() as u64;
    let extra = u64::from(attention.qk_norm.is_some()) + u64::from(attention.clip_qkv.is_some());
    Numbers { kept: (2 + extra) * width, masks: 0 }
}

/// Per key: the key and the value, the input of the key's norm, those of both clips.
fn of_keys(attention: &MultiHeadAttentionConfig) -> Numbers {
    let width = attention.n_kv_heads() as u64 * attention.d_head() as u64;
    let extra = u64::from(attention.qk_norm.is_some()) + 2 * u64::from(attention.clip_qkv.is_some());
    Numbers { kept: (2 + extra) * width, masks: 0 }
}

/// Per pair of query and key: what the softmax gave, what dropout made of it and its mask, what the cap gave.
fn of_scores(attention: &MultiHeadAttentionConfig) -> Numbers {
    let (n_heads, drops) = (attention.n_heads as u64, u64::from(attention.dropout > 0.0));
    let kept = 1 + drops + u64::from(attention.softcap.is_some());
    Numbers { kept: kept * n_heads, masks: drops * n_heads }
}

/// Per token: the inputs of the activation and of the last projection; with a gate also what is multiplied with it and
/// the activated gate.
fn of_network(network: &FeedForwardConfig) -> Numbers {
    let d_ff = network.d_ff as u64;
    let kept = if network.gated { 4 } else { 2 };
    Numbers { kept: kept * d_ff, masks: if network.dropout > 0.0 { d_ff } else { 0 } }
}

/// Per token: the probabilities of all experts; of each expert taken its input, its inside and its output; likewise the
/// shared expert, which reads the input that is kept already.
fn of_mixture(mixture: &MixtureOfExpertsConfig, d_model: u64) -> Numbers {
    let expert = of_network(&mixture.expert);
    let active = mixture.n_active as u64;
    let mut numbers = Numbers {
        kept: mixture.n_experts as u64 + active * (expert.kept + 2 * d_model + 1),
        masks: active * expert.masks,
    };
    if let Some(shared) = &mixture.shared {
        numbers.add(of_network(&shared.expert));
        if shared.gated {
            numbers.kept += d_model + 1;
        }
    }
    numbers
}
