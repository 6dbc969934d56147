//! The gradients of attention in tiles ([Dao 2023](https://arxiv.org/abs/2307.08691)): weights are computed again from the
//! logarithms of their sums, so that no score square is kept.

use std::f32::consts::LOG2_E;
use std::sync::Mutex;

use pulp::{Simd, WithSimd};

use super::super::exponential::tanh;
use super::super::parallel;
use super::super::product::{Matrix, product_alone};
use super::super::simd::dispatch;
use super::changes::{Changes, LOWEST_VISIBLE, Place};
use super::tile::exp2;
use super::view::View;
use super::{Scores, Sequences};

/// What attention gave, and the gradient of it; both `[batch, n_heads, query_len, d_value]`.
pub(super) struct Upstream<'a> {
    pub output: View<'a>,
    pub gradient: View<'a>,
    /// `[batch, query_len, n_heads]`.
    pub log_sums: &'a [f32],
}

/// Gradients of the inputs, each in the order of its input's axes.
pub(super) struct Gradients {
    pub query: Vec<f32>,
    pub key: Vec<f32>,
    pub value: Vec<f32>,
    /// Where it was wanted.
    pub bias: Option<Vec<f32>>,
}

/// Rows and keys of a tile: its scores and their gradients stay in the second cache.
const ROWS: usize = 128;
const KEYS: usize = 128;
/// Lanes of the widest vectors.
const WIDEST: usize = 16;

pub(super) fn gradients(sequences: Sequences, scores: &Scores, upstream: &Upstream, wants_bias: bool) -> Gradients {
    let Sequences { query, key, value } = sequences;
    let zeros = |x: View| vec![0.0; x.dims.iter().product()];
    let (mut d_query, mut d_key, mut d_value) = (zeros(query), zeros(key), zeros(value));
    let mut d_bias = if wants_bias { scores.bias.map(|bias| vec![0.0; bias.values.len()]) } else { None };
    let [_, n_kv_heads, key_len, d_head] = key.dims;
    let heads = d_query
        .chunks_mut(query.dims[1] / n_kv_heads * query.dims[2] * d_head)
        .zip(d_key.chunks_mut(key_len * d_head).zip(d_value.chunks_mut(key_len * value.dims[3])))
        .enumerate()
        .map(|(index, (query, (key, value)))| Head {
            batch: index / n_kv_heads,
            kv_head: index % n_kv_heads,
            query,
            key,
            value,
        });
    match &mut d_bias {
        // Heads may share a bias.
        Some(d_bias) => heads.for_each(|head| head.add(sequences, scores, upstream, Some(d_bias))),
        None => {
            let count = heads.len();
            let heads = Mutex::new(heads);
            parallel::each(count, |_| {
                let head = heads.lock().expect("no head panicked").next();
                head.expect("each is taken once").add(sequences, scores, upstream, None);
            });
        }
    }
    Gradients { query: d_query, key: d_key, value: d_value, bias: d_bias }
}

/// The gradients that belong to one head of keys, zero as yet.
struct Head<'a> {
    batch: usize,
    kv_head: usize,
    /// Of all query heads that read it.
    query: &'a mut [f32],
    key: &'a mut [f32],
    value: &'a mut [f32],
}

impl Head<'_> {
    fn add(self, sequences: Sequences, scores: &Scores, upstream: &Upstream, mut d_bias: Option<&mut Vec<f32>>) {
        let Self { batch, kv_head, query: d_query, key: d_key, value: d_value } = self;
        let Sequences { query, key, value } = sequences;
        let [_, n_heads, query_len, d_head] = query.dims;
        let [_, n_kv_heads, key_len, width] = value.dims;
        let group = n_heads / n_kv_heads;
        let rows = query_len * group;
        let lanes = ROWS.min(rows.next_multiple_of(WIDEST));
        let tile = || vec![0.0; KEYS.min(key_len) * lanes];
        let (mut weights, mut d_scores) = (tile(), tile());
        let mut unit = 1.0;
        for first_row in (0..rows).step_by(lanes) {
            let offset = key_len as isize - query_len as isize;
            let place = Place { first_row, rows: lanes.min(rows - first_row), group, offset };
            let changes = Changes::new(scores, batch, kv_head, place);
            unit = changes.unit();
            let rows = Rows::new(query, upstream, lanes, [batch, kv_head], place, scores.rule.scale as f32 * unit);
            let queries = Matrix { numbers: &rows.query, dims: [lanes, d_head], strides: [d_head, 1] };
            let gradient = Matrix { numbers: &rows.gradient, dims: [lanes, width], strides: [width, 1] };
            let mut d_rows = vec![0.0; lanes * d_head];
            let seen = place.seen(&scores.rule, key_len);
            for start in seen.clone().step_by(KEYS) {
                let count = (seen.end - start).min(KEYS);
                let [keys, values] = [key, value].map(|x| block(x, [batch, kv_head], start, count));

                let (weights, d_scores) = (&mut weights[..count * lanes], &mut d_scores[..count * lanes]);
                product_alone(keys, transposed(queries), weights, false);
                product_alone(values, transposed(gradient), d_scores, false);
                let slopes: Option<Vec<f32>> = scores.rule.softcap.map(|cap| {
                    let inverse = (1.0 / cap) as f32;
                    weights.iter().map(|score| 1.0 - tanh(score * inverse).powi(2)).collect()
                });
                changes.apply(weights, lanes, place, start);
                // At the lowest score a finite bias no longer moves it.
                let is_lowest: Option<Vec<bool>> =
                    scores.bias.map(|_| weights.iter().map(|score| *score <= LOWEST_VISIBLE * LOG2_E).collect());
                dispatch(Weigh { weights, d_scores, lanes, log_sums: &rows.log_sums, means: &rows.means });
                if let Some(is_lowest) = is_lowest {
                    d_scores.iter_mut().zip(is_lowest).for_each(|(d, is_lowest)| *d = if is_lowest { 0.0 } else { *d });
                }
                if let (Some(d_bias), Some(bias)) = (&mut d_bias, &scores.bias) {
                    for (key, d_scores) in (start..).zip(d_scores.chunks(lanes)) {
                        for (row, d_score) in d_scores[..place.rows].iter().enumerate() {
                            let (head, at) = place.head_and_query(kv_head, row);
                            let at = [batch, head, at, key];
                            let index: usize = at.iter().zip(bias.strides).map(|(at, stride)| at * stride).sum();
                            d_bias[index] += d_score;
                        }
                    }
                }
                if let Some(slopes) = slopes {
                    d_scores.iter_mut().zip(slopes).for_each(|(d, slope)| *d *= slope);
                }
                let tile = |numbers| Matrix { numbers, dims: [count, lanes], strides: [lanes, 1] };
                product_alone(tile(weights), gradient, &mut d_value[start * width..][..count * width], true);
                product_alone(tile(d_scores), queries, &mut d_key[start * d_head..][..count * d_head], true);
                product_alone(transposed(tile(d_scores)), keys, &mut d_rows, true);
            }
            for (row, d_row) in d_rows.chunks(d_head).take(place.rows).enumerate() {
                let (head, at) = place.head_and_query(kv_head, row);
                let to = &mut d_query[((head - kv_head * group) * query_len + at) * d_head..][..d_head];
                to.iter_mut().zip(d_row).for_each(|(to, d)| *to = d * scores.rule.scale as f32);
            }
        }
        // The queries were multiplied by the unit of the weights as well.
        d_key.iter_mut().for_each(|d| *d /= unit);
    }
}

