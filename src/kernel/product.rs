//! Products of rows with a matrix of weights.

use std::ops::Range;

use gemm::Parallelism;

use super::{matvec, parallel};

/// `[d_input, d_output]` in memory, one of the two axes without gaps.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub numbers: &'a [f32],
    pub dims: [usize; 2],
    pub strides: [usize; 2],
}

impl Matrix<'_> {
    /// The same numbers with rows for columns.
    pub fn transposed(self) -> Self {
        let [[height, width], [down, across]] = [self.dims, self.strides];
        Self { dims: [width, height], strides: [across, down], ..self }
    }
}

/// Rows up to which a product is limited by reading the matrix, so that each row is taken alone.
const FEW: usize = 3;

/// `x · weight + bias`, row after row.
///
/// The output is written where it is reserved, by the threads that own its columns: zeros are an extra pass of one thread, and
/// adding to fresh ones has the system map each page twice.
pub(super) fn product(x: Matrix, weight: Matrix, bias: Option<&[f32]>) -> Vec<f32> {
    let [count, d_input] = x.dims;
    let d_output = weight.dims[1];
    assert_eq!(weight.dims[0], d_input, "rows are as wide as the matrix is high");
    assert!(bias.is_none_or(|bias| bias.len() == d_output), "there is one number of the bias for each column");
    if d_input == 0 || (count <= FEW && x.strides[1] == 1) {
        let mut y = match bias {
            Some(bias) => bias.repeat(count),
            None => vec![0.0; count * d_output],
        };
        for (row, y) in y.chunks_mut(d_output.max(1)).enumerate().filter(|_| d_input > 0) {
            matvec::add_product(&x.numbers[row * x.strides[0]..][..d_input], weight, y);
        }
        return y;
    }
    // Each thread multiplies its part alone, so that none is woken late. All pack the weight where it is much the smaller of the
    // two matrices, and the rows else.
    let share = |size: usize| size.div_ceil(parallel::threads()).next_multiple_of(STEP);
    let shares = if count > 2 * d_output { [share(count), d_output] } else { [count, share(d_output)] };
    Part::fill([count, d_output], shares, |[rows, columns], y| {
        let dims = [rows.len(), columns.len()];
        let x = Matrix { numbers: &x.numbers[rows.start * x.strides[0]..], dims: [dims[0], d_input], ..x };
        let numbers = &weight.numbers[columns.start * weight.strides[1]..];
        let weight = Matrix { numbers, dims: [d_input, dims[1]], ..weight };
        if let Some(bias) = bias {
            for row in 0..dims[0] {
                // SAFETY: the part has this row, and nothing else reads or writes it meanwhile.
                unsafe { y.row(row).copy_from_nonoverlapping(bias[columns.clone()].as_ptr(), dims[1]) };
            }
        }
        // SAFETY: `y` has these rows and columns; where they are read, they have been written.
        unsafe { multiply(x, weight, y, bias.is_some()) };
    })
}

/// Rows or columns that one thread takes are a multiple of this.
const STEP: usize = 64;

/// A part of a matrix whose rows lie at a distance of `stride`.
#[derive(Clone, Copy)]
struct Part {
    start: *mut f32,
    /// Rows and columns.
    dims: [usize; 2],
    stride: usize,
}

// SAFETY: threads write to parts of their own.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    /// A matrix of `height` rows of `width` numbers, which `write` puts into memory that nothing has been written to. It is called
    /// with ranges of rows and columns, at most as long as `shares`, and the part that they make up, on several threads at
    /// once, and must write all of its numbers.
    fn fill(
        [height, width]: [usize; 2],
        shares: [usize; 2],
        write: impl Fn([Range<usize>; 2], Self) + Sync,
    ) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(height * width);
        if height * width == 0 {
            return numbers;
        }
        let whole = Self { start: numbers.as_mut_ptr(), dims: [height, width], stride: width };
        let [down, across] = [height.div_ceil(shares[0]), width.div_ceil(shares[1])];
        parallel::each(down * across, |index| {
            let range = |index: usize, share: usize, size: usize| index * share..size.min((index + 1) * share);
            let [rows, columns] = [range(index / across, shares[0], height), range(index % across, shares[1], width)];
            // SAFETY: these rows and columns exist.
            let start = unsafe { whole.row(rows.start).add(columns.start) };
            let dims = [rows.len(), columns.len()];
            write([rows, columns], Self { start, dims, ..whole });
        });
        // SAFETY: all numbers of all parts have been written, and the parts make up the whole.
        unsafe { numbers.set_len(height * width) };
        numbers
    }

    /// # Safety
    ///
    /// The matrix has a row `row`.
    unsafe fn row(self, row: usize) -> *mut f32 {
        debug_assert!(row < self.dims[0], "row {row} of {}", self.dims[0]);
        // SAFETY: the row exists, so its first number lies in the same memory.
        unsafe { self.start.add(row * self.stride) }
    }
}

