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
    /// What each row has been fed. Empty before the first call.
    rows: Vec<Row>,
    /// How many tokens per row came with the newest call.
    new: usize,
    /// What the encoder has read, once it has.
    memory: Option<EncodedMemory>,
}

/// Some tokens of one sequence.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Whether each is padding.
    hidden: Vec<bool>,
    /// The position of each.
    positions: Vec<usize>,
    /// The position of the token after them.
    next: usize,
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
        Self { layers: Vec::new(), rows: Vec::new(), new: 0, memory: None }
    }

    /// How many tokens per row have been fed, padding included.
    pub fn len(&self) -> usize {
        self.rows.first().map_or(0, |row| row.hidden.len())
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
        self.rows = rows.iter().map(|row| std::mem::take(&mut self.rows[*row])).collect();
    }

    pub(super) fn layer(&mut self, index: usize) -> Option<&mut KvCache> {
        self.layers.get_mut(index)
    }

    /// Positions and padding of `input` as the continuation of this cache, which stays as it is.
    pub(super) fn plan(&self, input: &ModelInput, config: &ModelConfig) -> Result<Step, Error> {
        let [batch, seq] = input.dims();
        let before = self.len();
        if before > 0 && self.rows.len() != batch {
            return Err(Error::Input(format!("the cache holds {} rows, the batch has {batch}", self.rows.len())));
        }
        let padding_id = match config.positions {
            Positions::Learned(LearnedPositions { padding_id, .. }) => padding_id.map(i64::from),
            _ => None,
        };
        let mut rows = Vec::with_capacity(batch);
        for row in 0..batch {
            let mut next = self.rows.get(row).map_or(0, |row| row.next);
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
        let has_padding = self.has_padding() || rows.iter().any(Row::has_padding);
        Ok(Step { rows, new: seq, key_len: before + seq, has_padding })
    }

    /// Takes `step` into the cache, which from then on is about the call that it belongs to.
    pub(super) fn commit(&mut self, step: &Step) {
        self.rows.resize_with(step.rows.len(), Row::default);
        for (row, new) in self.rows.iter_mut().zip(&step.rows) {
            row.hidden.extend_from_slice(&new.hidden);
            row.positions.extend_from_slice(&new.positions);
            row.next = new.next;
        }
        self.new = step.new;
        let reaches: Vec<Option<usize>> =
            self.layers.iter().map(|layer| layer.window().map(|window| self.reach(window))).collect();
        for (layer, reach) in self.layers.iter_mut().zip(reaches) {
            if let Some(reach) = reach {
                layer.set_reach(reach);
            }
        }
    }

    /// Positions of the new tokens, one row per sequence, or one row where all are alike.
    pub(super) fn positions(&self) -> Vec<Vec<usize>> {
        shared(self.rows.iter().map(|row| &row.positions[row.positions.len() - self.new..]))
    }

    /// Positions of all keys, likewise.
    pub(super) fn key_positions(&self) -> Vec<Vec<usize>> {
        shared(self.rows.iter().map(|row| row.positions.as_slice()))
    }

    /// How many keys a layer with `window` attends to.
    pub(super) fn key_len(&self, window: Option<usize>) -> usize {
        match window {
            // What a windowed cache keeps.
            Some(window) if !self.layers.is_empty() => self.reach(window) + self.new,
            _ => self.len(),
        }
    }

    /// How many of the keys before the new ones a window reaches: the `window − 1` newest tokens of each row, and the
    /// padding that stands between them.
    fn reach(&self, window: usize) -> usize {
        let before = self.len() - self.new;
        let of_row = |row: &Row| {
            let tokens = row.hidden[..before].iter().rev().zip(1..).filter(|(is_hidden, _)| !**is_hidden);
            tokens.take(window - 1).last().map_or(0, |(_, reach)| reach)
        };
        // Without padding among them, that is `window − 1` in every row.
        self.rows.iter().map(of_row).max().unwrap_or(0).max(before.min(window - 1))
    }

    /// The mask of layers with `window`.
    pub(super) fn mask(&self, kind: ModelKind, window: Option<usize>, device: &Device) -> AttentionMask {
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
    pub(super) fn padding_mask(&self, device: &Device) -> AttentionMask {
        self.with_padding(AttentionMask::none(), self.key_len(None), device)
    }

    /// `mask`, hiding padding among the last `key_len` keys too.
    fn with_padding(&self, mask: AttentionMask, key_len: usize, device: &Device) -> AttentionMask {
        let kept = |row: &Row| row.hidden[row.hidden.len() - key_len..].to_vec();
        let hidden: Vec<bool> = if self.has_padding() { self.rows.iter().flat_map(kept).collect() } else { Vec::new() };
        if !hidden.contains(&true) {
            return mask;
        }
        let data = TensorData::new(hidden, [self.rows.len(), key_len]);
        mask.with_padding(Tensor::<2, Bool>::from_data(data, device))
    }

    fn has_padding(&self) -> bool {
        self.rows.iter().any(Row::has_padding)
    }

    /// Whether some row has padding after a token, so that places and positions differ by more than a shift.
    fn has_padding_between(&self) -> bool {
        let after_token = |row: &Row| row.hidden.iter().skip_while(|is_hidden| **is_hidden).any(|is_hidden| *is_hidden);
        self.rows.iter().any(after_token)
    }

    /// What a window hides when it counts positions: `[rows, 1, new, key_len]`.
    fn window_by_position(&self, window: usize, key_len: usize, device: &Device) -> Tensor<4, Bool> {
        let mut hidden = Vec::with_capacity(self.rows.len() * self.new * key_len);
        for Row { positions, .. } in &self.rows {
            let keys = &positions[positions.len() - key_len..];
            for query in &positions[positions.len() - self.new..] {
                hidden.extend(keys.iter().map(|key| key.abs_diff(*query) >= window));
            }
        }
        Tensor::from_data(TensorData::new(hidden, [self.rows.len(), 1, self.new, key_len]), device)
    }
}

impl Row {
    fn has_padding(&self) -> bool {
        self.hidden.contains(&true)
    }
}

/// What one call adds to a cache.
#[derive(Debug)]
pub(super) struct Step {
    rows: Vec<Row>,
    new: usize,
    key_len: usize,
    has_padding: bool,
}

impl Step {
    /// How many tokens per row are new.
    pub fn new_len(&self) -> usize {
        self.new
    }

    /// How many keys there are, the new ones included.
    pub fn key_len(&self) -> usize {
        self.key_len
    }

    /// Whether some key is padding.
    pub fn has_padding(&self) -> bool {
        self.has_padding
    }
}

/// One row where all are alike.
fn shared<'a>(rows: impl Iterator<Item = &'a [usize]> + Clone) -> Vec<Vec<usize>> {
    let mut pairs = rows.clone().zip(rows.clone().skip(1));
    let count = if pairs.all(|(one, next)| one == next) { 1 } else { usize::MAX };
    rows.take(count).map(<[usize]>::to_vec).collect()
}
