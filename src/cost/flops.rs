//! Floating-point operations of a forward, by part.

use serde::Serialize;

use super::layer_kinds::layer_kinds;
use super::products::{self, Call, Pairs, Part, Product};
use crate::mixture_of_experts::MixtureOfExpertsConfig;
use crate::model::ModelConfig;

/// Floating-point operations of matrix products, a multiplication with its addition counted as two.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlopsByPart {
    /// Patches, and projections of embeddings to the model's width. Looking up rows of a table is no product.
    pub embedding: u64,
    /// Query, key, value and output projections.
    pub projections: u64,
    /// Queries with keys, and weights with values.
    pub scores: u64,
    /// Feed-forward networks; of a mixture the router, the experts that tokens pass through, and the shared expert.
    pub feed_forward: u64,
    /// Logits (also where the head is tied), pooler and task head.
    pub head: u64,
    /// All parts.
    pub total: u64,
}

impl FlopsByPart {
    pub(super) fn of(products: &[Product], pairs: Pairs) -> Self {
        let mut flops = Self::default();
        for product in products {
            let part = match product.part {
                Part::Embedding => &mut flops.embedding,
                Part::Projections => &mut flops.projections,
                Part::Scores => &mut flops.scores,
                Part::FeedForward => &mut flops.feed_forward,
                Part::Head => &mut flops.head,
            };
            let count = product.flops(pairs);
            *part = part.saturating_add(count);
            flops.total = flops.total.saturating_add(count);
        }
        flops
    }

    /// Those of products with weights: all but the scores.
    pub fn weights(&self) -> u64 {
        self.total - self.scores
    }
}

/// Operations of one forward.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardFlops {
    /// With every pair of query and key, as plain tensor operations compute them. This is what counters of executed
    /// products give, and the count that is meant where none is named.
    pub full: FlopsByPart,
    /// With the pairs only that causality and windows leave visible: what a kernel needs that skips the others. Without
    /// windows, the scores of a causal model are half of `full` and half of the diagonal.
    pub visible: FlopsByPart,
    /// What of `full` the encoder beside a decoder takes.
    pub encoder: Option<FlopsByPart>,
    /// `full` if every token passed through all experts; `None` without a mixture of experts.
    pub all_experts: Option<u64>,
}

/// The operations of one call of the model that `config` describes.
pub fn forward_flops(config: &ModelConfig, call: Call) -> ForwardFlops {
    let products = products::of_model(config, call);
    let encoder = config.encoder.as_ref().filter(|_| call.before == 0);
    let has_mixture = |config: &ModelConfig| config.mixture.is_some();
    let is_mixed = has_mixture(config) || config.encoder.as_deref().is_some_and(has_mixture);
    ForwardFlops {
        full: FlopsByPart::of(&products, Pairs::Full),
        visible: FlopsByPart::of(&products, Pairs::Visible),
        encoder: encoder.map(|encoder| FlopsByPart::of(&products::of_encoder(encoder, call), Pairs::Full)),
        all_experts: is_mixed.then(|| {
            let products = products::of_model(&with_all_experts(config), call);
            FlopsByPart::of(&products, Pairs::Full).total
        }),
    }
}

/// `config` with every expert active.
fn with_all_experts(config: &ModelConfig) -> ModelConfig {
    let all = |mixture: MixtureOfExpertsConfig| MixtureOfExpertsConfig { n_active: mixture.n_experts, ..mixture };
    ModelConfig {
        mixture: config.mixture.clone().map(all),
        encoder: config.encoder.as_ref().map(|encoder| Box::new(with_all_experts(encoder))),
        ..config.clone()
    }
}

/// Operations of one forward over sequences of one length.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthCost {
    /// Tokens of each sequence, and of what an encoder reads.
    pub seq: usize,
    /// Query, key, value and output projections.
    pub projections: u64,
    /// Every pair of query and key.
    pub scores: u64,
    /// The pairs of these that causality and windows leave visible.
    pub visible_scores: u64,
    /// Feed-forward networks or experts.
    pub feed_forward: u64,
    /// Logits of every position, pooler, task head.
    pub head: u64,
}

/// The cost of a forward over `batch` sequences, for each of `lengths`. The length of a model of images is fixed: its
/// rows do not differ but in the scores.
pub fn over_lengths(config: &ModelConfig, batch: usize, lengths: &[usize]) -> Vec<LengthCost> {
    let cost = |seq: &usize| {
        let ForwardFlops { full, visible, .. } = forward_flops(config, Call::whole(batch, *seq));
        LengthCost {
            seq: *seq,
            projections: full.projections,
            scores: full.scores,
            visible_scores: visible.scores,
            feed_forward: full.feed_forward,
            head: full.head,
        }
    };
    lengths.iter().map(cost).collect()
}

/// The length from which on the scores of a block take more operations than its products with weights.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossover {
    /// Counting every pair of query and key: `W / (2 · n_heads · d_head)` for `W` weights that a token is multiplied
    /// with, which is `6 · d_model` for the classic block.
    pub full: Option<u64>,
    /// Counting visible pairs; `None` where windows keep the scores below for ever.
    pub visible: Option<u64>,
}

/// Lengths beyond this are not looked at: no model reads them, and the counts of large blocks would not fit in 64 bits.
const LONGEST: u64 = 1 << 28;

/// The crossover of each kind of layer of one stack, in the order in which kinds first occur. Where blocks attend to an
/// encoder's output, that is as long as the sequence.
pub(super) fn crossovers(config: &ModelConfig) -> Vec<Crossover> {
    let of_kind = |kind| {
        let first = |pairs: Pairs| {
            let overtakes = |seq: u64| {
                let products = products::of_layers(&kind, config.kind, Call::whole(1, seq as usize));
                let flops = FlopsByPart::of(&products, pairs);
                flops.scores >= flops.weights()
            };
            first_where(overtakes)
        };
        Crossover { full: first(Pairs::Full), visible: first(Pairs::Visible) }
    };
    layer_kinds(config).into_iter().map(of_kind).collect()
}

/// The first of 1 to [`LONGEST`] for which `holds`, which holds from there on.
fn first_where(holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(LONGEST) {
        return None;
    }
    let (mut low, mut high) = (0, LONGEST);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}
