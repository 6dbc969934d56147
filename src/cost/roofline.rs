//! Work over traffic, and the least time that a machine needs for both
//! ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)).

use burn::tensor::{DType, FloatDType};
use serde::Serialize;

use super::kv_cache::bytes_of;
use super::products::{self, Call, Pairs, Product};
use super::training_compute::FORWARDS_PER_STEP;
use crate::error::Error;
use crate::model::{Logits, ModelConfig, ModelKind};

/// What a machine can do.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Floating-point operations per second.
    pub peak_flops: f64,
    /// Bytes per second between memory and the units that compute.
    pub bandwidth: f64,
}

impl Machine {
    /// A machine of `peak_flops` operations and `bandwidth` bytes per second.
    ///
    /// # Errors
    ///
    /// When one of them is not a number above 0.
    pub fn new(peak_flops: f64, bandwidth: f64) -> Result<Self, Error> {
        for (value, what) in [(peak_flops, "operations"), (bandwidth, "bytes")] {
            if !value.is_finite() || value <= 0.0 {
                return Err(Error::Input(format!(
                    "a machine's {what} per second must be a number above 0, got {value}"
                )));
            }
        }
        Ok(Self { peak_flops, bandwidth })
    }

    /// The operations per byte from which on a computation is bound by operations.
    pub fn ridge(&self) -> f64 {
        self.peak_flops / self.bandwidth
    }

    /// The least time for `flops` operations and `bytes` of traffic, which may overlap.
    pub fn time(&self, flops: u64, bytes: u64) -> LeastTime {
        let (compute_seconds, memory_seconds) = (flops as f64 / self.peak_flops, bytes as f64 / self.bandwidth);
        LeastTime {
            seconds: compute_seconds.max(memory_seconds),
            compute_seconds,
            memory_seconds,
            bound: if compute_seconds >= memory_seconds { Bound::Compute } else { Bound::Memory },
        }
    }
}

/// What keeps a computation from being faster.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The operations.
    Compute,
    /// The traffic to and from memory.
    Memory,
}

/// The least time of a computation.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct LeastTime {
    /// The longer of the two times.
    pub seconds: f64,
    /// The operations at the machine's peak.
    pub compute_seconds: f64,
    /// The traffic at the machine's bandwidth.
    pub memory_seconds: f64,
    /// Which of them is the longer.
    pub bound: Bound,
}

/// Work and traffic of one call or step.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations, every pair of query and key counted.
    pub flops: u64,
    /// The least traffic: weights, inputs and outputs of each product once, scores of attention never.
    pub bytes: u64,
    /// Operations per byte.
    pub intensity: f64,
    /// Tokens that are read or made.
    pub tokens: u64,
    /// The least time on the machine that was given.
    pub time: Option<LeastTime>,
    /// Tokens per second at that time.
    pub tokens_per_second: Option<f64>,
}

impl Work {
    fn new(flops: u64, bytes: u64, tokens: u64, machine: Option<&Machine>) -> Self {
        let time = machine.map(|machine| machine.time(flops, bytes));
        Self {
            flops,
            bytes,
            intensity: flops as f64 / bytes as f64,
            tokens,
            time,
            tokens_per_second: time.map(|time| tokens as f64 / time.seconds),
        }
    }
}

/// Work, traffic and least time of what a model is used for.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// The machine that the times are for.
    pub machine: Option<Machine>,
    /// The machine's operations per byte.
    pub ridge: Option<f64>,
    /// A forward over whole sequences, with logits of every position.
    pub forward: Work,
    /// The first call of generation: as `forward`, with logits of the last position only. `None` for an encoder.
    pub prefill: Option<Work>,
    /// A later call of generation: the last token of such sequences, those before it being in the cache. `None` for an
    /// encoder.
    pub decode: Option<Work>,
    /// Forward, backward and AdamW's update.
    pub training_step: Work,
}

/// The roofline of the model that `config` describes for sequences as in `call`, in numbers of `dtype`.
pub fn roofline(config: &ModelConfig, call: Call, dtype: FloatDType, machine: Option<&Machine>) -> Roofline {
    let work = |call: Call| {
        let (flops, numbers) = sum(&products::of_model(config, call));
        let tokens = call.batch as u64 * call.new as u64;
        Work::new(flops, numbers.saturating_mul(bytes_of(dtype)), tokens, machine)
    };
    let whole = Call { logits: Logits::All, ..call };
    let generates = config.kind == ModelKind::Decoder;
    let forward = work(whole);
    let step_bytes = forward.bytes.saturating_mul(FORWARDS_PER_STEP).saturating_add(update_bytes(config, dtype));
    let step_flops = forward.flops.saturating_mul(FORWARDS_PER_STEP);
    Roofline {
        machine: machine.copied(),
        ridge: machine.map(Machine::ridge),
        forward,
        prefill: generates.then(|| work(Call { logits: Logits::Last, ..call })),
        decode: generates.then(|| work(Call::step(call.batch, call.new - 1).with_source(call.source))),
        training_step: Work::new(step_flops, step_bytes, forward.tokens, machine),
    }
}

/// Operations, and numbers read and written.
fn sum(products: &[Product]) -> (u64, u64) {
    let add = |sum: u64, value: u64| sum.saturating_add(value);
    let flops = products.iter().map(|product| product.flops(Pairs::Full)).fold(0, add);
    (flops, products.iter().map(Product::numbers).fold(0, add))
}

/// What AdamW reads (gradients, weights, moments) and writes (weights, moments).
fn update_bytes(config: &ModelConfig, dtype: FloatDType) -> u64 {
    let (bytes, widened) = (bytes_of(dtype), bytes_of(dtype).max(DType::F32.size() as u64));
    // In half precision, the weights that are updated are a copy in 32 bits, from which the others are written.
    let weights = if widened > bytes { 2 * widened + bytes } else { 2 * bytes };
    config.n_parameters().saturating_mul(bytes + weights + 4 * widened)
}
