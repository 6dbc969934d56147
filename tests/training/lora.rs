//! Adapters that are trained in place of weights.

use burn::tensor::FloatDType;
use burnformer::adapters::{LoraConfig, Projection, merge_adapters};
use burnformer::model::{ModelInput, Transformer};
use burnformer::pretrained::{Checkpoint, load_adapters};
use burnformer::training::CheckpointConfig;

use super::common::*;
use super::*;

fn load(folder: &Path) -> Transformer {
    let checkpoint = Checkpoint::open(folder).unwrap_or_else(|error| panic!("{error}"));
    checkpoint.load(&flex(), FloatDType::F32).unwrap_or_else(|error| panic!("{error}")).0
}

fn logits(model: &Transformer) -> Vec<f64> {
    common::logits(model, &ModelInput::tokens(&Numbers::new(3).tokens(2, 9, 256)))
}

#[test]
fn adapters_learn_and_weights_stay() {
    let _alone = alone();
    let base = tempfile::tempdir().expect("a temporary folder");
    // Words in any order are known, and are then to come in one order.
    let order = "the cat sat on a mat and ate that hat ".repeat(15);
    train_in(&base, &TrainingConfig { steps: 150, ..config() }, &rhyme(), &flex());
    let base = base.path().join("out");
    let start = || Start::Checkpoint(Arc::new(Checkpoint::open(&base).unwrap_or_else(|error| panic!("{error}"))));
    let lora = LoraConfig::new(3, 6.0).with_projections(vec![Projection::Query, Projection::Value, Projection::Up]);
    let config = TrainingConfig {
        model: None,
        lora: Some(lora),
        steps: 40,
        checkpoints: CheckpointConfig { every: 25, keep: 1 },
        schedule: ScheduleConfig { learning_rate: 0.05, ..ScheduleConfig::default() },
        ..config()
    };
    let whole = tempfile::tempdir().expect("a temporary folder");
    let (run, events) = prepared(&config, start(), &order, whole.path());
    let trained = finish(run, &events).unwrap_or_else(|error| panic!("{error}"));
    let losses = trained.losses();
    assert!(losses[39] < losses[0] - 0.1, "{losses:?}");

    // The folder holds the model with the adapters merged, and the adapters alone.
    let out = whole.path().join("out");
    let adapted = load_adapters(load(&base), out.join("adapter")).unwrap_or_else(|error| panic!("{error}"));
    let (before, after) = (logits(&load(&base)), logits(&load(&out)));
    assert_close("merged", &logits(&merge_adapters(adapted)), &after, 1e-5);
    assert_apart("trained", &after, &before, 1e-2);

    // A run that was stopped goes on with the adapters that it had.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (run, _) = prepared(&config, start(), &order, folder.path());
    let interrupter = run.interrupter();
    let stopped = run.observed_by(move |event| {
        if matches!(event, TrainingEvent::Step(report) if report.step == 30) {
            interrupter.stop(None);
        }
    });
    assert_eq!(stopped.run().unwrap_or_else(|error| panic!("{error}")).steps, 30);
    assert!(!folder.path().join("out/checkpoints/step-00000030/model.safetensors").exists());
    let (run, events) = prepared(&config, start(), &order, folder.path());
    let rest = finish(run.resuming(true), &events).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rest.losses(), losses[30..]);
}
