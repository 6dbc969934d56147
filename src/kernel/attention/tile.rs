//! One tile: some rows of scores, over all keys that they see.
//!
//! Scores are kept transposed, a row of queries for each key. So the running maximum and sum of a query are lanes of
//! vectors and need no sum across one, and both products read their inputs in the order in which they lie:
//! `Sᵀ = K · Qᵀ` and `Oᵀ = Vᵀ · Pᵀ`.

use std::f32::consts::LN_2;

use pulp::{Simd, WithSimd};

use super::Scores;
use super::changes::{Changes, HIDDEN, LOWEST_VISIBLE, Place};
use super::view::{Rows, View};

/// Vectors of rows in a tile at most.
pub(super) const VECTORS: usize = 3;
/// Keys that a tile takes at a time: their scores stay in the nearest cache.
const KEYS: usize = 128;

/// What all tiles of a task read.
pub(super) struct Inputs<'a> {
    pub query: View<'a>,
    pub keys: Rows<'a>,
    /// Of a width that is a multiple of the rows of a block.
    pub values: Rows<'a>,
    pub scores: &'a Scores<'a>,
    pub n_kv_heads: usize,
    pub key_len: usize,
}

/// Rows of scores that fill the vectors of a tile at most. Sums are formed in blocks of `ROWS` vectors.
pub(super) struct Tile<'a, 'b, const ROWS: usize> {
    pub inputs: &'a Inputs<'a>,
    pub batch: usize,
    pub kv_head: usize,
    pub first_row: usize,
    /// Of each row.
    pub output: &'a mut [&'b mut [f32]],
    /// Of each row, or empty.
    pub log_sums: &'a mut [&'b mut f32],
}

impl<const ROWS: usize> WithSimd for Tile<'_, '_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.output.len().div_ceil(S::F32_LANES) {
            1 => tile::<S, ROWS, 1>(simd, self),
            2 => tile::<S, ROWS, 2>(simd, self),
            _ => tile::<S, ROWS, VECTORS>(simd, self),
        }
    }
}

#[inline(always)]
fn tile<S: Simd, const ROWS: usize, const N: usize>(simd: S, tile: Tile<ROWS>) {
    let Tile { inputs, batch, kv_head, first_row, output, log_sums } = tile;
    let Inputs { query: queries, keys, values, scores, n_kv_heads, key_len } = *inputs;
    let [_, n_heads, query_len, d_head] = queries.dims;
    let group = n_heads / n_kv_heads;
    let lanes = N * S::F32_LANES;
    let place = Place { first_row, rows: output.len(), group, offset: key_len as isize - query_len as isize };
    let changes = Changes::new(scores, batch, kv_head, place);

    let zero = [simd.splat_f32s(0.0); N];
    let mut query = vec![zero; d_head];
    let scale = (scores.rule.scale * f64::from(changes.unit())) as f32;
    for row in 0..output.len() {
        let (head, at) = place.head_and_query(kv_head, row);
        let numbers = queries.row(batch, head, at);
        for (query, number) in flat_mut::<S, N>(&mut query).chunks_mut(lanes).zip(numbers) {
            query[row] = number * scale;
        }
    }
    let mut weights = vec![zero; KEYS.min(key_len)];
    let mut sums = vec![zero; values.width];
    let mut max = [simd.splat_f32s(HIDDEN); N];
    let mut sum = zero;
    let seen = place.seen(&scores.rule, key_len);
    for start in seen.clone().step_by(KEYS) {
        let count = (seen.end - start).min(KEYS);
        let weights = &mut weights[..count];
        scores_of_keys::<S, ROWS, N>(simd, &query, keys.part(start, count), weights);
        changes.apply(flat_mut::<S, N>(weights), lanes, place, start);
        let shrink = softmax(simd, weights, &mut max, &mut sum);
        add_values::<S, ROWS, N>(simd, weights, values.part(start, count), &mut sums, shrink);
    }

    // A row without any visible key has the maximum of hidden ones.
    let mut inverse = zero;
    for i in 0..N {
        let is_empty = simd.less_than_f32s(max[i], simd.splat_f32s(2.0 * LOWEST_VISIBLE));
        inverse[i] = simd.select_f32s(is_empty, zero[i], simd.div_f32s(simd.splat_f32s(1.0), sum[i]));
    }
    for row in &mut sums {
        for i in 0..N {
            row[i] = simd.mul_f32s(row[i], inverse[i]);
        }
    }
    let flat = flat_mut::<S, N>(&mut sums);
    for (row, output) in output.iter_mut().enumerate() {
        for (output, features) in output.iter_mut().zip(flat.chunks(lanes)) {
            *output = features[row];
        }
    }
    let [mut max, mut sum] = [[max], [sum]];
    let (max, sum) = (flat_mut::<S, N>(&mut max), flat_mut::<S, N>(&mut sum));
    for (row, log_sum) in log_sums.iter_mut().take(output.len()).enumerate() {
        **log_sum = (max[row] + sum[row].log2()) * LN_2;
    }
}

