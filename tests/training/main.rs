//! Training: the numbers of its steps, what they depend on, and what is on the disk afterwards.

#![cfg(all(feature = "train", feature = "flex"))]

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod devices;
mod dropout;
mod lora;
mod repetition;
mod results;
mod torch;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use burnformer::Error;
use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{ModelConfig, ModelKind};
use burnformer::positions::Positions;
use burnformer::training::{
    ScheduleConfig, Start, TrainingConfig, TrainingEvent, TrainingRun, TrainingSummary, ValidationConfig,
};
use tempfile::TempDir;

/// Keeps other tests of this program waiting: what flex draws at random comes from one generator.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A decoder over bytes, of two layers.
fn model() -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(16, 2);
    ModelConfig::new(ModelKind::Decoder, 2, 32, attention, FeedForwardConfig::new(16, 40))
        .with_embedding(EmbeddingConfig::new(256))
        .with_positions(Positions::rotary(RotaryConfig::default()))
        .with_final_norm(true)
        .with_head(HeadConfig::new(true))
}

/// A short run of it.
fn config() -> TrainingConfig {
    TrainingConfig {
        steps: 8,
        batch: 4,
        seq: 12,
        seed: 3,
        schedule: ScheduleConfig { learning_rate: 0.01, ..ScheduleConfig::default() },
        validation: ValidationConfig { share: 0.0, ..ValidationConfig::default() },
        ..TrainingConfig::new(model())
    }
}

/// Words of a rhyme in an order of its own, a few hundred bytes.
fn rhyme() -> String {
    let mut numbers = common::Numbers::new(5);
    let words = ["the", "cat", "sat", "on", "a", "mat", "and", "ate", "hat", "that"];
    (0..150).map(|_| words[numbers.below(words.len())]).collect::<Vec<_>>().join(" ")
}

/// What a run has left.
struct Trained {
    summary: TrainingSummary,
    events: Vec<TrainingEvent>,
}

impl Trained {
    /// The loss of each step.
    fn losses(&self) -> Vec<f64> {
        let loss = |event: &TrainingEvent| match event {
            TrainingEvent::Step(report) => Some(report.loss),
            _ => None,
        };
        self.events.iter().filter_map(loss).collect()
    }

    /// The losses of all measurements.
    fn measured(&self) -> Vec<f64> {
        let loss = |event: &TrainingEvent| match event {
            TrainingEvent::Validation(report) => Some(report.validation_loss),
            _ => None,
        };
        self.events.iter().filter_map(loss).collect()
    }
}

/// A run that is ready, and the events that it will have had.
fn prepared(
    config: &TrainingConfig,
    start: Start,
    text: &str,
    folder: &Path,
) -> (TrainingRun, Arc<Mutex<Vec<TrainingEvent>>>) {
    let data = folder.join("text.txt");
    std::fs::write(&data, text).expect("the text is written");
    let events = Arc::new(Mutex::new(Vec::new()));
    let run =
        TrainingRun::new(config.clone(), start, &data, &folder.join("out")).unwrap_or_else(|error| panic!("{error}"));
    let told = Arc::clone(&events);
    (run.observed_by(move |event| told.lock().expect("no panic").push(event.clone())), events)
}

/// Runs and collects what happened.
fn finish(run: TrainingRun, events: &Mutex<Vec<TrainingEvent>>) -> Result<Trained, Error> {
    let summary = run.run()?;
    Ok(Trained { summary, events: std::mem::take(&mut events.lock().expect("no panic")) })
}

/// Trains from drawn weights on one device, in a folder that is left.
fn train_in(folder: &TempDir, config: &TrainingConfig, text: &str, device: &Device) -> Trained {
    let (run, events) = prepared(config, drawn(config), text, folder.path());
    finish(run.on_device(device.clone()), &events).unwrap_or_else(|error| panic!("{error}"))
}

/// Trains from drawn weights on one device.
fn train(config: &TrainingConfig, text: &str, device: &Device) -> Trained {
    train_in(&tempfile::tempdir().expect("a temporary folder"), config, text, device)
}

/// The drawn model of a configuration.
fn drawn(config: &TrainingConfig) -> Start {
    match &config.model {
        Some(burnformer::training::ModelSource::Config(model)) => Start::Drawn(model.clone()),
        _ => panic!("these configurations hold their model"),
    }
}
