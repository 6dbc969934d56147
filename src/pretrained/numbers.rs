//! From the bytes of a tensor to the numbers of a parameter: another type, a part of the rows or columns, rows and columns
//! exchanged. Piece by piece, so that nothing is in memory twice.

use std::ops::Range;

use burn::tensor::Element;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// A float that weights are read into.
pub(super) trait Float: Element + Copy + Default {
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    fn is_finite(self) -> bool;
    /// The numbers as they stand in a file.
    fn into_bytes(values: Vec<Self>) -> Vec<u8>;
}

macro_rules! float {
    ($type:ty, $from_f32:expr, $from_f64:expr) => {
        impl Float for $type {
            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }

            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }

            fn into_bytes(values: Vec<Self>) -> Vec<u8> {
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
        }
    };
}

float!(f64, f64::from, |value| value);
float!(f32, |value| value, |value| value as f32);
// Their own conversions from 64 bits leave half of these out, and take what lies just above the middle between two numbers
// for the middle.
float!(f16, f16::from_f32, |value| f16::from_f32(value as f32));
float!(bf16, bf16::from_f32, |value| bf16::from_f32(value as f32));

/// What of a tensor is read, seen as a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut<'a> {
    /// The axis along which `ranges` cuts.
    pub axis: usize,
    /// What is taken along `axis`; everything where this is empty.
    pub ranges: &'a [Range<usize>],
    /// Whether rows and columns change places. Only rows can be cut then.
    pub transpose: bool,
}

impl Cut<'_> {
    /// All of a tensor, as it is.
    pub const ALL: Cut<'static> = Cut { axis: 0, ranges: &[], transpose: false };
}

/// Takes in the rows of a tensor, and holds the numbers of a parameter once it has had all of them.
pub(super) struct Numbers<F> {
    dtype: Dtype,
    columns: usize,
    /// Columns that are taken; all where this is empty.
    kept: Vec<Range<usize>>,
    /// The rows in all, where rows and columns change places.
    turned: Option<usize>,
    values: Vec<F>,
    /// Rows that have come.
    rows: usize,
    piece: Vec<F>,
    is_finite: bool,
}

impl<F: Float> Numbers<F> {
    /// Room for what `cut` takes of a matrix of `rows` and `columns`, together with the rows that are to be handed over.
    pub fn new(dtype: Dtype, [rows, columns]: [usize; 2], cut: Cut<'_>) -> (Self, Vec<Range<usize>>) {
        let kept = if cut.axis == 0 { Vec::new() } else { cut.ranges.to_vec() };
        let wanted = if cut.axis == 0 && !cut.ranges.is_empty() { cut.ranges.to_vec() } else { vec![0..rows; 1] };
        let n_rows: usize = wanted.iter().map(Range::len).sum();
        let n_columns = if kept.is_empty() { columns } else { kept.iter().map(Range::len).sum() };
        let (turned, values) = match cut.transpose {
            true => (Some(n_rows), vec![F::default(); n_rows * n_columns]),
            false => (None, Vec::with_capacity(n_rows * n_columns)),
        };
        let numbers = Self { dtype, columns, kept, turned, values, rows: 0, piece: Vec::new(), is_finite: true };
        (numbers, wanted)
    }

    /// Takes in whole rows.
    pub fn take(&mut self, bytes: &[u8]) {
        if self.turned.is_none() && self.kept.is_empty() {
            let start = self.values.len();
            decode(self.dtype, bytes, &mut self.values);
            self.is_finite &= all_finite(&self.values[start..]);
            return;
        }
        self.piece.clear();
        decode(self.dtype, bytes, &mut self.piece);
        self.is_finite &= all_finite(&self.piece);
        if let Some(rows) = self.turned {
            let came = self.piece.len() / self.columns.max(1);
            turn(&self.piece, self.columns, &mut self.values, self.rows, rows);
            self.rows += came;
        } else {
            for row in self.piece.chunks_exact(self.columns.max(1)) {
                for range in &self.kept {
                    self.values.extend_from_slice(&row[range.clone()]);
                }
            }
        }
    }

    /// The numbers, and whether all that was read is finite.
    pub fn into_values(self) -> (Vec<F>, bool) {
        (self.values, self.is_finite)
    }
}

