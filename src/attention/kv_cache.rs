//! Keys and values of earlier tokens, so that each new token is projected once.

use burn::tensor::kind::Basic;
use burn::tensor::{Int, Tensor};

/// Tokens by which a cache grows at least. Long ones grow by half, so that few copies are made; a short answer should not
/// pay for many tokens that never come.
const BLOCK: usize = 64;

/// The keys and values of one layer, before any repetition over query heads.
///
/// The cache grows in blocks and writes new tokens in place. With a window it keeps only what later queries can still
/// see, in a buffer of bounded size whose live part moves to the front when the end is reached; keys stay in order, so
/// that they always end with the newest token, as [`AttentionMask`](super::AttentionMask) expects.
///
/// ```
/// # use burnformer::attention::KvCache;
/// # use burn::tensor::{Tensor, Device};
/// # #[cfg(feature = "flex")] {
/// let device = Device::flex();
/// let mut cache = KvCache::new();
/// let step = |n| Tensor::<4>::ones([1, 2, n, 8], &device);
/// let (keys, _) = cache.append(step(3), step(3));
/// assert_eq!(keys.dims(), [1, 2, 3, 8]);
/// let (keys, _) = cache.append(step(1), step(1));
/// assert_eq!(keys.dims(), [1, 2, 4, 8]);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KvCache {
    buffers: Option<Buffers>,
    window: Option<usize>,
    /// How many tokens before the next new one its query sees, where it is not `window − 1`.
    reach: Option<usize>,
    /// Live tokens: `start..end` of the buffers.
    start: usize,
    end: usize,
}

#[derive(Clone, Debug)]
struct Buffers {
    keys: Tensor<4>,
    values: Tensor<4>,
}

impl KvCache {
    /// An empty cache that keeps every token.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty cache for a layer whose queries see `window` keys, their own included.
    ///
    /// # Panics
    ///
    /// When `window` is zero.
    pub fn with_window(window: usize) -> Self {
        assert!(window > 0, "a window must show at least the query's own key");
        Self { window: Some(window), ..Self::default() }
    }

    /// How many tokens are kept.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether no token is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets the next call of [`append`](Self::append) see `reach` earlier tokens in place of `window − 1`: more, where
    /// some of them are padding.
    pub(crate) fn set_reach(&mut self, reach: usize) {
        self.reach = Some(reach);
    }

    /// The window, if there is one.
    pub(crate) fn window(&self) -> Option<usize> {
        self.window
    }

    /// Bytes of both buffers, the room for further tokens included.
    pub fn bytes(&self) -> usize {
        self.buffers
            .iter()
            .flat_map(|b| [&b.keys, &b.values])
            .map(|t| t.shape().num_elements() * t.dtype().size())
            .sum()
    }

    /// Forgets every token; the next batch may have another shape.
    pub fn reset(&mut self) {
        *self = Self { window: self.window, ..Self::default() };
    }

    /// Keeps the rows of the batch that have these numbers, in their order.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn keep_rows(&mut self, rows: &[usize]) {
        if let Some(Buffers { keys, values }) = self.buffers.take() {
            self.buffers = Some(Buffers { keys: select_rows(keys, rows), values: select_rows(values, rows) });
        }
    }

    /// Adds the keys and values of new tokens and returns those that the new queries may have to see: with a window the
    /// `window − 1` tokens before the first new one and all new ones, otherwise all.
    ///
    /// # Shapes
    ///
    /// - key: `[batch, n_kv_heads, new, d_head]`, value: `[batch, n_kv_heads, new, d_value]`
    /// - output: the same with `kept + new` tokens
    ///
    /// # Panics
    ///
    /// When batch, heads or widths differ from those of earlier calls.
    pub fn append(&mut self, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let [batch, heads, new, d_key] = key.dims();
        let [_, _, _, d_value] = value.dims();
        if let Some(window) = self.window {
            // What the first new query cannot see, no later one can.
            let reach = self.reach.take().unwrap_or(window - 1);
            self.start = self.start.max(self.end.saturating_sub(reach));
        }
        let Buffers { keys, values } = self.take_with_room(&key, &value);
        let at = self.end..self.end + new;
        self.end += new;
        // D17: assignment is in place only while the buffer has one owner, so it is taken out, written and put back.
        let keys = keys.slice_assign([0..batch, 0..heads, at.clone(), 0..d_key], key);
        let values = values.slice_assign([0..batch, 0..heads, at, 0..d_value], value);
        let seen = self.start..self.end;
        let visible = (keys.clone().slice_dim(2, seen.clone()), values.clone().slice_dim(2, seen));
        self.buffers = Some(Buffers { keys, values });
        visible
    }

    /// Takes the buffers out, with room for the new tokens behind the live ones.
    fn take_with_room(&mut self, key: &Tensor<4>, value: &Tensor<4>) -> Buffers {
        let [batch, heads, new, width] = key.dims();
        let room = match &self.buffers {
            Some(buffers) => {
                let [kept_batch, kept_heads, room, kept_width] = buffers.keys.dims();
                let (kept, given) = ([kept_batch, kept_heads, kept_width], [batch, heads, width]);
                assert_eq!(kept, given, "cache: batch, heads and width must stay as they were");
                room
            }
            None => 0,
        };
        let live = self.start..self.end;
        let before = match self.buffers.take() {
            Some(buffers) if self.end + new <= room => return buffers,
            before => before,
        };
        let needed = live.len() + new;
        let room = if needed <= room { room } else { needed + BLOCK.max(needed / 2) };
        let moved = |like: &Tensor<4>, old: Option<Tensor<4>>| {
            let [batch, heads, _, width] = like.dims();
            let fresh = Tensor::zeros([batch, heads, room, width], (&like.device(), like.dtype()));
            match old {
                Some(old) if !live.is_empty() => {
                    fresh.slice_assign([0..batch, 0..heads, 0..live.len(), 0..width], old.slice_dim(2, live.clone()))
                }
                _ => fresh,
            }
        };
        let (old_keys, old_values) = before.map(|b| (b.keys, b.values)).unzip();
        let buffers = Buffers { keys: moved(key, old_keys), values: moved(value, old_values) };
        (self.start, self.end) = (0, live.len());
        buffers
    }
}

/// The rows of a batch that have these numbers, in their order.
pub(super) fn select_rows<const D: usize, K: Basic>(tensor: Tensor<D, K>, rows: &[usize]) -> Tensor<D, K> {
    let rows: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let rows = Tensor::<1, Int>::from_data(rows.as_slice(), &tensor.device());
    tensor.select(0, rows)
}