fn flat_mut<S: Simd, const N: usize>(vectors: &mut [[S::f32s; N]]) -> &mut [f32] {
    pulp::bytemuck::cast_slice_mut(vectors.as_flattened_mut())
}

/// `weights = keys · query`.
#[inline(always)]
fn scores_of_keys<S: Simd, const ROWS: usize, const N: usize>(
    simd: S,
    query: &[[S::f32s; N]],
    keys: Rows,
    weights: &mut [[S::f32s; N]],
) {
    let d_head = query.len();
    let last = weights.len() - 1;
    for (block, weights) in weights.chunks_mut(ROWS).enumerate() {
        // Where the keys do not fill a block, the last stands for the absent ones.
        let rows: [&[f32]; ROWS] =
            std::array::from_fn(|i| &keys.numbers[(block * ROWS + i).min(last) * d_head..][..d_head]);
        let mut sums = [[simd.splat_f32s(0.0); N]; ROWS];
        for (feature, query) in query.iter().enumerate() {
            for i in 0..ROWS {
                let key = simd.splat_f32s(rows[i][feature]);
                for j in 0..N {
                    sums[i][j] = simd.mul_add_e_f32s(key, query[j], sums[i][j]);
                }
            }
        }
        for (weights, sums) in weights.iter_mut().zip(sums) {
            *weights = sums;
        }
    }
}

/// Scores become powers of two, less the running maximum; gives the factor on everything that was summed before.
#[inline(always)]
fn softmax<S: Simd, const N: usize>(
    simd: S,
    scores: &mut [[S::f32s; N]],
    max: &mut [S::f32s; N],
    sum: &mut [S::f32s; N],
) -> [S::f32s; N] {
    let mut new_max = *max;
    for row in scores.iter() {
        for i in 0..N {
            new_max[i] = simd.max_f32s(new_max[i], row[i]);
        }
    }
    let mut shrink = [simd.splat_f32s(0.0); N];
    for i in 0..N {
        shrink[i] = exp2(simd, simd.sub_f32s(max[i], new_max[i]));
        sum[i] = simd.mul_f32s(sum[i], shrink[i]);
    }
    *max = new_max;
    let mut sums = *sum;
    for row in scores {
        for i in 0..N {
            row[i] = exp2(simd, simd.sub_f32s(row[i], new_max[i]));
            sums[i] = simd.add_f32s(sums[i], row[i]);
        }
    }
    *sum = sums;
    shrink
}

/// `sums = sums · shrink + valuesᵀ · weights`.
#[inline(always)]
fn add_values<S: Simd, const ROWS: usize, const N: usize>(
    simd: S,
    weights: &[[S::f32s; N]],
    values: Rows,
    sums: &mut [[S::f32s; N]],
    shrink: [S::f32s; N],
) {
    for (block, sums) in sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        let mut total = *sums;
        for row in &mut total {
            for j in 0..N {
                row[j] = simd.mul_f32s(row[j], shrink[j]);
            }
        }
        for (weights, values) in weights.iter().zip(values.numbers.chunks_exact(values.width)) {
            let values: &[f32; ROWS] = values[block * ROWS..].first_chunk().expect("blocks lie in the row");
            for i in 0..ROWS {
                let value = simd.splat_f32s(values[i]);
                for j in 0..N {
                    total[i][j] = simd.mul_add_e_f32s(value, weights[j], total[i][j]);
                }
            }
        }
        *sums = total;
    }
}

/// `2ˣ` of numbers that are not positive, within 1.2e-7 of its size; zero below −126.
#[inline(always)]
pub(super) fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    /// Adding it rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³
    /// Of (2ˣ − 1) / x, interpolated at the Chebyshev points of |x| ≤ 1/2.
    const COEFFICIENTS: [f32; 6] =
        [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_083, 0.001_339_086_3, 0.000_154_531_63];
    let splat = |value| simd.splat_f32s(value);
    let is_zero = simd.less_than_f32s(x, splat(-126.0));
    let x = simd.max_f32s(x, splat(-126.0));
    let shifted = simd.add_f32s(x, splat(ROUND));
    let x = simd.sub_f32s(x, simd.sub_f32s(shifted, splat(ROUND)));
    let mut p = splat(COEFFICIENTS[5]);
    for coefficient in COEFFICIENTS[..5].iter().rev() {
        p = simd.mul_add_e_f32s(p, x, splat(*coefficient));
    }
    p = simd.mul_add_e_f32s(p, x, splat(1.0));
    // The exponent of a float stands above its 23 lowest bits.
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let y = simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(p), exponent));
    simd.select_f32s(is_zero, splat(0.0), y)
}
