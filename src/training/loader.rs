//! Burn's data loaders over the windows of a text. An item is what one device reads for one optimizer step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use burn::train::Interrupter;

use super::windows::{Windows, dropout_seed};

/// What one device reads for one optimizer step.
#[derive(Clone, Debug)]
pub struct TrainingBatch {
    /// The step, counted from 1.
    pub(super) step: usize,
    /// The seed of dropout.
    pub(super) seed: u64,
    /// Windows of `seq + 1` tokens, one list for each forward and backward.
    pub(super) rows: Vec<Vec<Vec<i64>>>,
    /// On how many devices the step is computed.
    pub(super) devices: usize,
    /// Which of them reads this.
    pub(super) device: usize,
}

/// Windows that a model is measured on at once.
#[derive(Clone, Debug)]
pub struct ValidationBatch {
    /// Windows of `seq + 1` tokens.
    pub(super) rows: Vec<Vec<i64>>,
    /// Whether it is the first of a measurement.
    pub(super) is_first: bool,
    /// Whether it is the last of a measurement.
    pub(super) is_last: bool,
}

/// The steps of a run, in epochs of a fixed number of steps. The loaders of several devices give each of them its part of
/// every step's windows.
#[derive(Debug)]
pub(super) struct StepLoader {
    pub(super) windows: Arc<Windows>,
    pub(super) seed: u64,
    /// Windows that are computed at once, over all devices.
    pub(super) batch: usize,
    pub(super) accumulation: usize,
    pub(super) steps: usize,
    pub(super) steps_per_epoch: usize,
    pub(super) devices: usize,
    /// Which of the devices this loader is for.
    pub(super) device: usize,
    /// Steps that have been given out, here or in the run that this one goes on with.
    pub(super) given: AtomicUsize,
}

impl StepLoader {
    fn for_device(&self, device: usize) -> Self {
        let given = AtomicUsize::new(self.given.load(Ordering::SeqCst));
        Self { windows: Arc::clone(&self.windows), device, given, ..*self }
    }

    /// What this loader's device reads for a step.
    fn read(&self, step: usize) -> TrainingBatch {
        let part = self.batch / self.devices;
        let window = |micro: usize, row: usize| {
            let of_step = micro * self.batch + self.device * part + row;
            self.windows.shuffled((step - 1) * self.batch * self.accumulation + of_step)
        };
        let rows = (0..self.accumulation).map(|micro| (0..part).map(|row| window(micro, row)).collect());
        let seed = dropout_seed(self.seed, step, self.device);
        TrainingBatch { step, seed, rows: rows.collect(), devices: self.devices, device: self.device }
    }
}

impl DataLoader<TrainingBatch> for StepLoader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<TrainingBatch> + 'a> {
        let first = self.given.load(Ordering::SeqCst);
        let end = self.steps.min((first / self.steps_per_epoch + 1) * self.steps_per_epoch);
        Box::new(Steps { loader: self, first, next: first, end })
    }

    /// An item for each device and step of an epoch, so that equal slices stand for devices.
    fn num_items(&self) -> usize {
        self.steps_per_epoch * self.devices
    }

    fn to_device(&self, _device: &Device) -> Arc<dyn DataLoader<TrainingBatch>> {
        // Tokens become tensors where the model is.
        Arc::new(self.for_device(self.device))
    }

    fn slice(&self, start: usize, _end: usize) -> Arc<dyn DataLoader<TrainingBatch>> {
        Arc::new(self.for_device(start / self.steps_per_epoch))
    }
}

/// The steps of one epoch.
struct Steps<'a> {
    loader: &'a StepLoader,
    first: usize,
    next: usize,
    end: usize,
}

impl Iterator for Steps<'_> {
    type Item = Result<TrainingBatch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.next < self.end).then(|| {
            self.next += 1;
            self.loader.given.store(self.next, Ordering::SeqCst);
            Ok(self.loader.read(self.next))
        })
    }
}

impl DataLoaderIterator<TrainingBatch> for Steps<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.next - self.first, self.end - self.first, Some("steps".to_owned()))
    }
}

/// The windows of the text that a model is measured on.
#[derive(Clone)]
pub(super) struct ValidationLoader {
    /// None where nothing is measured.
    pub(super) windows: Option<Arc<Windows>>,
    pub(super) count: usize,
    pub(super) batch: usize,
    /// A request to stop also ends a measurement.
    pub(super) stop: Interrupter,
}

