//! What a decoder remembers between calls: keys and values of each layer, padding and positions of each row.

use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::config::{ModelConfig, ModelKind};
use super::input::{ModelInput, Source};
use crate::attention::{AttentionMask, KvCache, ProjectedMemory};
use crate::error::Error;
use crate::positions::{LearnedPositions, Positions};
use crate::transformer_block::Memory;

/// The state of a decoder between calls, for one batch of sequences.
///
/// A cache belongs to the sequences that were fed to it, not to the model: several caches on one model do not mix.
#[derive(Clone, Debug)]
pub struct Cache {
    /// One cache per layer; none in a cache that serves a single call.
    layers: Vec<KvCache>,
    /// For each row and key so far, whether the key is padding. Empty before the first call.
    hidden: Vec<Vec<bool>>,
    /// For each row and key so far, its position.
    positions: Vec<Vec<usize>>,
    /// For each row, the position of its next token.
    next: Vec<usize>,
    /// What the encoder has read, once it has.
    memory: Option<EncodedMemory>,
}

/// What the blocks of a decoder read of its encoder: keys and values for each of them, made once.
#[derive(Clone, Debug)]
pub(super) struct EncodedMemory {
    layers: Vec<ProjectedMemory>,
    mask: AttentionMask,
}

impl EncodedMemory {
    pub fn new(layers: Vec<ProjectedMemory>, mask: AttentionMask) -> Self {
        Self { layers, mask }
    }

    fn keep_rows(&mut self, rows: &[usize]) {
        for layer in &mut self.layers {
            layer.keep_rows(rows);
        }
        self.mask.keep_rows(rows);
    }

    pub fn of_layer(&self, index: usize) -> Memory<'_> {
        Memory { projected: &self.layers[index], mask: &self.mask }
    }
}

impl Cache {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let layer = |window: Option<usize>| window.map_or_else(KvCache::new, KvCache::with_window);
        let layers = config.layer_patterns().iter().map(|pattern| layer(pattern.window)).collect();
        Self { layers, ..Self::without_keys() }
    }

    pub(super) fn without_keys() -> Self {
        Self { layers: Vec::new(), hidden: Vec::new(), positions: Vec::new(), next: Vec::new(), memory: None }
    }

    /// How many tokens per row have been fed, padding included.
    pub fn len(&self) -> usize {
        self.hidden.first().map_or(0, Vec::len)
    }

    /// Whether nothing has been fed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of keys and values, the room for further tokens included.
    pub fn bytes(&self) -> usize {
        let memory = self.memory.iter().flat_map(|memory| &memory.layers).map(ProjectedMemory::bytes);
        self.layers.iter().map(KvCache::bytes).chain(memory).sum()
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.reset();
        }
        *self = Self { layers: std::mem::take(&mut self.layers), ..Self::without_keys() };
    }

    /// What the encoder has read.
    pub(super) fn memory(&self) -> Option<&EncodedMemory> {
        self.memory.as_ref()
    }

    pub(super) fn remember(&mut self, memory: EncodedMemory) {
        self.memory = Some(memory);
    }

    /// Keeps the rows of these numbers, which are sorted, and forgets the others; the next batch has the rows that are left.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn keep_rows(&mut self, rows: &[usize]) {
        for layer in &mut self.layers {
            layer.keep_rows(rows);
        }
        if let Some(memory) = &mut self.memory {
            memory.keep_rows(rows);
        }
        self.hidden = rows.iter().map(|row| std::mem::take(&mut self.hidden[*row])).collect();
        self.positions = rows.iter().map(|row| std::mem::take(&mut self.positions[*row])).collect();
        self.next = rows.iter().map(|row| self.next[*row]).collect();
    }

    pub(super) fn layer(&mut self, index: usize) -> Option<&mut KvCache> {
        self.layers.get_mut(index)
    }

    /// Positions and padding of `input` as the continuation of this cache, which stays as it is.
    pub(super) fn plan(&self, input: &ModelInput, config: &ModelConfig) -> Result<Step, Error> {
        let [batch, seq] = input.dims();
        let before = self.len();
        if before > 0 && self.hidden.len() != batch {
            return Err(Error::Input(format!("the cache holds {} rows, the batch has {batch}", self.hidden.len())));
        }
        let padding_id = match config.positions {
            Positions::Learned(LearnedPositions { padding_id, .. }) => padding_id.map(i64::from),
            _ => None,
        };
        let mut rows = Vec::with_capacity(batch);
        for row in 0..batch {
            let mut next = self.next.get(row).copied().unwrap_or(0);
            let mut hidden = Vec::with_capacity(seq);
            let mut positions = Vec::with_capacity(seq);
            for at in 0..seq {
                let is_hidden = input.hidden_keys.as_ref().is_some_and(|rows| rows[row][at]);
                let advances = match (&input.source, padding_id) {
                    (Source::Tokens(ids), Some(padding_id)) => ids[row][at] != padding_id,
                    _ => !is_hidden,
                };
                // Padding stands where the token before it stood; nothing sees it.
                positions.push(if advances { next } else { next.saturating_sub(1) });
                next += usize::from(advances);
                hidden.push(is_hidden);
            }
            if let Some(limit) = config.position_limit().filter(|limit| next > *limit) {
                return Err(Error::Input(format!(
                    "the sequence has {next} tokens{}, and the model's learned positions end at {limit} (max_seq_len)",
                    if before > 0 { " with those of the cache" } else { "" }
                )));
            }
            rows.push(Row { hidden, positions, next });
        }
        Ok(Step::new(self, rows, seq))
    }

    /// Takes `step` into the cache.
    pub(super) fn commit(&mut self, step: &Step) {
        self.hidden = step.hidden_keys.clone();
        self.positions = step.all_positions.clone();
        self.next = step.next.clone();
        for layer in &mut self.layers {
            if let Some(window) = layer.window() {
                layer.set_reach(step.reach(window));
            }
        }
    }
}

