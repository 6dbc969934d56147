//! The matrix products of a forward, from the configuration: what operations and traffic are computed from.

use super::layer_kinds::{LayerKind, layer_kinds};
use crate::attention::MultiHeadAttentionConfig;
use crate::feed_forward::FeedForwardConfig;
use crate::mixture_of_experts::MixtureOfExpertsConfig;
use crate::model::{Logits, ModelConfig, ModelKind};
use crate::task_head::TaskInput;

/// One call of a model's forward, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each sequence that are new in this call.
    pub new: usize,
    /// Tokens of each sequence whose keys and values a cache holds already.
    pub before: usize,
    /// Tokens that the encoder of an encoder-decoder reads. They are read in the first call: one with nothing `before`.
    pub source: usize,
    /// For which positions logits are computed.
    pub logits: Logits,
}

impl Call {
    /// Whole sequences of `seq` tokens at once, logits of every position; an encoder reads as many.
    pub fn whole(batch: usize, seq: usize) -> Self {
        Self { batch, new: seq, before: 0, source: seq, logits: Logits::All }
    }

    /// The first call of generation: a prompt of `seq` tokens, logits of the last position.
    pub fn prefill(batch: usize, seq: usize) -> Self {
        Self { logits: Logits::Last, ..Self::whole(batch, seq) }
    }

    /// A later call of generation: the one token that follows `context` tokens.
    pub fn step(batch: usize, context: usize) -> Self {
        Self { new: 1, before: context, ..Self::prefill(batch, context) }
    }

    /// The same call, with another length of what the encoder reads.
    #[must_use]
    pub fn with_source(mut self, source: usize) -> Self {
        self.source = source;
        self
    }

    /// The call of the encoder that belongs to this one.
    fn of_encoder(self) -> Self {
        Self { new: self.source, before: 0, ..self }
    }
}

/// The part of a model that a product belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Patches and projections to the model's width.
    Embedding,
    /// Queries, keys, values and outputs of attention.
    Projections,
    /// Queries with keys, weights with values.
    Scores,
    /// Feed-forward networks, experts and their routers.
    FeedForward,
    /// Logits, pooler and task head.
    Head,
}

/// Products of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub part: Part,
    /// How often the product occurs, in different layers.
    pub times: u64,
    pub operands: Operands,
}

/// What is multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operands {
    /// `rows` vectors of `inner` numbers with weights, which gives `outer` numbers each.
    Weights {
        /// Over how many matrices the rows are spread; 1 but for experts.
        matrices: u64,
        rows: u64,
        inner: u64,
        outer: u64,
    },
    /// Queries with keys, and the weights of those with values.
    Attention {
        batch: u64,
        n_heads: u64,
        n_kv_heads: u64,
        d_head: u64,
        queries: u64,
        keys: u64,
        /// Pairs of query and key that no mask hides, of one head and sequence.
        visible: u64,
    },
}

impl Product {
    /// Floating-point operations, of every pair of query and key or of the visible ones.
    pub fn flops(&self, pairs: Pairs) -> u64 {
        let factors = match self.operands {
            Operands::Weights { rows, inner, outer, .. } => [2, rows, inner, outer, 1],
            Operands::Attention { batch, n_heads, d_head, queries, keys, visible, .. } => {
                let pairs = match pairs {
                    Pairs::Full => queries.saturating_mul(keys),
                    Pairs::Visible => visible,
                };
                [4, batch, n_heads, d_head, pairs]
            }
        };
        factors.into_iter().fold(self.times, u64::saturating_mul)
    }

    /// How many numbers are read and written at least: each operand and result once, scores and weights of attention not
    /// at all, as a kernel need not write them to memory.
    pub fn numbers(&self) -> u64 {
        let product = |factors: &[u64]| factors.iter().copied().fold(self.times, u64::saturating_mul);
        match self.operands {
            Operands::Weights { matrices, rows, inner, outer } => {
                product(&[matrices, inner, outer]).saturating_add(product(&[rows, inner.saturating_add(outer)]))
            }
            Operands::Attention { batch, n_heads, n_kv_heads, d_head, queries, keys, .. } => {
                let queries = product(&[2, batch, n_heads, d_head, queries]);
                queries.saturating_add(product(&[2, batch, n_kv_heads, d_head, keys]))
            }
        }
    }
}

