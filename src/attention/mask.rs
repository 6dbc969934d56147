//! Which keys a query may see, as a description that becomes a tensor only where one is needed.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, assert_shape};

use super::kv_cache::select_rows;

/// A description of hidden keys; all its parts combine (a key is hidden when any part hides it).
///
/// One polarity everywhere, Burn's: `true` means **hidden**. (PyTorch's `scaled_dot_product_attention` reads a boolean
/// mask the other way round.)
///
/// Queries are taken to stand at the *end* of the keys: with `query_len` queries and `key_len` keys, query `i` stands at
/// position `key_len − query_len + i`. So the last query of a causal mask sees every key, also when earlier keys come
/// from a cache.
///
/// A query that may see no key at all gets zeros from attention, with finite gradients, on every path and backend.
#[derive(Clone, Debug, Default)]
pub struct AttentionMask {
    causal: bool,
    window: Option<usize>,
    padding: Option<Tensor<2, Bool>>,
    explicit: Option<Tensor<4, Bool>>,
}

/// What a mask is made of, as far as kernels tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskForm {
    /// Nothing is hidden.
    None,
    /// Only the keys after the query are hidden.
    Causal,
    /// Anything else.
    General,
}

/// What a mask does to one tile of the score matrix, as far as its structure tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileVisibility {
    /// Every key of the tile is hidden from every query of it.
    Hidden,
    /// Causality and window hide nothing here.
    Visible,
    /// Some are hidden.
    Mixed,
}

