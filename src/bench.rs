//! Measurements: a transformer block and attention beside Burn's own, published models, and a step of training.

mod memory;
mod models;
mod modules;
mod row;
mod task;
#[cfg(feature = "train")]
mod training;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType};
use serde::Serialize;

use crate::attention::AttentionKernel;
use crate::cost::Machine;
use crate::error::Error;
pub use row::BenchRow;
pub(crate) use task::finish;
use task::{Task, Work};

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
    /// The shortest and the longest run.
    pub spread: [f64; 2],
    /// Work per time, or memory.
    pub rate: f64,
    /// The rate's unit: `GFLOP/s`, `GB/s` or `bytes`.
    pub unit: &'static str,
    /// The rate over that of large matrix products (`GFLOP/s`) or of passes over memory (`GB/s`) on the device, measured in
    /// the same run; `None` of memory.
    pub share_of_limit: Option<f64>,
    /// Tokens that a model reads or makes per second.
    pub tokens_per_second: Option<f64>,
}

/// How rows are measured.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Runs of each row, of which the median counts. Fewer, but at least three, count where a group of rows takes more than
    /// a minute. Default: 7.
    pub samples: usize,
    /// The folder that holds the models of [`BenchRow::Decode`], [`BenchRow::DecodeQuantised`], [`BenchRow::Prefill`] and
    /// [`BenchRow::Embed`], each in a folder `smollm2-135m-instruct` or `all-minilm-l6-v2`.
    pub models: Option<PathBuf>,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { samples: 7, models: None }
    }
}

/// What [`run`] found.
#[derive(Clone, Debug, Default)]
pub struct BenchReport {
    /// The rows that could run.
    pub measured: Vec<Measurement>,
    /// The rows that could not, each with the reason.
    pub skipped: Vec<(BenchRow, String)>,
    /// What the device reaches: the limit that shares are of. Measured where a row has a share.
    pub machine: Option<Machine>,
}

/// Measures `rows` on `device`, after one or two runs of each that do not count. `backend` is the name to be shown.
///
/// # Errors
///
/// When the clock shows no time for what the device reaches.
///
/// # Panics
///
/// Where the backend's own code does.
pub fn run(device: &Device, backend: &str, rows: &[BenchRow], options: &BenchOptions) -> Result<BenchReport, Error> {
    let mut report = BenchReport::default();
    let rows: Vec<BenchRow> = BenchRow::ALL.into_iter().filter(|row| rows.contains(row)).collect();
    for group in rows.chunk_by(|a, b| a.is_beside(*b)) {
        device.seed(0);
        if group == [BenchRow::Memory] {
            match memory::of_attention(device) {
                Ok((shape, seconds, bytes)) => report.measured.push(Measurement {
                    row: BenchRow::Memory.name().to_owned(),
                    backend: backend.to_owned(),
                    shape,
                    samples: 1,
                    seconds,
                    spread: [seconds, seconds],
                    rate: bytes as f64,
                    unit: "bytes",
                    share_of_limit: None,
                    tokens_per_second: None,
                }),
                Err(reason) => report.skipped.push((BenchRow::Memory, reason)),
            }
            continue;
        }
        let machine = match report.machine {
            Some(machine) => machine,
            None => *report.machine.insert(Machine::measure(device, FloatDType::F32)?),
        };
        let mut tasks = Vec::new();
        for row in group {
            match prepare(*row, device, options) {
                Ok(task) => tasks.push((*row, task)),
                Err(reason) => report.skipped.push((*row, reason)),
            }
        }
        let times = in_turn(tasks.iter_mut().map(|(_, task)| task).collect(), options.samples);
        for ((row, task), times) in tasks.into_iter().zip(times) {
            report.measured.push(measurement(row, backend, task, &times, &machine));
        }
    }
    Ok(report)
}

fn measurement(row: BenchRow, backend: &str, task: Task, times: &[f64], machine: &Machine) -> Measurement {
    let seconds = times[times.len() / 2];
    let (rate, unit, share) = match task.work {
        Work::Flops(flops) => (flops / seconds / 1e9, "GFLOP/s", flops / seconds / machine.peak_flops),
        Work::Bytes(bytes) => (bytes / seconds / 1e9, "GB/s", bytes / seconds / machine.bandwidth),
    };
    Measurement {
        row: row.name().to_owned(),
        backend: backend.to_owned(),
        shape: task.shape,
        samples: times.len(),
        seconds,
        spread: [times[0], times[times.len() - 1]],
        rate,
        unit,
        share_of_limit: Some(share),
        tokens_per_second: task.tokens.map(|tokens| tokens as f64 / seconds),
    }
}

/// The task of a row, or what keeps it from running.
fn prepare<'a>(row: BenchRow, device: &'a Device, options: &BenchOptions) -> Result<Task<'a>, String> {
    let model = |name: &str| match &options.models {
        Some(models) => Ok(models.join(name)),
        None => Err("no folder of models is given".to_owned()),
    };
    let said = |error: Error| error.to_string();
    match row {
        BenchRow::Memory => Err("memory is measured once, not in turn with others".to_owned()),
        BenchRow::Block => Ok(modules::block(device)),
        BenchRow::BurnNnBlock => Ok(modules::burn_nn_block(device)),
        BenchRow::Attention => Ok(modules::attention(device, AttentionKernel::Auto)),
        BenchRow::AttentionComposed | BenchRow::BurnAttention => match modules::obstacle_to_scores(device) {
            Some(reason) => Err(reason),
            None if row == BenchRow::BurnAttention => Ok(modules::burn_attention_task(device)),
            None => Ok(modules::attention(device, AttentionKernel::Composed)),
        },
        BenchRow::Decode => models::decode(&model(DECODER)?, device).map_err(said),
        BenchRow::DecodeQuantised => models::decode_quantised(&model(DECODER)?, device).map_err(said)?,
        BenchRow::Prefill => models::prefill(&model(DECODER)?, device).map_err(said),
        BenchRow::Embed => models::embed(&model("all-minilm-l6-v2")?, device).map_err(said),
        #[cfg(feature = "train")]
        BenchRow::TrainStep => Ok(training::train_step(device)),
        #[cfg(not(feature = "train"))]
        BenchRow::TrainStep => Err("this program is built without the feature `train`".to_owned()),
    }
}

const DECODER: &str = "smollm2-135m-instruct";

/// Times of `tasks`, one run of each after the other, in ascending order. Slow devices get fewer.
fn in_turn(mut tasks: Vec<&mut Task>, samples: usize) -> Vec<Vec<f64>> {
    const LONG_ENOUGH: Duration = Duration::from_secs(60);
    const FEWEST: usize = 3;
    let mut times = vec![Vec::with_capacity(samples); tasks.len()];
    let mut round = || {
        for (task, times) in tasks.iter_mut().zip(&mut times) {
            times.push((task.run)().as_secs_f64());
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
    for times in &mut times {
        times.drain(..warm_up);
        times.sort_by(f64::total_cmp);
    }
    times
}
