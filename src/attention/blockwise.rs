//! Attention in tiles with a running softmax: the score square is never held whole.

use std::ops::Range;

use burn::tensor::Tensor;

use super::mask::TileVisibility;
use super::scaled_dot_product::{Inputs, finish_scores, grouped};
use crate::precision::{narrow, widen};

/// Scores held at a time, over all heads and rows of the batch: 4 Mi numbers, 16 MiB in 32 bits.
const SCORES_AT_ONCE: usize = 4 << 20;
/// Keys in a tile at most.
const KEYS_AT_ONCE: usize = 512;

/// Attention over all tiles; the shapes are those of
/// [`scaled_dot_product_attention`](super::scaled_dot_product_attention).
pub(super) fn attention(inputs: Inputs) -> Tensor<4> {
    let [batch, n_heads, query_len, _] = inputs.query.dims();
    let key_len = inputs.key.dims()[2];
    let keys_at_once = key_len.min(KEYS_AT_ONCE);
    let queries_at_once = (SCORES_AT_ONCE / (batch * n_heads * keys_at_once)).clamp(1, query_len);
    let rows = ranges(query_len, queries_at_once).map(|queries| one_row_of_tiles(&inputs, queries, keys_at_once));
    Tensor::cat(rows.collect(), 2)
}

/// `0..len` in steps.
fn ranges(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(step).map(move |start| start..(start + step).min(len))
}

/// What is known of a row of tiles after some of them.
struct Running {
    /// Largest score so far, `[batch, n_heads, queries, 1]`.
    max: Tensor<4>,
    /// Sum of `exp(score − max)`.
    sum: Tensor<4>,
    /// Sum of `exp(score − max) · value`.
    context: Tensor<4>,
}

fn one_row_of_tiles(inputs: &Inputs, queries: Range<usize>, keys_at_once: usize) -> Tensor<4> {
    let [batch, n_heads, query_len, _] = inputs.query.dims();
    let [_, n_kv_heads, key_len, d_value] = inputs.value.dims();
    let (dtype, device) = (inputs.query.dtype(), inputs.query.device());
    let rows = queries.len();
    let query = widen(inputs.query.clone().slice_dim(2, queries.clone())) * inputs.scale;
    let (compute_dtype, query) = (query.dtype(), grouped(query, n_kv_heads));
    let mut running: Option<Running> = None;

    for keys in ranges(key_len, keys_at_once) {
        if inputs.mask.tile(&queries, &keys, query_len, key_len) == TileVisibility::Hidden {
            continue;
        }
        let key = widen(inputs.key.clone().slice_dim(2, keys.clone()));
        let value = widen(inputs.value.clone().slice_dim(2, keys.clone()));
        let scores = query.clone().matmul(key.swap_dims(2, 3)).reshape([batch, n_heads, rows, keys.len()]);
        let hidden = inputs.mask.materialize_tile(queries.clone(), keys.clone(), query_len, key_len, &device);
        let bias = inputs.bias.as_ref().map(|bias| bias_tile(bias, &queries, &keys));
        let (scores, hidden) = finish_scores(scores, inputs.softcap, bias, hidden);

        // The maximum only keeps exp in range; no gradient runs through it.
        let tile_max = scores.clone().detach().max_dim(3);
        let max = match &running {
            Some(before) => before.max.clone().max_pair(tile_max),
            None => tile_max,
        };
        let weights = (scores - max.clone()).exp();
        // Where every key so far is hidden, the maximum is the hidden score itself.
        let weights = hidden.into_iter().fold(weights, |weights, hidden| weights.mask_fill(hidden, 0.0));
        let sum = weights.clone().sum_dim(3);
        let weights = match inputs.dropout {
            Some(dropout) => dropout.forward(weights),
            None => weights,
        };
        let context = grouped(weights, n_kv_heads).matmul(value).reshape([batch, n_heads, rows, d_value]);
        running = Some(match running {
            Some(before) => {
                let shrink = (before.max - max.clone()).exp();
                Running { max, sum: before.sum * shrink.clone() + sum, context: before.context * shrink + context }
            }
            None => Running { max, sum, context },
        });
    }
    let context = match running {
        Some(Running { sum, context, .. }) => {
            // A row without any visible key has the sum 0 and the context 0.
            let sum = sum.clone().mask_fill(sum.equal_elem(0.0), 1.0);
            context / sum
        }
        None => Tensor::zeros([batch, n_heads, rows, d_value], (&device, compute_dtype)),
    };
    narrow(context, dtype)
}

/// The part of a bias that belongs to one tile; axes of size 1 stay.
fn bias_tile(bias: &Tensor<4>, queries: &Range<usize>, keys: &Range<usize>) -> Tensor<4> {
    let [batch, heads, rows, _] = bias.dims();
    let rows = if rows == 1 { 0..1 } else { queries.clone() };
    bias.clone().slice([0..batch, 0..heads, rows, keys.clone()])
}
