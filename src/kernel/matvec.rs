//! Products of one row with a matrix, at the speed at which the matrix is read.

use pulp::{Simd, WithSimd};

use super::parallel;
use super::product::Matrix;
use super::simd::dispatch;

/// Outputs that one thread takes at a time are a multiple of this.
const STEP: usize = 64;

/// `y += x · weight`.
pub(super) fn add_product(x: &[f32], weight: Matrix, y: &mut [f32]) {
    let share = if x.len() * y.len() < ALONE { y.len() } else { y.len().div_ceil(parallel::threads()) };
    let share = share.next_multiple_of(STEP);
    parallel::pieces(y, share, |index, y| {
        let numbers = &weight.numbers[index * share * weight.strides[1]..];
        if weight.strides[1] == 1 {
            dispatch(ByInputs { x, numbers, stride: weight.strides[0], y });
        } else {
            dispatch(ByOutputs { x, numbers, stride: weight.strides[1], y });
        }
    });
}

/// Numbers of a matrix that one thread reads in about two microseconds; another would come too late.
const ALONE: usize = 16 << 10;

/// A matrix whose rows belong to inputs.
struct ByInputs<'a> {
    x: &'a [f32],
    numbers: &'a [f32],
    stride: usize,
    y: &'a mut [f32],
}

impl WithSimd for ByInputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        /// Rows that are read side by side: one stream alone does not fill the bus.
        const AT_ONCE: usize = 8;
        let Self { x, numbers, stride, y } = self;
        let blocks = x.as_chunks::<AT_ONCE>();
        let rest = x.len() - blocks.1.len();
        let len = y.len();
        let (vectors, tail) = S::as_mut_simd_f32s(y);
        for (block, x) in blocks.0.iter().enumerate() {
            let rows: [&[f32]; AT_ONCE] = std::array::from_fn(|i| &numbers[(block * AT_ONCE + i) * stride..][..len]);
            let parts = rows.map(S::as_simd_f32s);
            let heads = parts.map(|(head, _)| &head[..vectors.len()]);
            let factors = x.map(|x| simd.splat_f32s(x));
            for (j, y) in vectors.iter_mut().enumerate() {
                for (head, factor) in heads.iter().zip(factors) {
                    *y = simd.mul_add_e_f32s(factor, head[j], *y);
                }
            }
            for (x, (_, row)) in x.iter().zip(parts) {
                tail.iter_mut().zip(row).for_each(|(y, weight)| *y += x * weight);
            }
        }
        for (i, x) in x.iter().enumerate().skip(rest) {
            let (head, row) = S::as_simd_f32s(&numbers[i * stride..][..len]);
            let factor = simd.splat_f32s(*x);
            vectors.iter_mut().zip(head).for_each(|(y, weight)| *y = simd.mul_add_e_f32s(factor, *weight, *y));
            tail.iter_mut().zip(row).for_each(|(y, weight)| *y += x * weight);
        }
    }
}

/// A matrix whose rows belong to outputs.
struct ByOutputs<'a> {
    x: &'a [f32],
    numbers: &'a [f32],
    stride: usize,
    y: &'a mut [f32],
}

impl WithSimd for ByOutputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        /// Rows that are read side by side.
        const AT_ONCE: usize = 4;
        let Self { x, numbers, stride, y } = self;
        let (blocks, rest) = y.as_chunks_mut::<AT_ONCE>();
        let done = blocks.len() * AT_ONCE;
        for (block, y) in blocks.iter_mut().enumerate() {
            let rows = std::array::from_fn(|i| &numbers[(block * AT_ONCE + i) * stride..][..x.len()]);
            let sums = products::<S, AT_ONCE>(simd, x, rows);
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
        }
        for (index, y) in rest.iter_mut().enumerate() {
            let [sum] = products::<S, 1>(simd, x, [&numbers[(done + index) * stride..][..x.len()]]);
            *y += sum;
        }
    }
}

/// The products of `x` with each of some rows as long.
#[inline(always)]
pub(super) fn products<S: Simd, const ROWS: usize>(simd: S, x: &[f32], rows: [&[f32]; ROWS]) -> [f32; ROWS] {
    /// Sums of each row: an addition waits for the one before it.
    const SUMS: usize = 2;
    let (head, tail) = S::as_simd_f32s(x);
    let parts = rows.map(S::as_simd_f32s);
    let heads = parts.map(|(row, _)| &row[..head.len()]);
    let mut sums = [[simd.splat_f32s(0.0); SUMS]; ROWS];
    let (pairs, single) = head.as_chunks::<SUMS>();
    for (j, x) in pairs.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(heads) {
            for i in 0..SUMS {
                sums[i] = simd.mul_add_e_f32s(x[i], row[SUMS * j + i], sums[i]);
            }
        }
    }
    for x in single {
        for (sums, row) in sums.iter_mut().zip(heads) {
            sums[0] = simd.mul_add_e_f32s(*x, row[head.len() - 1], sums[0]);
        }
    }
    std::array::from_fn(|i| {
        let rest: f32 = tail.iter().zip(parts[i].1).map(|(x, weight)| x * weight).sum();
        simd.reduce_sum_f32s(simd.add_f32s(sums[i][0], sums[i][1])) + rest
    })
}
