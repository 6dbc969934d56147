//! Products of a row with a quantised matrix, at the speed at which the matrix is read.

use pulp::{Simd, WithSimd};

use super::super::block_kind::BLOCK;
use super::super::matvec::products;
use super::super::parallel;
use super::super::simd::dispatch;
use super::matrix::{FromBits, Parts, QuantisedMatrix, WORDS};

/// Rows of the matrix that are read side by side.
const AT_ONCE: usize = 4;
/// Numbers of a matrix that one thread reads in about two microseconds; another would come too late.
const ALONE: usize = 16 << 10;

/// `y += x · weight`.
pub(super) fn add_product(x: &[f32], weight: &QuantisedMatrix, y: &mut [f32]) {
    let [d_input, d_output] = weight.dims();
    let mut padded = x.to_vec();
    padded.resize(weight.stack.blocks() * BLOCK, 0.0);
    // A minimum is added for each number of its block.
    let sums: Vec<f32> = match weight.stack.format.has_min {
        true => padded.chunks(BLOCK).map(|block| block.iter().sum()).collect(),
        false => Vec::new(),
    };
    let share = if d_input * d_output < ALONE { d_output } else { d_output.div_ceil(parallel::threads()) };
    let share = share.next_multiple_of(AT_ONCE);
    parallel::pieces(y, share, |index, y| {
        let rows = weight.parts(index * share..index * share + y.len());
        let (bits, zero) = (weight.stack.format.bits, weight.stack.format.zero);
        dispatch(Product { x: &padded, sums: &sums, bits, zero, rows, y });
    });
}

struct Product<'a> {
    /// Filled up with zeros to whole groups.
    x: &'a [f32],
    /// Of each block, where there are minima.
    sums: &'a [f32],
    bits: usize,
    zero: u32,
    rows: Parts<'a>,
    y: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.bits {
            8 => self.run::<S, 8>(simd),
            _ => self.run::<S, 4>(simd),
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn run<S: Simd, const BITS: usize>(self, simd: S) {
        let Self { x, sums, zero, rows, y, .. } = self;
        let (n_words, n_scales) = (x.len() * BITS / 32, x.len() / BLOCK);
        let row = |index: usize| Parts {
            words: &rows.words[index * n_words..][..n_words],
            scales: &rows.scales[index * n_scales..][..n_scales],
            mins: if rows.mins.is_empty() { &[] } else { &rows.mins[index * n_scales..][..n_scales] },
        };
        let (blocks, rest) = y.as_chunks_mut::<AT_ONCE>();
        let done = blocks.len() * AT_ONCE;
        for (block, y) in blocks.iter_mut().enumerate() {
            add::<S, BITS, AT_ONCE>(simd, x, sums, std::array::from_fn(|i| row(block * AT_ONCE + i)), zero, y);
        }
        for (index, y) in rest.iter_mut().enumerate() {
            add::<S, BITS, 1>(simd, x, sums, [row(done + index)], zero, std::array::from_mut(y));
        }
    }
}

/// Adds the products of `x` with some rows to `y`.
#[inline(always)]
fn add<S: Simd, const BITS: usize, const ROWS: usize>(
    simd: S,
    x: &[f32],
    sums: &[f32],
    rows: [Parts; ROWS],
    zero: u32,
    y: &mut [f32; ROWS],
) {
    let found = scaled_sums::<S, BITS, ROWS>(simd, x, rows, zero);
    y.iter_mut().zip(found).for_each(|(y, sum)| *y += sum);
    if !sums.is_empty() {
        let found = products::<S, ROWS>(simd, sums, rows.map(|row| row.mins));
        y.iter_mut().zip(found).for_each(|(y, sum)| *y += sum);
    }
}

/// Sums of the products of `x` with each of some rows, without the minima.
#[inline(always)]
fn scaled_sums<S: Simd, const BITS: usize, const ROWS: usize>(
    simd: S,
    x: &[f32],
    rows: [Parts; ROWS],
    zero: u32,
) -> [f32; ROWS] {
    let per_word = 32 / BITS;
    let vectors = WORDS / S::F32_LANES;
    let (x, _) = S::as_simd_f32s(x);
    let words: [&[S::u32s]; ROWS] = std::array::from_fn(|row| S::as_simd_u32s(rows[row].words).0);
    let of_bits = FromBits::<S, BITS>::new(simd, zero);
    let mut sums = [simd.splat_f32s(0.0); ROWS];
    for (group, x) in x.chunks_exact(per_word * vectors).enumerate() {
        let words: [&[S::u32s]; ROWS] = std::array::from_fn(|row| &words[row][group * vectors..][..vectors]);
        let first = group * per_word / 2;
        let scales: [&[f32]; ROWS] = std::array::from_fn(|row| &rows[row].scales[first..][..per_word / 2]);
        for (block, x) in x.chunks_exact(2 * vectors).enumerate() {
            for vector in 0..vectors {
                for row in 0..ROWS {
                    let quants = words[row][vector];
                    let sum = simd.mul_f32s(of_bits.number(simd, quants, 2 * block), x[vector]);
                    let second = of_bits.number(simd, quants, 2 * block + 1);
                    let sum = simd.mul_add_e_f32s(second, x[vectors + vector], sum);
                    sums[row] = simd.mul_add_e_f32s(sum, simd.splat_f32s(scales[row][block]), sums[row]);
                }
            }
        }
    }
    std::array::from_fn(|row| simd.reduce_sum_f32s(sums[row]))
}
