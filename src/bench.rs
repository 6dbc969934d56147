//! Measurements: a transformer block and attention, beside Burn's own.

mod memory;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use burn::tensor::module::attention as burn_attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Tensor};
use serde::Serialize;

use crate::attention::{
    AttentionKernel, AttentionMask, MultiHeadAttentionConfig, ScoreOptions, scaled_dot_product_attention,
};
use crate::backend;
use crate::error::{Error, advice};
use crate::feed_forward::FeedForwardConfig;
use crate::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlockConfig};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BenchRow {
    /// [`TransformerBlock`](crate::transformer_block::TransformerBlock): post-norm, GELU, biases, 512 tokens of width
    /// 768, 12 heads, `d_ff` 3072, without mask.
    Block,
    /// The same from burn-nn, [`TransformerEncoderLayer`](burn::nn::transformer::TransformerEncoderLayer).
    BurnNnBlock,
    /// Causal attention of 12 heads of 64 features over 2048 tokens, by [`AttentionKernel::Auto`].
    Attention,
    /// The same by [`AttentionKernel::Composed`].
    AttentionComposed,
    /// The same by [`burn::tensor::module::attention`].
    BurnAttention,
    /// Causal attention of 12 heads of 64 features over 4096 tokens, by [`AttentionKernel::Blockwise`]: by how many bytes
    /// the memory of this process grows beyond the inputs.
    Memory,
}

impl BenchRow {
    /// Every row.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Block, Self::BurnNnBlock, Self::Attention, Self::AttentionComposed, Self::BurnAttention];

    /// The row's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::BurnNnBlock => "burn-nn-block",
            Self::Attention => "attention",
            Self::AttentionComposed => "attention-composed",
            Self::BurnAttention => "burn-attention",
            Self::Memory => "memory",
        }
    }

    /// Rows of a group are measured in turn, so that a change of the machine's pace meets all of them.
    fn group(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::Block | Self::BurnNnBlock => 1,
            Self::Attention | Self::AttentionComposed | Self::BurnAttention => 2,
        }
    }

    fn shape(self) -> Vec<usize> {
        match self {
            Self::Block | Self::BurnNnBlock => vec![1, SEQ, D_MODEL],
            Self::Memory => vec![1, N_HEADS, LONG, D_HEAD],
            _ => vec![1, N_HEADS, LEN, D_HEAD],
        }
    }

    /// Floating-point operations of one run, two for each multiplication and addition.
    fn flop(self) -> f64 {
        let [seq, d_model, d_ff] = [SEQ, D_MODEL, D_FF].map(|size| size as f64);
        match self {
            // Four projections of d_model², scores and values of seq each, two projections of d_model · d_ff.
            Self::Block | Self::BurnNnBlock => {
                8.0 * seq * d_model * d_model + 4.0 * seq * seq * d_model + 4.0 * seq * d_model * d_ff
            }
            // Scores and values, 2 · len² · d_head each per head; the half that causality leaves visible, whether or not
            // the other half is computed too.
            _ => 2.0 * (LEN * LEN * D_HEAD * N_HEADS) as f64,
        }
    }
}

impl fmt::Display for BenchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BenchRow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|row| row.name() == text).ok_or_else(|| {
            let advice = advice(text, Self::ALL.map(Self::name));
            Error::Input(format!("there is no bench row `{text}`; {advice}"))
        })
    }
}

/// One measured row.
#[derive(Serialize, Clone, Debug)]
pub struct Measurement {
    /// The row's name.
    pub row: String,
    /// The backend's name.
    pub backend: String,
    /// The input's shape.
    pub shape: Vec<usize>,
    /// How many runs counted.
    pub samples: usize,
    /// Median time of a run.
    pub seconds: f64,
    /// Work per time, or memory.
    pub rate: f64,
    /// The rate's unit: `GFLOP/s` or `bytes`.
    pub unit: &'static str,
}

const SEQ: usize = 512;
const D_MODEL: usize = 768;
const D_FF: usize = 3072;
const N_HEADS: usize = 12;
const D_HEAD: usize = 64;
const LEN: usize = 2048;
const LONG: usize = 4096;

/// Measures `rows` on `device`, each as the median of `samples` runs after one or two that do not count; of fewer, but at
/// least three, where a group of rows takes more than a minute. `backend` is the name to be shown. Rows that cannot run on the device are given back beside the measurements, each with the reason.
///
/// # Panics
///
/// Where the backend's own code does.
pub fn run(
    device: &Device,
    backend: &str,
    rows: &[BenchRow],
    samples: usize,
) -> (Vec<Measurement>, Vec<(BenchRow, String)>) {
    let (mut measured, mut skipped) = (Vec::new(), Vec::new());
    let mut may_run = |row: BenchRow| match obstacle(row, device) {
        None => true,
        Some(reason) => {
            skipped.push((row, reason));
            false
        }
    };
    let rows: Vec<BenchRow> = BenchRow::ALL.into_iter().filter(|row| rows.contains(row) && may_run(*row)).collect();
    let measurement = |row: BenchRow, samples: usize, seconds: f64, rate: f64, unit: &'static str| Measurement {
        row: row.name().to_owned(),
        backend: backend.to_owned(),
        shape: row.shape(),
        samples,
        seconds,
        rate,
        unit,
    };
    for group in rows.chunk_by(|a, b| a.group() == b.group()) {
        if group == [BenchRow::Memory] {
            match memory::of_attention(device) {
                Ok((seconds, bytes)) => measured.push(measurement(BenchRow::Memory, 1, seconds, bytes as f64, "bytes")),
                Err(reason) => skipped.push((BenchRow::Memory, reason)),
            }
            continue;
        }
        let runs: Vec<_> = group.iter().map(|row| prepare(*row, device)).collect();
        let (times, samples) = in_turn(&runs, samples);
        for (row, seconds) in group.iter().zip(times) {
            measured.push(measurement(*row, samples, seconds, row.flop() / seconds / 1e9, "GFLOP/s"));
        }
    }
    (measured, skipped)
}