/// Appends the numbers in `bytes` to `values`.
fn decode<F: Float>(dtype: Dtype, bytes: &[u8], values: &mut Vec<F>) {
    match dtype {
        Dtype::F64 => values.extend(chunks(bytes).map(|b| F::from_f64(f64::from_le_bytes(b)))),
        Dtype::F32 => values.extend(chunks(bytes).map(|b| F::from_f32(f32::from_le_bytes(b)))),
        Dtype::BF16 => values.extend(chunks(bytes).map(|b| F::from_f32(bf16::from_le_bytes(b).to_f32()))),
        Dtype::F16 => {
            // In slices of a few thousand, which the machine's own instruction converts.
            const SLICE: usize = 4096;
            let (mut halves, mut floats) = ([f16::ZERO; SLICE], [0.0; SLICE]);
            for bytes in bytes.chunks(2 * SLICE) {
                let count = bytes.len() / 2;
                halves.iter_mut().zip(chunks(bytes)).for_each(|(half, b)| *half = f16::from_le_bytes(b));
                halves[..count].convert_to_f32_slice(&mut floats[..count]);
                values.extend(floats[..count].iter().copied().map(F::from_f32));
            }
        }
        other => unreachable!("{other} numbers are refused before any is read"),
    }
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// Whether numbers in a file are all finite; those of other types than floats are.
pub(super) fn are_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    match dtype {
        Dtype::F64 => chunks(bytes).fold(true, |all, b| all & f64::from_le_bytes(b).is_finite()),
        Dtype::F32 => chunks(bytes).fold(true, |all, b| all & f32::from_le_bytes(b).is_finite()),
        Dtype::F16 => chunks(bytes).fold(true, |all, b| all & f16::from_le_bytes(b).is_finite()),
        Dtype::BF16 => chunks(bytes).fold(true, |all, b| all & bf16::from_le_bytes(b).is_finite()),
        _ => true,
    }
}

/// Looks at every number, as that takes less time than to stop early would.
fn all_finite<F: Float>(values: &[F]) -> bool {
    values.iter().fold(true, |all, value| all & value.is_finite())
}

/// Writes `piece`, rows of `columns` numbers of which the first is row `first` of `rows`, into `turned`, in which rows and
/// columns have changed places. In tiles, so that neither side is read or written far apart.
fn turn<F: Float>(piece: &[F], columns: usize, turned: &mut [F], first: usize, rows: usize) {
    const TILE: usize = 32;
    let came = piece.len() / columns.max(1);
    for top in (0..came).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..(top + TILE).min(came) {
                for column in left..(left + TILE).min(columns) {
                    turned[column * rows + first + row] = piece[row * columns + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: usize, columns: usize, cut: Cut<'_>, rows_at_a_time: usize) -> Vec<f32> {
        let bytes = |rows: Range<usize>| -> Vec<u8> {
            (rows.start * columns..rows.end * columns).flat_map(|i| (i as f32).to_le_bytes()).collect()
        };
        let (mut numbers, wanted) = Numbers::<f32>::new(Dtype::F32, [rows, columns], cut);
        for range in wanted {
            for start in range.clone().step_by(rows_at_a_time) {
                numbers.take(&bytes(start..(start + rows_at_a_time).min(range.end)));
            }
        }
        let (values, is_finite) = numbers.into_values();
        assert!(is_finite);
        values
    }

    #[test]
    fn rows_and_columns_change_places_whatever_the_pieces() {
        let (rows, columns) = (37, 70);
        let want: Vec<f32> = (0..columns).flat_map(|c| (0..rows).map(move |r| (r * columns + c) as f32)).collect();
        for rows_at_a_time in [1, 5, 33, 37] {
            assert_eq!(read(rows, columns, Cut { transpose: true, ..Cut::ALL }, rows_at_a_time), want);
        }
        let cut = Cut { axis: 0, ranges: &[30..32, 2..3], transpose: true };
        let want: Vec<f32> = (0..columns).flat_map(|c| [30, 31, 2].map(|r| (r * columns + c) as f32)).collect();
        assert_eq!(read(rows, columns, cut, 2), want);
        assert!(read(0, 0, Cut { transpose: true, ..Cut::ALL }, 1).is_empty());
    }

    #[test]
    fn columns_are_cut_in_the_order_of_rows() {
        let cut = Cut { axis: 1, ranges: &[3..5, 0..1], transpose: false };
        assert_eq!(read(2, 6, cut, 2), [3.0, 4.0, 0.0, 9.0, 10.0, 6.0]);
    }

    #[test]
    fn half_precision_rounds_to_the_nearest() {
        // The middle between two numbers, and a little more.
        let (down, up, middle) = (0.253_906_25, 0.255_859_375, 0.254_882_812_5);
        for (value, want) in [(middle, down), (middle + 3e-8, up)] {
            let rounded = <bf16 as Float>::from_f64(value);
            assert_eq!((rounded.to_f64(), <bf16 as Float>::from_f32(value as f32)), (want, rounded));
        }
    }

    #[test]
    fn what_is_not_finite_in_the_wanted_type_is_noticed() {
        let finite = |dtype: Dtype, bytes: &[u8]| {
            let (mut numbers, _) = Numbers::<f16>::new(dtype, [1, 1], Cut::ALL);
            numbers.take(bytes);
            numbers.into_values().1
        };
        assert!(finite(Dtype::F32, &65_504_f32.to_le_bytes()));
        assert!(!finite(Dtype::F32, &70_000_f32.to_le_bytes()));
        assert!(!finite(Dtype::F64, &f64::NAN.to_le_bytes()));
        assert!(!finite(Dtype::BF16, &bf16::NEG_INFINITY.to_le_bytes()));
    }
}
