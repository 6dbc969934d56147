//! The learning rate over the steps: a linear warm-up, then half a cosine
//! ([Loshchilov and Hutter 2016](https://arxiv.org/abs/1608.03983), without restarts).

use std::f64::consts::PI;

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use serde::{Deserialize, Serialize};

use crate::error::Faults;

/// Configuration of a [`WarmupCosine`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// The highest learning rate, reached at the end of the warm-up. Default: 0.001.
    pub learning_rate: f64,
    /// The learning rate of the last step. Default: a tenth of the highest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_learning_rate: Option<f64>,
    /// Steps over which the learning rate rises from 0. Default: a tenth of the steps, at most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<usize>,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { learning_rate: 1e-3, min_learning_rate: None, warmup_steps: None }
    }
}

impl ScheduleConfig {
    /// The schedule of a run of `steps`, of which `done` are done.
    pub fn init(&self, steps: usize, done: usize) -> WarmupCosine {
        WarmupCosine {
            highest: self.learning_rate,
            lowest: self.min_learning_rate.unwrap_or(self.learning_rate / 10.0),
            warmup: self.warmup_steps.unwrap_or_else(|| (steps / 10).min(1000)),
            steps,
            done,
        }
    }

    pub(super) fn check(&self, steps: usize, faults: &mut Faults) {
        let learning_rate = self.learning_rate;
        faults.positive_number(learning_rate, "learning_rate");
        if let Some(lowest) = self.min_learning_rate {
            faults.require((0.0..=learning_rate).contains(&lowest), "min_learning_rate", || {
                format!("must lie between 0 and learning_rate = {learning_rate}, got {lowest}")
            });
        }
        if let Some(warmup) = self.warmup_steps {
            faults
                .require(warmup <= steps, "warmup_steps", || format!("must be at most steps = {steps}, got {warmup}"));
        }
    }
}

/// A learning rate that is a function of the step alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupCosine {
    highest: f64,
    lowest: f64,
    warmup: usize,
    steps: usize,
    done: usize,
}

impl WarmupCosine {
    /// The learning rate of step `step`, counted from 1.
    pub fn at(&self, step: usize) -> f64 {
        if step <= self.warmup {
            return self.highest * step as f64 / self.warmup as f64;
        }
        let (past, whole) = (step - self.warmup, self.steps.saturating_sub(self.warmup).max(1));
        let progress = (past as f64 / whole as f64).min(1.0);
        self.lowest + 0.5 * (self.highest - self.lowest) * (1.0 + (PI * progress).cos())
    }
}

/// The key of the number of steps in a record.
const DONE: &str = "done";

impl LrScheduler for WarmupCosine {
    fn step(&mut self) -> f64 {
        self.done += 1;
        self.at(self.done)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar(DONE, self.done)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        if let Some(done) = record.scalar(DONE) {
            self.done = done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_and_falls() {
        let config = ScheduleConfig { learning_rate: 1.0, min_learning_rate: Some(0.2), warmup_steps: Some(4) };
        let mut schedule = config.init(12, 0);
        let rates: Vec<f64> = (0..12).map(|_| schedule.step()).collect();
        // By hand: quarters of the way up, then 0.2 + 0.4 (1 + cos(k π / 8)).
        let root = 2.0_f64.sqrt();
        let cosines = [(2.0 + root).sqrt() / 2.0, root / 2.0, (2.0 - root).sqrt() / 2.0, 0.0];
        let falling = cosines.iter().map(|cosine| 0.6 + 0.4 * cosine);
        let rising = cosines[..3].iter().rev().map(|cosine| 0.6 - 0.4 * cosine);
        let expected: Vec<f64> = [0.25, 0.5, 0.75, 1.0].into_iter().chain(falling).chain(rising).chain([0.2]).collect();
        for (rate, expected) in rates.iter().zip(&expected) {
            assert!((rate - expected).abs() < 1e-9, "{rates:?} {expected:?}");
        }
        assert_eq!(rates.len(), expected.len());
    }

    #[test]
    fn goes_on_where_it_was() {
        let config = ScheduleConfig::default();
        let mut whole = config.init(30, 0);
        let rates: Vec<f64> = (0..30).map(|_| whole.step()).collect();
        let mut rest = config.init(30, 17);
        assert_eq!(rest.step(), rates[17]);
        let mut loaded = config.init(30, 0);
        loaded.load_record(rest.to_record());
        assert_eq!(loaded.step(), rates[18]);
    }

    #[test]
    fn a_run_without_warm_up_begins_below_its_highest_rate() {
        let config = ScheduleConfig { warmup_steps: Some(0), ..ScheduleConfig::default() };
        let schedule = config.init(4, 0);
        assert!(schedule.at(1) < 1e-3 && schedule.at(1) > 8e-4);
        assert_eq!(schedule.at(4), 1e-4);
    }
}