/// Which pairs of query and key are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// All that a plain implementation computes.
    Full,
    /// Those that causality and windows leave visible.
    Visible,
}

/// The products of one call of the model.
pub(super) fn of_model(config: &ModelConfig, call: Call) -> Vec<Product> {
    let mut list = List::default();
    list.embedding(config, call);
    if let Some(encoder) = config.encoder.as_ref().filter(|_| call.before == 0) {
        list.append(of_encoder(encoder, call));
    }
    for kind in layer_kinds(config) {
        list.append(of_layers(&kind, config.kind, call));
    }
    list.head(config, call);
    list.0
}

/// The products of an encoder that is part of a model.
pub(super) fn of_encoder(encoder: &ModelConfig, call: Call) -> Vec<Product> {
    layer_kinds(encoder).iter().flat_map(|kind| of_layers(kind, encoder.kind, call.of_encoder())).collect()
}

/// The products of all layers of one kind.
pub(super) fn of_layers(kind: &LayerKind, model: ModelKind, call: Call) -> Vec<Product> {
    let mut list = List::default();
    let tokens = wide(call.batch) * wide(call.new);
    let block = &kind.block;
    let keys = match kind.window {
        // What a cache keeps of the tokens before.
        Some(window) => call.before.min(window - 1) + call.new,
        None => call.before + call.new,
    };
    list.attention(&block.attention, [tokens, tokens], call, [keys, visible_pairs(model, kind.window, call)]);
    if let Some(cross) = &block.cross_attention {
        let memory = if call.before == 0 { wide(call.batch) * wide(call.source) } else { 0 };
        list.attention(cross, [tokens, memory], call, [call.source, call.new.saturating_mul(call.source)]);
    }
    if let Some(feed_forward) = &block.feed_forward {
        list.network(feed_forward, block.attention.d_model, [tokens, 1]);
    }
    if let Some(mixture) = &block.mixture {
        list.mixture(mixture, block.attention.d_model, tokens);
    }
    for product in &mut list.0 {
        product.times = kind.layers;
    }
    list.0
}

/// How many pairs of a new query and a key no mask hides.
fn visible_pairs(model: ModelKind, window: Option<usize>, call: Call) -> usize {
    // The sum of min(p, most) over p from 1 to n.
    let up_to = |n: usize, most: usize| {
        let rising = n.min(most);
        (rising.saturating_mul(rising.saturating_add(1)) / 2).saturating_add((n - rising).saturating_mul(most))
    };
    let all = call.before + call.new;
    match (model, window) {
        (ModelKind::Decoder, window) => {
            let window = window.unwrap_or(usize::MAX);
            up_to(all, window) - up_to(call.before, window)
        }
        (ModelKind::Encoder, None) => all.saturating_mul(all),
        // Its own key, and as many before it as after it.
        (ModelKind::Encoder, Some(window)) => {
            all.saturating_add(up_to(all.saturating_sub(1), window - 1).saturating_mul(2))
        }
    }
}

/// A size as the counts have it.
fn wide(size: usize) -> u64 {
    size as u64
}

/// Products that are being put together.
#[derive(Default)]
struct List(Vec<Product>);

impl List {
    fn append(&mut self, products: Vec<Product>) {
        self.0.extend(products);
    }

    fn push(&mut self, part: Part, operands: Operands) {
        self.0.push(Product { part, times: 1, operands });
    }

    /// `rows` vectors times one matrix.
    fn weights(&mut self, part: Part, rows: u64, inner: usize, outer: usize) {
        self.push(part, Operands::Weights { matrices: 1, rows, inner: wide(inner), outer: wide(outer) });
    }