impl DataLoader<ValidationBatch> for ValidationLoader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<ValidationBatch> + 'a> {
        Box::new(Measurement { loader: self, next: 0 })
    }

    fn num_items(&self) -> usize {
        if self.windows.is_some() { self.count.div_ceil(self.batch) } else { 0 }
    }

    fn to_device(&self, _device: &Device) -> Arc<dyn DataLoader<ValidationBatch>> {
        Arc::new(self.clone())
    }

    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<ValidationBatch>> {
        Arc::new(self.clone())
    }
}

/// One measurement.
struct Measurement<'a> {
    loader: &'a ValidationLoader,
    next: usize,
}

impl Iterator for Measurement<'_> {
    type Item = Result<ValidationBatch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let ValidationLoader { windows, count, batch, stop } = self.loader;
        let windows = windows.as_ref()?;
        let start = self.next * batch;
        if start >= *count || stop.should_stop() {
            return None;
        }
        let end = (start + batch).min(*count);
        let rows = (start..end).map(|index| windows.in_order(index)).collect();
        self.next += 1;
        Some(Ok(ValidationBatch { rows, is_first: start == 0, is_last: end == *count }))
    }
}

impl DataLoaderIterator<ValidationBatch> for Measurement<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.next, self.loader.num_items(), Some("batches".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(batch: usize, accumulation: usize, devices: usize) -> StepLoader {
        StepLoader {
            windows: Arc::new(Windows::new((0..400).collect(), 5, 9)),
            seed: 9,
            batch,
            accumulation,
            steps: 7,
            steps_per_epoch: 3,
            devices,
            device: 0,
            given: AtomicUsize::new(0),
        }
    }

    fn epoch(loader: &dyn DataLoader<TrainingBatch>) -> Vec<TrainingBatch> {
        loader.iter().map(|batch| batch.expect("nothing fails")).collect()
    }

    #[test]
    fn epochs_end_where_they_should() {
        let loader = loader(2, 1, 1);
        let steps = |batches: Vec<TrainingBatch>| batches.iter().map(|batch| batch.step).collect::<Vec<_>>();
        assert_eq!(steps(epoch(&loader)), [1, 2, 3]);
        assert_eq!(steps(epoch(&loader)), [4, 5, 6]);
        assert_eq!(steps(epoch(&loader)), [7]);
        assert_eq!(steps(epoch(&loader)), Vec::<usize>::new());
        loader.given.store(4, Ordering::SeqCst);
        assert_eq!(steps(epoch(&loader)), [5, 6]);
    }

    #[test]
    fn a_step_reads_the_same_windows_however_it_is_cut() {
        let whole = epoch(&loader(8, 1, 1));
        let flat = |batch: &TrainingBatch| batch.rows.concat();
        for (batch, expected) in epoch(&loader(2, 4, 1)).iter().zip(&whole) {
            assert_eq!(batch.rows.len(), 4);
            assert_eq!(flat(batch), flat(expected));
        }
        let over_two = loader(8, 1, 2);
        assert_eq!(over_two.num_items(), 6);
        let parts: Vec<Vec<TrainingBatch>> =
            [0, 3].iter().map(|start| epoch(over_two.slice(*start, start + 3).as_ref())).collect();
        for (step, expected) in whole.iter().enumerate() {
            let both: Vec<Vec<i64>> = parts.iter().flat_map(|part| flat(&part[step])).collect();
            assert_eq!(both, flat(expected));
            assert_ne!(parts[0][step].seed, parts[1][step].seed);
        }
    }

    #[test]
    fn a_measurement_reads_every_window_once_and_stops_when_asked() {
        let windows = Some(Arc::new(Windows::new((0..60).collect(), 5, 0)));
        let loader = ValidationLoader { windows, count: 5, batch: 2, stop: Interrupter::new() };
        let batches: Vec<ValidationBatch> = loader.iter().map(|batch| batch.expect("nothing fails")).collect();
        let ends: Vec<(bool, bool, usize)> =
            batches.iter().map(|batch| (batch.is_first, batch.is_last, batch.rows.len())).collect();
        assert_eq!(ends, [(true, false, 2), (false, false, 2), (false, true, 1)]);
        loader.stop.stop(None);
        assert_eq!(loader.iter().count(), 0);
    }
}
