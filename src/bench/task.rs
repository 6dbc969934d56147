//! Something that can be run and timed.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

/// What a run does at least, and what bounds its time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Floating-point operations, two for each multiplication and addition.
    Flops(f64),
    /// Bytes that are read.
    Bytes(f64),
}

/// One row, its weights and inputs being ready.
pub(super) struct Task<'a> {
    /// Of the input.
    pub shape: Vec<usize>,
    pub work: Work,
    /// Tokens that one run reads or makes, of a whole model.
    pub tokens: Option<usize>,
    /// Runs once, and gives the time that counts.
    pub run: Box<dyn FnMut() -> Duration + 'a>,
}

/// Waits until `output` is there, and reads a number of it.
pub(crate) fn finish<const D: usize>(device: &Device, output: Tensor<D>) {
    let first = output.slice(std::array::from_fn::<_, D, _>(|_| 0..1)).into_data();
    device.sync().unwrap_or_else(|error| panic!("{error}"));
    std::hint::black_box(first);
}

/// How long `run` takes.
pub(super) fn timed(mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}
