//! How the inputs of attention lie in memory.

/// `[batch, heads, rows, width]`, the last axis without gaps.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub numbers: &'a [f32],
    pub dims: [usize; 4],
    /// Of the first three axes.
    pub strides: [usize; 3],
}

impl<'a> View<'a> {
    /// A view of numbers that lie in the order of the axes.
    #[cfg(any(test, feature = "ndarray"))]
    pub(super) fn dense(numbers: &'a [f32], dims: [usize; 4]) -> Self {
        let [_, heads, rows, width] = dims;
        Self { numbers, dims, strides: [heads * rows * width, rows * width, width] }
    }

    /// Where a head starts.
    pub(super) fn start(&self, batch: usize, head: usize) -> usize {
        batch * self.strides[0] + head * self.strides[1]
    }

    pub(super) fn row(&self, batch: usize, head: usize, row: usize) -> &'a [f32] {
        &self.numbers[self.start(batch, head) + row * self.strides[2]..][..self.dims[3]]
    }
}

/// Rows of one head without gaps.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub numbers: &'a [f32],
    pub width: usize,
}

impl Rows<'_> {
    pub(super) fn part(&self, first: usize, count: usize) -> Self {
        Self { numbers: &self.numbers[first * self.width..][..count * self.width], ..*self }
    }
}

/// Keys or values of one head without gaps: rows that lie far apart would push each other out of the caches.
#[derive(Default)]
pub(super) struct DenseHead {
    /// Batch and head of the copy.
    of: Option<(usize, usize)>,
    copy: Vec<f32>,
}

impl DenseHead {
    /// The rows of a head, their width filled up with zeros to a multiple of `MULTIPLE`; a copy, kept for the next call,
    /// where they do not lie so.
    pub(super) fn rows<'a, const MULTIPLE: usize>(&'a mut self, x: View<'a>, batch: usize, head: usize) -> Rows<'a> {
        let [_, _, rows, width] = x.dims;
        let padded = width.next_multiple_of(MULTIPLE);
        if width == padded && (x.strides[2] == width || rows == 1) {
            return Rows { numbers: &x.numbers[x.start(batch, head)..][..rows * width], width };
        }
        if self.of != Some((batch, head)) {
            self.copy.resize(rows * padded, 0.0);
            for (row, dense) in self.copy.chunks_mut(padded).enumerate() {
                dense[..width].copy_from_slice(x.row(batch, head, row));
            }
            self.of = Some((batch, head));
        }
        Rows { numbers: &self.copy, width: padded }
    }
}

/// A value for each score, `[batch, n_heads, query_len, key_len]`; an axis along which they repeat has the stride 0.
#[derive(Clone, Copy)]
pub(super) struct PerScore<'a, T> {
    pub values: &'a [T],
    pub strides: [usize; 4],
}

impl<'a, T: Copy> PerScore<'a, T> {
    /// Values that lie in the order of their axes, of which those of size 1 are repeated.
    pub(super) fn repeated(values: &'a [T], dims: [usize; 4]) -> Self {
        let mut stride = 1;
        let mut strides = [0; 4];
        for axis in (0..4).rev() {
            strides[axis] = if dims[axis] == 1 { 0 } else { stride };
            stride *= dims[axis];
        }
        Self { values, strides }
    }

    /// The values of some rows of scores, given by their batch, head and query.
    pub(super) fn of_rows(&self, rows: impl Iterator<Item = [usize; 3]>) -> PerRow<'a, T> {
        let starts: Vec<_> =
            rows.map(|row| row.iter().zip(self.strides).map(|(at, stride)| at * stride).sum()).collect();
        let is_same = starts.windows(2).all(|pair| pair[0] == pair[1]);
        PerRow { values: self.values, starts, is_same, of_key: self.strides[3] }
    }
}

/// The part of [`PerScore`] that some rows of scores have.
pub(super) struct PerRow<'a, T> {
    values: &'a [T],
    starts: Vec<usize>,
    /// Whether all rows have the same values.
    is_same: bool,
    of_key: usize,
}

impl<T: Copy> PerRow<'_, T> {
    /// Calls `change` with the score of each row for `key`, and the row's value.
    #[inline(always)]
    pub(super) fn zip(&self, key: usize, scores: &mut [f32], change: impl Fn(&mut f32, T)) {
        let at_key = key * self.of_key;
        if self.is_same {
            let value = self.values[self.starts[0] + at_key];
            scores.iter_mut().for_each(|score| change(score, value));
        } else {
            for (score, start) in scores.iter_mut().zip(&self.starts) {
                change(score, self.values[start + at_key]);
            }
        }
    }
}