/// What keeps a row from running on a device.
fn obstacle(row: BenchRow, device: &Device) -> Option<String> {
    let limit = backend::largest_buffer(device)?;
    let square = (N_HEADS * LEN * LEN * size_of::<f32>()) as u64;
    let holds_it = matches!(row, BenchRow::AttentionComposed | BenchRow::BurnAttention);
    (holds_it && square > limit).then(|| {
        let mib = |bytes: u64| bytes >> 20;
        format!("the scores have {} MiB, the device's largest buffer {} MiB", mib(square), mib(limit))
    })
}

/// Median times of `runs`, one run of each after the other, and of how many. Slow devices get fewer.
fn in_turn(runs: &[Box<dyn Fn() + '_>], samples: usize) -> (Vec<f64>, usize) {
    const LONG_ENOUGH: Duration = Duration::from_secs(60);
    const FEWEST: usize = 3;
    let mut times = vec![Vec::with_capacity(samples); runs.len()];
    let mut round = || {
        for (run, times) in runs.iter().zip(&mut times) {
            let start = Instant::now();
            run();
            times.push(start.elapsed().as_secs_f64());
        }
    };
    let start = Instant::now();
    // Rounds that do not count: one, and a second where that costs little.
    round();
    let warm_up = if start.elapsed() > LONG_ENOUGH / 10 { 1 } else { 2 };
    let mut rounds = 1;
    while rounds < warm_up + samples && (rounds < warm_up + FEWEST || start.elapsed() < LONG_ENOUGH) {
        round();
        rounds += 1;
    }
    (times.into_iter().map(|times| median(times[warm_up..].to_vec())).collect(), rounds - warm_up)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Waits until `output` is there, and reads a number of it.
pub(crate) fn finish<const D: usize>(device: &Device, output: Tensor<D>) {
    let first = output.slice(std::array::from_fn::<_, D, _>(|_| 0..1)).into_data();
    device.sync().unwrap_or_else(|error| panic!("{error}"));
    std::hint::black_box(first);
}

/// A closure that runs `row` once, weights and inputs being ready.
fn prepare(row: BenchRow, device: &Device) -> Box<dyn Fn() + '_> {
    let normal = Distribution::Normal(0.0, 1.0);
    device.seed(0);
    let x = Tensor::<3>::random([1, SEQ, D_MODEL], normal, device);
    match row {
        BenchRow::Block => {
            // Burn's layer has these defaults: norm after the sum, exact GELU, biases, LayerNorm with eps 1e-5.
            let attention = MultiHeadAttentionConfig::new(D_MODEL, N_HEADS);
            let config = TransformerBlockConfig::new(attention, FeedForwardConfig::new(D_MODEL, D_FF));
            let block = config.with_layout(BlockLayout::new(NormPlacement::Post)).init(device);
            let mask = AttentionMask::none();
            Box::new(move || finish(device, block.forward(x.clone(), BlockContext::masked(&mask))))
        }
        BenchRow::BurnNnBlock => {
            let config = TransformerEncoderConfig::new(D_MODEL, D_FF, N_HEADS, 1).with_dropout(0.0);
            let block = config.init(device);
            Box::new(move || finish(device, block.forward(TransformerEncoderInput::new(x.clone()))))
        }
        BenchRow::Attention | BenchRow::AttentionComposed => {
            let kernel = match row {
                BenchRow::Attention => AttentionKernel::Auto,
                _ => AttentionKernel::Composed,
            };
            let inputs = heads(LEN, device);
            Box::new(move || finish(device, causal(&inputs, kernel)))
        }
        BenchRow::BurnAttention => {
            let [query, key, value] = heads(LEN, device);
            let options = AttentionModuleOptions { is_causal: true, ..AttentionModuleOptions::default() };
            Box::new(move || {
                finish(device, burn_attention(query.clone(), key.clone(), value.clone(), None, None, options));
            })
        }
        BenchRow::Memory => unreachable!("memory is measured once, by `memory`"),
    }
}

/// Queries, keys and values.
fn heads(len: usize, device: &Device) -> [Tensor<4>; 3] {
    std::array::from_fn(|_| Tensor::random([1, N_HEADS, len, D_HEAD], Distribution::Normal(0.0, 1.0), device))
}

fn causal([query, key, value]: &[Tensor<4>; 3], kernel: AttentionKernel) -> Tensor<4> {
    let options = ScoreOptions { kernel, ..ScoreOptions::default() };
    let mask = AttentionMask::causal();
    scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context
}
