//! What a run keeps count of while burn-train's loop drives it: the steps, their losses, the log, checkpoints, samples,
//! and whether to stop. The module that is trained carries it along, through all threads of the loop.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use burn::train::Interrupter;

use super::checkpoint::{CheckpointStore, SavedState, Snapshot, TextStamp};
use super::config::TrainingConfig;
use super::events::{CheckpointReport, Observer, SampleReport, StepReport, TrainingEvent, ValidationReport};
use super::exchange::Exchange;
use super::finite::first_not_finite;
use super::metrics_log::MetricsLog;
use super::text::TextCoder;
use crate::error::Error;
use crate::generation::{GenerationOptions, Prompt, Sampling, TextGenerator};
use crate::model::Transformer;

/// What does not change in a run.
pub(super) struct Plan {
    pub config: TrainingConfig,
    pub coder: TextCoder,
    pub store: CheckpointStore,
    pub text: TextStamp,
    /// Steps that were done before.
    pub done: usize,
    /// How many copies of the model are updated, each by itself: more than one in distributed data parallelism.
    pub copies: usize,
    /// How a user asks the run to stop.
    pub requested: Interrupter,
    /// How the run stops burn-train's loop.
    pub interrupter: Interrupter,
}

/// A shared handle on the state of a run.
#[derive(Clone)]
pub(super) struct Session {
    plan: Arc<Plan>,
    state: Arc<Mutex<State>>,
    exchange: Arc<Exchange>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Session")
    }
}

struct State {
    /// Updates of all copies.
    updates: usize,
    /// The losses of steps that are under way.
    losses: BTreeMap<usize, f64>,
    /// At which step the run stops, where it was asked to.
    stop_at: Option<usize>,
    log: MetricsLog,
    observer: Observer,
    clock: Clock,
    /// The sum of losses of a measurement under way, and over how many windows.
    measured: (f64, usize),
    last_sample: String,
    outcome: Outcome,
}

/// How a run went.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Steps that were made in this run.
    pub steps: usize,
    /// The report of the last of them.
    pub last: Option<StepReport>,
    /// The last measurement.
    pub validation: Option<ValidationReport>,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Why the run cannot go on.
    pub failure: Option<Error>,
}

/// One update of one copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// The step, counted from 1.
    pub step: usize,
    /// The first copy that makes a step reports it; all of them hold the same numbers.
    is_reported: bool,
    loss: f64,
}

impl Session {
    pub fn new(plan: Plan, log: MetricsLog, observer: Observer) -> Self {
        let state = State {
            updates: 0,
            losses: BTreeMap::new(),
            stop_at: None,
            log,
            observer,
            clock: Clock::default(),
            measured: (0.0, 0),
            last_sample: String::new(),
            outcome: Outcome::default(),
        };
        Self { plan: Arc::new(plan), state: Arc::new(Mutex::new(state)), exchange: Arc::default() }
    }

    pub fn clip_norm(&self) -> f64 {
        self.plan.config.optimizer.clip_norm
    }