struct Row {
    hidden: Vec<bool>,
    positions: Vec<usize>,
    next: usize,
}

/// One call as the continuation of a cache.
#[derive(Debug)]
pub(super) struct Step {
    /// Positions of the new tokens, one row per sequence, or one row where all are alike.
    pub positions: Vec<Vec<usize>>,
    /// Positions of all keys, likewise.
    pub key_positions: Vec<Vec<usize>>,
    all_positions: Vec<Vec<usize>>,
    hidden_keys: Vec<Vec<bool>>,
    next: Vec<usize>,
    new: usize,
    keeps_keys: bool,
}

impl Step {
    fn new(cache: &Cache, rows: Vec<Row>, new: usize) -> Self {
        let after = |index: usize| (cache.hidden.get(index), cache.positions.get(index));
        let (mut hidden_keys, mut all_positions) = (Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            let (hidden, positions) = after(index);
            hidden_keys.push(hidden.into_iter().flatten().chain(&row.hidden).copied().collect::<Vec<_>>());
            all_positions.push(positions.into_iter().flatten().chain(&row.positions).copied().collect::<Vec<_>>());
        }
        Self {
            positions: shared(rows.iter().map(|row| row.positions.clone()).collect()),
            key_positions: shared(all_positions.clone()),
            all_positions,
            hidden_keys,
            next: rows.iter().map(|row| row.next).collect(),
            new,
            keeps_keys: !cache.layers.is_empty(),
        }
    }

    /// How many keys a layer with `window` attends to in this step.
    pub fn key_len(&self, window: Option<usize>) -> usize {
        match window {
            // What a windowed cache keeps.
            Some(window) if self.keeps_keys => self.reach(window) + self.new,
            _ => self.before() + self.new,
        }
    }

    /// How many tokens per row are new.
    pub fn new_len(&self) -> usize {
        self.new
    }

    /// How many keys there are before the new ones.
    fn before(&self) -> usize {
        self.key_positions.first().map_or(0, Vec::len).saturating_sub(self.new)
    }

    /// How many of the keys before the new ones a window reaches: the `window − 1` newest tokens of each row, and the
    /// padding that stands between them.
    fn reach(&self, window: usize) -> usize {
        let before = self.before();
        let of_row = |hidden: &Vec<bool>| {
            let tokens = hidden[..before].iter().rev().zip(1..).filter(|(is_hidden, _)| !**is_hidden);
            tokens.take(window - 1).last().map_or(0, |(_, reach)| reach)
        };
        // Without padding among them, that is `window − 1` in every row.
        self.hidden_keys.iter().map(of_row).max().unwrap_or(0).max(before.min(window - 1))
    }

    /// The mask of layers with `window`.
    pub fn mask(&self, kind: ModelKind, window: Option<usize>, device: &Device) -> AttentionMask {
        let mut mask = match kind {
            ModelKind::Encoder => AttentionMask::none(),
            ModelKind::Decoder => AttentionMask::causal(),
        };
        let key_len = self.key_len(window);
        if let Some(window) = window {
            mask = match self.has_padding_between() {
                false => mask.with_window(window),
                true => mask.with_explicit(self.window_by_position(window, key_len, device)),
            };
        }
        self.with_padding(mask, key_len, device)
    }

    /// The mask of those who read these keys from elsewhere.
    pub fn padding_mask(&self, device: &Device) -> AttentionMask {
        self.with_padding(AttentionMask::none(), self.key_len(None), device)
    }

    /// `mask`, hiding padding among the last `key_len` keys too.
    fn with_padding(&self, mask: AttentionMask, key_len: usize, device: &Device) -> AttentionMask {
        let kept = |row: &Vec<bool>| row[row.len() - key_len..].to_vec();
        let hidden: Vec<bool> = self.hidden_keys.iter().flat_map(kept).collect();
        if !hidden.contains(&true) {
            return mask;
        }
        let data = TensorData::new(hidden, [self.hidden_keys.len(), key_len]);
        mask.with_padding(Tensor::<2, Bool>::from_data(data, device))
    }

    /// Whether some key is padding.
    pub fn has_padding(&self) -> bool {
        self.hidden_keys.iter().flatten().any(|is_hidden| *is_hidden)
    }

    /// Whether some row has padding after a token, so that places and positions differ by more than a shift.
    fn has_padding_between(&self) -> bool {
        self.hidden_keys.iter().any(|row| row.iter().skip_while(|is_hidden| **is_hidden).any(|is_hidden| *is_hidden))
    }

    /// What a window hides when it counts positions: `[rows, 1, new, key_len]`.
    fn window_by_position(&self, window: usize, key_len: usize, device: &Device) -> Tensor<4, Bool> {
        let mut hidden = Vec::with_capacity(self.all_positions.len() * self.new * key_len);
        for row in &self.all_positions {
            let keys = &row[row.len() - key_len..];
            for query in &row[row.len() - self.new..] {
                hidden.extend(keys.iter().map(|key| key.abs_diff(*query) >= window));
            }
        }
        Tensor::from_data(TensorData::new(hidden, [self.all_positions.len(), 1, self.new, key_len]), device)
    }
}

/// One row where all are alike.
fn shared(mut rows: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    if rows.windows(2).all(|pair| pair[0] == pair[1]) {
        rows.truncate(1);
    }
    rows
}
