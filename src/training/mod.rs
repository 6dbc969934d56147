//! Training a language model on a text, on burn-train's learner.
//!
//! A [`TrainingRun`] reads a text, cuts it into windows and trains a [`Transformer`](crate::model::Transformer) to give
//! each token a high probability after those before it. Its folder is then the folder of an ordinary model. The order of
//! windows, dropout and the learning rate are functions of the configuration and the step, and weights are drawn on the
//! host: on one kind of device a run repeats itself, also where it is stopped and goes on.

mod checkpoint;
mod clipping;
mod config;
mod dashboard;
mod events;
mod exchange;
mod finite;
mod folder;
mod learner;
mod loader;
mod loss;
mod metrics_log;
mod optimizer;
mod parallelism;
mod run;
mod schedule;
mod session;
mod silence;
mod text;
mod tokens;
mod windows;

pub use config::{BYTES, CheckpointConfig, ModelSource, SampleConfig, TrainingConfig, ValidationConfig};
#[cfg(feature = "cli")]
pub use dashboard::dashboard;
pub use events::{CheckpointReport, Observer, SampleReport, StepReport, TrainingEvent, ValidationReport};
pub use learner::window_loss;
pub use loss::next_token_loss;
pub use optimizer::{OptimizerConfig, decayed_parameters};
pub use parallelism::Parallelism;
pub use run::{Start, TrainingRun, TrainingSummary};
pub use schedule::{ScheduleConfig, WarmupCosine};
pub use text::TextCoder;
pub use windows::Windows;