/// `x · weight`; `append` gives the numbers of some outputs, one after the other, of which at most `part` are in memory at a time
/// on each thread.
pub(super) fn product_in_parts(
    x: Matrix,
    d_output: usize,
    part: usize,
    append: impl Fn(Range<usize>, &mut Vec<f32>) + Sync,
) -> Vec<f32> {
    let [count, d_input] = x.dims;
    Part::fill([count, d_output], [count, part], |[_, outputs], y| {
        let columns = outputs.len();
        let mut numbers = Vec::with_capacity(columns * d_input);
        append(outputs, &mut numbers);
        let weight = Matrix { numbers: &numbers, dims: [d_input, columns], strides: [1, d_input] };
        // SAFETY: `y` has a row for each of `x` and these columns, and none is read.
        unsafe { multiply(x, weight, y, false) };
    })
}

/// `y = a · b` on this thread, added to what is there where `adds`; `y` has rows without gaps.
pub(super) fn product_alone(a: Matrix, b: Matrix, y: &mut [f32], adds: bool) {
    assert_eq!(y.len(), a.dims[0] * b.dims[1], "there is one output for each row and column");
    let dims = [a.dims[0], b.dims[1]];
    let y = Part { start: y.as_mut_ptr(), dims, stride: dims[1] };
    // SAFETY: `y` is borrowed alone, and the assertion gives its size.
    unsafe { multiply(a, b, y, adds) };
}

/// `y = a · b` on this thread, added to what is there where `adds`.
///
/// # Safety
///
/// Nothing else reads or writes `y` meanwhile, and where it is added to, it has been written.
unsafe fn multiply(a: Matrix, b: Matrix, y: Part, adds: bool) {
    let ([rows, inner], [height, columns]) = (a.dims, b.dims);
    assert_eq!(inner, height, "the first matrix is as wide as the second is high");
    assert_eq!(y.dims, [rows, columns], "there is a row for each of the first and a column for each of the second");
    for matrix in [a, b] {
        let last: usize = matrix.dims.iter().zip(matrix.strides).map(|(size, stride)| (size - 1) * stride).sum();
        assert!(last < matrix.numbers.len(), "the matrix lies in its slice");
    }
    let [[a_down, a_across], [b_down, b_across]] = [a, b].map(|matrix| matrix.strides.map(|stride| stride as isize));
    // SAFETY: the assertions keep all three matrices in their memory; the caller vouches for the rest.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            y.start,
            1,
            y.stride as isize,
            adds,
            a.numbers.as_ptr(),
            a_across,
            a_down,
            b.numbers.as_ptr(),
            b_across,
            b_down,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{Matrix, product};

    /// Of the sum, and of one where it is smaller. Sums on the way reach 30, so that an addition is rounded by 1e-6; of the 40
    /// additions in each lane about the root of their number arrives.
    const TOLERANCE: f64 = 1e-5;

    fn number(i: usize) -> f32 {
        ((i * 2_654_435_761) % 10_007) as f32 / 10_007.0 - 0.5
    }

    #[test]
    fn products_are_exact_in_both_layouts_and_at_any_distance() {
        for count in [1, 2, 3, 4, 17, 140] {
            for dims @ [d_input, d_output] in [[1, 1], [3, 5], [8, 64], [37, 130], [600, 200], [129, 1030]] {
                let stride = d_input + 3;
                let numbers: Vec<f32> = (0..count * stride).map(number).collect();
                let x = Matrix { numbers: &numbers, dims: [count, d_input], strides: [stride, 1] };
                let weights: Vec<f32> = (0..(d_input + 2) * (d_output + 2)).map(|i| number(i + 77)).collect();
                let bias: Vec<f32> = (0..d_output).map(|i| number(i + 5)).collect();
                for (strides, has_bias) in [
                    ([d_output + 2, 1], true),
                    ([d_output + 2, 1], false),
                    ([1, d_input + 2], false),
                    ([1, d_input + 2], true),
                ] {
                    let weight = Matrix { numbers: &weights, dims, strides };
                    let y = product(x, weight, has_bias.then_some(&bias));
                    assert_eq!(y.len(), count * d_output);
                    for (index, y) in y.iter().enumerate() {
                        let (row, column) = (index / d_output, index % d_output);
                        let products = (0..d_input).map(|i| {
                            f64::from(numbers[row * stride + i])
                                * f64::from(weights[i * strides[0] + column * strides[1]])
                        });
                        let added = if has_bias { f64::from(bias[column]) } else { 0.0 };
                        let expected = products.sum::<f64>() + added;
                        let error = (f64::from(*y) - expected).abs() / expected.abs().max(1.0);
                        assert!(error <= TOLERANCE, "{count} rows, {dims:?}, {strides:?}: {y}, expected {expected}");
                    }
                }
            }
        }
    }
}
