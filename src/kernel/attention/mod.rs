//! Attention in tiles with a running softmax over numbers in host memory
//! ([Dao 2023](https://arxiv.org/abs/2307.08691)): hidden tiles are skipped, and no score square is held.

#[cfg(feature = "flex")]
mod backward;
mod changes;
#[cfg(feature = "ndarray")]
mod data;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod gradient;
#[cfg(test)]
mod tests;
mod tile;
mod view;

use std::sync::Mutex;

use burn::tensor::{Bool, Tensor};
use pulp::{Simd, WithSimd};

use super::parallel;
use super::simd::dispatch;
use tile::{Inputs, Tile, VECTORS};
use view::{DenseHead, PerScore, View};

#[cfg(feature = "ndarray")]
pub(super) use data::attention_of_data;
#[cfg(feature = "flex")]
pub(super) use flex::attention_of_tensors;

/// What makes scores of products, and what hides keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreRule {
    /// Factor on products.
    pub scale: f64,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f64>,
    /// Whether the keys after a query are hidden; queries stand at the end of the keys.
    pub is_causal: bool,
    /// How many keys before a query, its own included, and without causality after it, it sees.
    pub window: Option<usize>,
}

/// Tensors that change scores, each with axes `[1 or batch, 1 or n_heads, 1 or query_len, key_len]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScoreTensors {
    /// Added to scores; minus infinity hides.
    pub bias: Option<Tensor<4>>,
    /// True where a key is padding.
    pub padding: Option<Tensor<4, Bool>>,
    /// True where hidden.
    pub explicit: Option<Tensor<4, Bool>>,
}

/// [`ScoreRule`] and [`ScoreTensors`] as the tiles read them.
struct Scores<'a> {
    rule: ScoreRule,
    bias: Option<PerScore<'a, f32>>,
    /// Not zero where hidden.
    hidden: Vec<PerScore<'a, u8>>,
}

/// Queries, keys and values.
#[derive(Clone, Copy)]
struct Sequences<'a> {
    query: View<'a>,
    key: View<'a>,
    value: View<'a>,
}

/// Attention: `output` becomes `[batch, query_len, n_heads, d_value]`, and `log_sums`, where given, the logarithm of the
/// sum of the exponentials of each row of scores, `[batch, query_len, n_heads]`.
fn attention(sequences: Sequences, scores: &Scores, output: &mut [f32], log_sums: Option<&mut [f32]>) {
    dispatch(Attention { sequences, scores, output, log_sums });
}

struct Attention<'a> {
    sequences: Sequences<'a>,
    scores: &'a Scores<'a>,
    output: &'a mut [f32],
    log_sums: Option<&'a mut [f32]>,
}

impl WithSimd for Attention<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        // As many sums as the registers hold beside the factors.
        if S::F32_LANES == 16 { self.run::<S, 8>(simd) } else { self.run::<S, 4>(simd) }
    }
}

/// Multiplications and additions below which waking other threads costs more than they save: some 10 µs.
const ALONE: usize = 1 << 20;

impl Attention<'_> {
    fn run<S: Simd, const ROWS: usize>(self, simd: S) {
        let Self { sequences: Sequences { query, key, value }, scores, output, log_sums } = self;
        let at_once = VECTORS * S::F32_LANES;
        let work = query.dims[..3].iter().product::<usize>() * key.dims[2] * (key.dims[3] + value.dims[3]);
        let threads = if work < ALONE { 1 } else { parallel::threads() };
        let tasks = Mutex::new(tasks(query.dims, key.dims[1], at_once, threads, output, log_sums).into_iter());
        parallel::each(threads, |_| {
            // Tasks of one head follow each other; its keys and values are laid out once.
            let (mut keys, mut values) = (DenseHead::default(), DenseHead::default());
            loop {
                let task = tasks.lock().expect("no tile panicked").next();
                let Some(Task { batch, kv_head, first_row, mut output, mut log_sums }) = task else { return };
                let inputs = Inputs {
                    query,
                    keys: keys.rows::<1>(key, batch, kv_head),
                    values: values.rows::<ROWS>(value, batch, kv_head),
                    scores,
                    n_kv_heads: key.dims[1],
                    key_len: key.dims[2],
                };
                for (index, output) in output.chunks_mut(at_once).enumerate() {
                    let first = index * at_once;
                    let log_sums = log_sums.get_mut(first..).unwrap_or_default();
                    let first_row = first_row + first;
                    let tile = Tile::<ROWS> { inputs: &inputs, batch, kv_head, first_row, output, log_sums };
                    Simd::vectorize(simd, tile);
                }
            }
        });
    }
}

/// Some rows of scores over the keys of one key/value head. The rows of a head of keys are those of all query heads that
/// read it, query after query.
struct Task<'a> {
    batch: usize,
    kv_head: usize,
    first_row: usize,
    /// Of each row.
    output: Vec<&'a mut [f32]>,
    log_sums: Vec<&'a mut f32>,
}

/// The output in tasks for the threads; neighbouring ones read the same keys.
fn tasks<'a>(
    [batch, n_heads, query_len, _]: [usize; 4],
    n_kv_heads: usize,
    at_once: usize,
    threads: usize,
    output: &'a mut [f32],
    log_sums: Option<&'a mut [f32]>,
) -> Vec<Task<'a>> {
    let group = n_heads / n_kv_heads;
    // Whole heads where the threads share them evenly, smaller parts otherwise.
    let heads = batch * n_kv_heads;
    let parts = if heads.is_multiple_of(threads) { 1 } else { (8 * threads).div_ceil(heads) };
    let rows = (query_len * group).div_ceil(at_once).div_ceil(parts) * at_once;
    let parts = (query_len * group).div_ceil(rows);
    let mut tasks: Vec<_> = (0..heads * parts)
        .map(|index| Task {
            batch: index / parts / n_kv_heads,
            kv_head: index / parts % n_kv_heads,
            first_row: index % parts * rows,
            output: Vec::with_capacity(rows.min(query_len * group)),
            log_sums: Vec::new(),
        })
        .collect();
    // The memory of the output goes through the heads of a query, which are in turn the rows of each head of keys.
    let task_of = |index: usize| {
        let (query, head) = (index / n_heads, index % n_heads);
        let row = query % query_len * group + head % group;
        (query / query_len * n_kv_heads + head / group) * parts + row / rows
    };
    let d_value = output.len() / (batch * query_len * n_heads);
    for (index, output) in output.chunks_mut(d_value).enumerate() {
        tasks[task_of(index)].output.push(output);
    }
    for (index, log_sum) in log_sums.into_iter().flatten().enumerate() {
        tasks[task_of(index)].log_sums.push(log_sum);
    }
    // The last queries of a head see most keys; what takes longest comes first.
    tasks.reverse();
    tasks
}