    fn embedding(&mut self, config: &ModelConfig, call: Call) {
        if let Some(patches) = config.patches {
            let [height, width] = patches.patch_size;
            let rows = wide(call.batch) * wide(patches.n_patches());
            self.weights(Part::Embedding, rows, patches.channels * height * width, config.d_model);
        }
        if config.embedding.as_ref().is_some_and(|embedding| embedding.is_projected(config.d_model)) {
            // An encoder's source goes through the same projection.
            let source = if config.encoder.is_some() && call.before == 0 { call.source } else { 0 };
            let rows = wide(call.batch) * wide(call.new + source);
            self.weights(Part::Embedding, rows, config.d_embedding(), config.d_model);
        }
    }

    /// Attention of `tokens` queries of all sequences over `memory` tokens whose keys and values are made in this call.
    fn attention(
        &mut self,
        attention: &MultiHeadAttentionConfig,
        [tokens, memory]: [u64; 2],
        call: Call,
        [keys, visible]: [usize; 2],
    ) {
        let d_head = attention.d_head();
        let (query, kv) = (attention.n_heads * d_head, attention.n_kv_heads() * d_head);
        self.weights(Part::Projections, tokens, attention.d_model, query);
        for _ in ["keys", "values"] {
            self.weights(Part::Projections, memory, attention.d_context(), kv);
        }
        self.weights(Part::Projections, tokens, query, attention.d_model);
        self.push(
            Part::Scores,
            Operands::Attention {
                batch: wide(call.batch),
                n_heads: wide(attention.n_heads),
                n_kv_heads: wide(attention.n_kv_heads()),
                d_head: wide(d_head),
                queries: wide(call.new),
                keys: wide(keys),
                visible: wide(visible),
            },
        );
    }

    /// `rows` vectors through `copies` networks, each row through one of them.
    fn network(&mut self, network: &FeedForwardConfig, d_model: usize, [rows, copies]: [u64; 2]) {
        let (d_model, d_ff) = (wide(d_model), wide(network.d_ff));
        let inner = if network.gated { 2 } else { 1 };
        for _ in 0..inner {
            self.push(Part::FeedForward, Operands::Weights { matrices: copies, rows, inner: d_model, outer: d_ff });
        }
        self.push(Part::FeedForward, Operands::Weights { matrices: copies, rows, inner: d_ff, outer: d_model });
    }

    fn mixture(&mut self, mixture: &MixtureOfExpertsConfig, d_model: usize, tokens: u64) {
        self.weights(Part::FeedForward, tokens, d_model, mixture.n_experts);
        let rows = tokens.saturating_mul(wide(mixture.n_active));
        self.network(&mixture.expert, d_model, [rows, rows.min(wide(mixture.n_experts))]);
        if let Some(shared) = &mixture.shared {
            self.network(&shared.expert, d_model, [tokens, 1]);
            if shared.gated {
                self.weights(Part::FeedForward, tokens, d_model, 1);
            }
        }
    }

    fn head(&mut self, config: &ModelConfig, call: Call) {
        let (batch, width) = (wide(call.batch), config.d_embedding());
        let tokens = batch * wide(call.new);
        let is_projected = width != config.d_model;
        if let Some(head) = &config.head {
            let rows = match call.logits {
                Logits::All => tokens,
                Logits::Last => batch,
                Logits::None => 0,
            };
            if is_projected {
                self.weights(Part::Head, rows, config.d_model, width);
            }
            if head.transform.is_some() {
                self.weights(Part::Head, rows, width, width);
            }
            // A tied head is the token table, and multiplies as any other.
            self.weights(Part::Head, rows, width, config.vocab_size());
        }
        if config.pooler {
            self.weights(Part::Head, batch, config.d_model, config.d_model);
        }
        if let Some(task) = &config.task {
            if is_projected {
                self.weights(Part::Head, tokens, config.d_model, width);
            }
            let rows = if task.input == TaskInput::EveryToken { tokens } else { batch };
            let width = if task.input == TaskInput::Pooled { config.d_model } else { width };
            if task.transform.is_some() {
                self.weights(Part::Head, rows, width, width);
            }
            self.weights(Part::Head, rows, width, task.n_labels);
        }
    }
}