impl AttentionMask {
    /// Hides nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Hides the keys that come after the query.
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }

    /// Lets each query at position `p` see only the `window` newest keys `p − window < j ≤ p`, its own included; without
    /// causality also the `window − 1` keys after it.
    ///
    /// # Panics
    ///
    /// When `window` is zero.
    pub fn with_window(mut self, window: usize) -> Self {
        assert!(window > 0, "a window must show at least the query's own key");
        self.window = Some(window);
        self
    }

    /// Hides padded keys.
    ///
    /// # Shapes
    ///
    /// - hidden: `[batch, key_len]`, `true` where the key is padding
    pub fn with_padding(mut self, hidden: Tensor<2, Bool>) -> Self {
        self.padding = Some(hidden);
        self
    }

    /// Hides single pairs of query and key.
    ///
    /// # Shapes
    ///
    /// - hidden: `[batch, n_heads, query_len, key_len]`, the first three axes may be 1; `true` where hidden
    pub fn with_explicit(mut self, hidden: Tensor<4, Bool>) -> Self {
        self.explicit = Some(hidden);
        self
    }

    /// Keeps the rows of the batch that have these numbers, in their order; parts that all rows share stay.
    pub(crate) fn keep_rows(&mut self, rows: &[usize]) {
        self.padding = self.padding.take().map(|padding| select_rows(padding, rows));
        self.explicit = self.explicit.take().map(|explicit| match explicit.dims()[0] {
            1 => explicit,
            _ => select_rows(explicit, rows),
        });
    }

    /// Whether keys after the query are hidden.
    pub fn is_causal(&self) -> bool {
        self.causal
    }

    /// The window, if there is one.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Whether the mask has no part at all.
    pub fn is_none(&self) -> bool {
        !self.causal && self.window.is_none() && self.padding.is_none() && self.explicit.is_none()
    }

    /// Whether the mask is causality and window alone, so that no tensor is needed to describe it.
    pub fn is_structural(&self) -> bool {
        self.padding.is_none() && self.explicit.is_none()
    }

    /// What the mask is made of.
    pub fn form(&self) -> MaskForm {
        match () {
            () if self.is_none() => MaskForm::None,
            () if self.causal && self.is_structural() && self.window.is_none() => MaskForm::Causal,
            () => MaskForm::General,
        }
    }

    /// Whether some query may be left without any key.
    pub(crate) fn may_hide_all(&self, query_len: usize, key_len: usize) -> bool {
        !self.is_structural() || (query_len > key_len && (self.causal || self.window.is_some()))
    }

    /// What causality and window do to the tile of `queries` × `keys` of a `query_len` × `key_len` score matrix.
    pub(crate) fn tile(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        query_len: usize,
        key_len: usize,
    ) -> TileVisibility {
        let offset = key_len as isize - query_len as isize;
        let (first, last) = (queries.start as isize + offset, queries.end as isize - 1 + offset);
        let (first_key, last_key) = (keys.start as isize, keys.end as isize - 1);
        let window = self.window.map_or(isize::MAX / 2, |window| window as isize);
        let hidden = (self.causal && first_key > last)
            || last_key <= first - window
            || (!self.causal && first_key >= last.saturating_add(window));
        let visible = (!self.causal || last_key <= first)
            && first_key > last - window
            && (self.causal || last_key < first.saturating_add(window));
        match (hidden, visible) {
            (true, _) => TileVisibility::Hidden,
            (false, true) => TileVisibility::Visible,
            (false, false) => TileVisibility::Mixed,
        }
    }

    /// The padding and the explicit part, each with four axes, of which the first three may be 1.
    ///
    /// # Panics
    ///
    /// When they do not fit `query_len` and `key_len`.
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    pub(crate) fn parts(&self, query_len: usize, key_len: usize) -> [Option<Tensor<4, Bool>>; 2] {
        let padding = self.padding.as_ref().map(|padding| {
            assert_shape!(padding, [_, key_len]);
            padding.clone().reshape([padding.dims()[0], 1, 1, key_len])
        });
        if let Some(explicit) = &self.explicit {
            check_explicit(explicit, query_len, key_len);
        }
        [padding, self.explicit.clone()]
    }

    /// The mask as a tensor, or `None` when it hides nothing.
    ///
    /// # Shapes
    ///
    /// - output: `[1 or batch, 1 or n_heads, 1 or query_len, key_len]`, `true` where hidden
    ///
    /// # Panics
    ///
    /// When a padding or explicit part does not fit `query_len` and `key_len`.
    pub fn materialize(&self, query_len: usize, key_len: usize, device: &Device) -> Option<Tensor<4, Bool>> {
        self.materialize_tile(0..query_len, 0..key_len, query_len, key_len, device)
    }

    /// The part of [`materialize`](Self::materialize) that belongs to one tile.
    pub(crate) fn materialize_tile(
        &self,
        queries: Range<usize>,
        keys: Range<usize>,
        query_len: usize,
        key_len: usize,
        device: &Device,
    ) -> Option<Tensor<4, Bool>> {
        let mut parts = Vec::with_capacity(3);
        if self.tile(&queries, &keys, query_len, key_len) != TileVisibility::Visible {
            parts.push(self.structure(&queries, &keys, query_len, key_len, device));
        }
        if let Some(padding) = &self.padding {
            assert_shape!(padding, [_, key_len]);
            let [batch, _] = padding.dims();
            let tile = padding.clone().slice([0..batch, keys.clone()]);
            parts.push(tile.reshape([batch, 1, 1, keys.len()]));
        }
        if let Some(explicit) = &self.explicit {
            let [batch, heads, rows, _] = explicit.dims();
            check_explicit(explicit, query_len, key_len);
            let rows = if rows == 1 { 0..1 } else { queries.clone() };
            parts.push(explicit.clone().slice([0..batch, 0..heads, rows, keys.clone()]));
        }
        parts.into_iter().reduce(or_broadcast)
    }

    /// Causality and window of one tile, `[1, 1, queries, keys]`.
    fn structure(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        query_len: usize,
        key_len: usize,
        device: &Device,
    ) -> Tensor<4, Bool> {
        let offset = key_len as i64 - query_len as i64;
        let position = |range: &Range<usize>, offset: i64| {
            Tensor::<1, Int>::arange(range.start as i64 + offset..range.end as i64 + offset, device)
        };
        let query = position(queries, offset).reshape([1, 1, queries.len(), 1]);
        let key = position(keys, 0).reshape([1, 1, 1, keys.len()]);
        // How far the key lies after the query; negative for keys before it.
        let ahead = key - query;
        let after = self.causal.then(|| ahead.clone().greater_elem(0));
        let window = self.window.map(|window| {
            let window = window as i64;
            let before = ahead.clone().lower_equal_elem(-window);
            if self.causal { before } else { before.bool_or(ahead.greater_equal_elem(window)) }
        });
        match (after, window) {
            (Some(after), Some(window)) => after.bool_or(window),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => unreachable!("a mask without structure hides no tile"),
        }
    }
}

fn check_explicit(explicit: &Tensor<4, Bool>, query_len: usize, key_len: usize) {
    let [_, _, rows, _] = explicit.dims();
    assert_shape!(explicit, [_, _, _, key_len]);
    assert!(rows == 1 || rows == query_len, "explicit mask: expected 1 or {query_len} query rows, got {rows}");
}

/// `a` or `b`, each axis of size 1 stretched; Burn's `bool_or` does not broadcast on every backend.
fn or_broadcast(a: Tensor<4, Bool>, b: Tensor<4, Bool>) -> Tensor<4, Bool> {
    let (a_dims, b_dims) = (a.dims(), b.dims());
    let dims: [usize; 4] = std::array::from_fn(|axis| if a_dims[axis] == 1 { b_dims[axis] } else { a_dims[axis] });
    a.expand(dims).bool_or(b.expand(dims))
}
