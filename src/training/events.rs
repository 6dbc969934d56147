//! What a run reports while it goes on.

use std::path::PathBuf;

use serde::Serialize;

/// Something that happened in a run.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(untagged)]
pub enum TrainingEvent {
    /// An optimizer step was made.
    Step(StepReport),
    /// The model was measured on text that it is not trained on.
    Validation(ValidationReport),
    /// The model wrote a text.
    Sample(SampleReport),
    /// The state was written.
    Checkpoint(CheckpointReport),
}

/// One optimizer step.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: usize,
    /// The mean loss over the tokens that the step read, before its update, in nats.
    pub loss: f64,
    /// The learning rate of the update.
    pub learning_rate: f64,
    /// The norm of the gradient over all parameters, before it was clipped.
    pub gradient_norm: f64,
    /// Tokens read per second, lately.
    pub tokens_per_second: f64,
    /// How long the remaining steps will take at that rate.
    pub seconds_left: f64,
}

/// A measurement on text that the model is not trained on.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct ValidationReport {
    /// After which step.
    pub step: usize,
    /// The mean loss, in nats per token.
    pub validation_loss: f64,
    /// Its exponential.
    pub perplexity: f64,
}

/// A text that the model wrote.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct SampleReport {
    /// After which step.
    pub step: usize,
    /// The text, with what it continues.
    pub sample: String,
}

/// A state that was written.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// After which step.
    pub step: usize,
    /// The folder.
    pub checkpoint: PathBuf,
}

/// Who is told what happens.
pub type Observer = Box<dyn FnMut(&TrainingEvent) + Send>;