    /// Tokens read per second, lately; NaN before the first step.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens_per_step() / self.state().clock.seconds_per_step
    }

    /// The text that the model wrote last; empty before the first one.
    pub fn last_sample(&self) -> String {
        self.state().last_sample.clone()
    }

    /// Adds a device's part of the mean loss of a step.
    pub fn add_loss(&self, step: usize, loss: f64) {
        *self.state().losses.entry(step).or_insert(0.0) += loss;
    }

    /// The gradients that a copy is updated by: those of all copies together, where there are several.
    pub fn reduce<M: Module>(
        &self,
        module: &M,
        copy: usize,
        gradients: GradientsParams,
        device: &Device,
    ) -> GradientsParams {
        match self.plan.copies {
            1 => gradients,
            // After a failure nothing is updated any more.
            copies => self.exchange.sum(module, copy, copies, gradients, device).unwrap_or_default(),
        }
    }

    /// To be called before each update of a copy.
    pub fn begin_update(&self) -> Update {
        let mut state = self.state();
        // Copies wait for each other's gradients, so that all make one step before any makes the next.
        let step = self.plan.done + state.updates / self.plan.copies + 1;
        let is_reported = state.updates.is_multiple_of(self.plan.copies);
        state.updates += 1;
        let loss = if is_reported { state.losses.remove(&step).unwrap_or(f64::NAN) } else { 0.0 };
        Update { step, is_reported, loss }
    }

    /// Whether an update may be made: not after a failure. Where loss or gradient are not finite, the run stops before it.
    pub fn may_update(&self, update: Update, gradient_norm: f64) -> bool {
        if self.state().outcome.failure.is_some() {
            return false;
        }
        let is_sound = update.loss.is_finite() && gradient_norm.is_finite();
        if !is_sound {
            let Update { step, loss, .. } = update;
            self.fail(
                self.not_finite(step, format!("the loss is {loss} and the norm of its gradient {gradient_norm}")),
            );
        }
        is_sound
    }

    /// To be called after each update of a copy.
    pub fn finish_update(
        &self,
        update: Update,
        learning_rate: f64,
        gradient_norm: f64,
        model: &Transformer,
        optimizer: &ModuleOptimizer,
    ) {
        if update.is_reported
            && let Err(error) = self.report(update, learning_rate, gradient_norm, model, optimizer)
        {
            self.fail(error);
        }
    }

    /// Adds a batch to a measurement, of `windows` windows with this mean loss.
    pub fn add_measured(&self, loss: f64, windows: usize, is_first: bool, is_last: bool) {
        let mut state = self.state();
        let (sum, count) = if is_first { (0.0, 0) } else { state.measured };
        state.measured = (sum + loss * windows as f64, count + windows);
        if is_last {
            let validation_loss = state.measured.0 / state.measured.1 as f64;
            let step = self.plan.done + state.updates / self.plan.copies;
            let report = ValidationReport { step, validation_loss, perplexity: validation_loss.exp() };
            state.outcome.validation = Some(report);
            let written = state.tell(&TrainingEvent::Validation(report));
            state.clock = state.clock.restarted();
            drop(state);
            if let Err(error) = written {
                self.fail(error);
            }
        }
    }

    /// Stops the run because of `error`. The first one is kept; later ones follow from it.
    pub fn fail(&self, error: Error) {
        self.state().outcome.failure.get_or_insert(error);
        self.plan.interrupter.stop(None);
        self.exchange.close();
    }

    /// How the run went; to be called when it is over.
    pub fn outcome(&self) -> Outcome {
        std::mem::take(&mut self.state().outcome)
    }

    fn report(
        &self,
        Update { step, loss, .. }: Update,
        learning_rate: f64,
        gradient_norm: f64,
        model: &Transformer,
        optimizer: &ModuleOptimizer,
    ) -> Result<(), Error> {
        let config = &self.plan.config;
        let mut state = self.state();
        state.clock.tick();
        let seconds_per_step = state.clock.seconds_per_step;
        let report = StepReport {
            step,
            loss,
            learning_rate,
            gradient_norm,
            tokens_per_second: self.tokens_per_step() / seconds_per_step,
            seconds_left: config.steps.saturating_sub(step) as f64 * seconds_per_step,
        };
        state.outcome.steps += 1;
        state.outcome.last = Some(report);
        state.tell(&TrainingEvent::Step(report))?;
        if config.samples.every > 0 && step.is_multiple_of(config.samples.every) {
            let sample = self.sample(model)?;
            state.last_sample.clone_from(&sample);
            state.tell(&TrainingEvent::Sample(SampleReport { step, sample }))?;
            state.clock = state.clock.restarted();
        }
        if state.stop_at.is_none() && self.plan.requested.should_stop() {
            // Other copies may have looked already whether to stop, and wait for this one in the next step.
            state.stop_at = Some(if self.plan.copies > 1 { step + 1 } else { step });
        }
        let is_stopped = state.stop_at.is_some_and(|stop_at| step >= stop_at);
        if is_stopped || step == config.steps || step.is_multiple_of(config.checkpoints.every) {
            let checkpoint = self.checkpoint(step, model, optimizer)?;
            state.log.sync()?;
            state.outcome.checkpoint = Some(checkpoint.clone());
            state.tell(&TrainingEvent::Checkpoint(CheckpointReport { step, checkpoint }))?;
            state.clock = state.clock.restarted();
        }
        if is_stopped {
            self.plan.interrupter.stop(Some("asked to"));
        }
        Ok(())
    }

    fn sample(&self, model: &Transformer) -> Result<String, Error> {
        let samples = &self.plan.config.samples;
        let model = model.valid();
        let generator = TextGenerator::new(&model, self.plan.coder.parts())?;
        let prompt = generator.encode(&Prompt::Text(samples.prompt.clone()))?;
        let sampling = Sampling { temperature: samples.temperature, ..Sampling::greedy() };
        let options = GenerationOptions::new(samples.tokens)
            .with_sampling(sampling)
            .with_seed(self.plan.config.seed)
            .with_stop_ids(self.plan.coder.parts().stop_ids.clone());
        let generated = generator.generate(&[prompt], &options, &mut |_, _| ControlFlow::Continue(()))?;
        let text = generated.outputs.into_iter().map(|output| output.text);
        Ok(samples.prompt.clone() + &text.collect::<String>())
    }

    fn checkpoint(&self, step: usize, model: &Transformer, optimizer: &ModuleOptimizer) -> Result<PathBuf, Error> {
        let model = model.valid();
        if let Some(name) = first_not_finite(&model) {
            return Err(self.not_finite(step, format!("the update made parameter `{name}` so")));
        }
        let state = SavedState { step, text: self.plan.text.clone(), config: self.plan.config.clone() };
        self.plan.store.save(Snapshot {
            model: &model,
            coder: &self.plan.coder,
            optimizer: optimizer.to_record(),
            state: &state,
        })
    }

    fn not_finite(&self, step: usize, what: String) -> Error {
        let kept = match self.plan.store.latest() {
            Ok(Some(path)) => format!("the last checkpoint is `{}`", path.display()),
            _ => "there is no checkpoint yet".to_owned(),
        };
        let advice = "a lower learning rate, a longer warm-up or clipping may help";
        Error::Training(format!("numbers are no longer finite at step {step}: {what}; {kept}; {advice}"))
    }

    fn tokens_per_step(&self) -> f64 {
        (self.plan.config.windows_per_step() * self.plan.config.seq) as f64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Writes an event into the log and tells the observer.
    fn tell(&mut self, event: &TrainingEvent) -> Result<(), Error> {
        (self.observer)(event);
        match event {
            TrainingEvent::Checkpoint(_) => Ok(()),
            _ => self.log.write(event),
        }
    }
}

/// How long a step takes, lately.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// When the last step ended; none where something else came in between.
    last: Option<Instant>,
    /// An average that forgets.
    seconds_per_step: f64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { last: Some(Instant::now()), seconds_per_step: f64::NAN }
    }
}

impl Clock {
    /// To be called after each step.
    fn tick(&mut self) {
        /// The weight of the average so far.
        const MEMORY: f64 = 0.9;
        let now = Instant::now();
        if let Some(last) = self.last {
            let seconds = (now - last).as_secs_f64();
            self.seconds_per_step = match self.seconds_per_step.is_nan() {
                true => seconds,
                false => MEMORY * self.seconds_per_step + (1.0 - MEMORY) * seconds,
            };
        }
        self.last = Some(now);
    }

    /// The clock after something that was no step.
    fn restarted(self) -> Self {
        Self { last: Some(Instant::now()), ..self }
    }
}