/// Keys or values from `start` on of a head.
fn block(x: View, [batch, head]: [usize; 2], start: usize, count: usize) -> Matrix {
    let stride = x.strides[2];
    let numbers = &x.numbers[x.start(batch, head) + start * stride..];
    Matrix { numbers, dims: [count, x.dims[3]], strides: [stride, 1] }
}

fn transposed(x: Matrix) -> Matrix {
    let Matrix { numbers, dims: [height, width], strides: [down, across] } = x;
    Matrix { numbers, dims: [width, height], strides: [across, down] }
}

/// What a tile reads of its rows of scores, one behind the other; those that fill up the last vector are zero.
struct Rows {
    /// Times scale and unit.
    query: Vec<f32>,
    /// Of the output.
    gradient: Vec<f32>,
    /// To the base 2; infinite where a row has no visible key, so that its weights are zero.
    log_sums: Vec<f32>,
    /// The mean gradient of a row's weights, by these weights: the product of output and its gradient.
    means: Vec<f32>,
}

impl Rows {
    fn new(
        query: View,
        upstream: &Upstream,
        lanes: usize,
        [batch, kv_head]: [usize; 2],
        place: Place,
        factor: f32,
    ) -> Self {
        let [_, n_heads, query_len, d_head] = query.dims;
        let width = upstream.output.dims[3];
        let mut rows = Self {
            query: vec![0.0; lanes * d_head],
            gradient: vec![0.0; lanes * width],
            log_sums: vec![f32::INFINITY; lanes],
            means: vec![0.0; lanes],
        };
        for row in 0..place.rows {
            let (head, at) = place.head_and_query(kv_head, row);
            let numbers = query.row(batch, head, at);
            rows.query[row * d_head..][..d_head].iter_mut().zip(numbers).for_each(|(to, x)| *to = x * factor);
            let [output, gradient] = [upstream.output, upstream.gradient].map(|x| x.row(batch, head, at));
            rows.gradient[row * width..][..width].copy_from_slice(gradient);
            rows.means[row] = output.iter().zip(gradient).map(|(y, d)| y * d).sum();
            let log_sum = upstream.log_sums[(batch * query_len + at) * n_heads + head];
            if log_sum > 2.0 * LOWEST_VISIBLE {
                rows.log_sums[row] = log_sum * LOG2_E;
            }
        }
        rows
    }
}

/// Scores become weights, and the gradients of weights become those of scores.
struct Weigh<'a> {
    weights: &'a mut [f32],
    d_scores: &'a mut [f32],
    lanes: usize,
    log_sums: &'a [f32],
    means: &'a [f32],
}

impl WithSimd for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { weights, d_scores, lanes, log_sums, means } = self;
        let of_rows = S::as_simd_f32s(log_sums).0.iter().zip(S::as_simd_f32s(means).0);
        for (weights, d_scores) in weights.chunks_mut(lanes).zip(d_scores.chunks_mut(lanes)) {
            let of_keys = S::as_mut_simd_f32s(weights).0.iter_mut().zip(S::as_mut_simd_f32s(d_scores).0);
            for ((weight, d_score), (log_sum, mean)) in of_keys.zip(of_rows.clone()) {
                *weight = exp2(simd, simd.sub_f32s(*weight, *log_sum));
                *d_score = simd.mul_f32s(*weight, simd.sub_f32s(*d_score, *mean));
            }
        }
    }
}
