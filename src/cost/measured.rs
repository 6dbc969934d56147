//! What a backend reaches on this machine: the rate of large matrix products, and of passes over memory.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, FloatDType, Tensor};

use super::roofline::Machine;
use crate::bench::finish;
use crate::error::Error;

/// Products grow until one takes this long, so that starting them does not count.
const LONG_ENOUGH: Duration = Duration::from_millis(100);
/// Sides of the products: from 256 to 4096 numbers, 64 MiB in 32 bits.
const SIDES: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// Numbers of a pass over memory, 64 MiB in 32 bits: more than caches hold, and within the buffers of small GPUs.
const STREAM: usize = 16 << 20;
/// Runs of which the fastest counts: a peak is what a machine can reach.
const RUNS: usize = 5;

impl Machine {
    /// Measures products of square matrices and scalings of a long vector in place, in numbers of `dtype`; a few seconds.
    ///
    /// # Errors
    ///
    /// When the clock shows no time for a run.
    ///
    /// # Panics
    ///
    /// Where the backend's own code does.
    pub fn measure(device: &Device, dtype: FloatDType) -> Result<Self, Error> {
        let random = Distribution::Uniform(-1.0, 1.0);
        let mut peak_flops = 0f64;
        for side in SIDES {
            let matrix = Tensor::<2>::random([side, side], random, device).cast(dtype);
            let fastest = fastest(|| finish(device, matrix.clone().matmul(matrix.clone())));
            peak_flops = peak_flops.max(2.0 * (side as f64).powi(3) / fastest.as_secs_f64());
            if fastest > LONG_ENOUGH {
                break;
            }
        }
        let mut vector = Tensor::<1>::random([STREAM], random, device).cast(dtype);
        let bytes = 2 * STREAM * vector.dtype().size();
        let fastest = fastest(|| {
            vector.inplace(|vector| vector * -1.0);
            finish(device, vector.clone());
        });
        Self::new(peak_flops, bytes as f64 / fastest.as_secs_f64())
    }
}

/// The shortest of some runs, after one that does not count.
fn fastest(mut run: impl FnMut()) -> Duration {
    run();
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..RUNS).map(|_| time(&mut run)).min().unwrap_or_default()
}
