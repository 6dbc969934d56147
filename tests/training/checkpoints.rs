//! Runs that stop and go on.

use burnformer::training::{CheckpointConfig, ModelSource};

use super::common::*;
use super::*;

/// Twelve steps with dropout, a checkpoint after every third, and measurements in between.
fn long() -> TrainingConfig {
    let mut config = TrainingConfig { steps: 12, checkpoints: CheckpointConfig { every: 3, keep: 2 }, ..config() };
    config.validation = ValidationConfig { share: 0.2, every: 4, ..ValidationConfig::default() };
    if let Some(ModelSource::Config(model)) = &mut config.model {
        model.dropout = 0.2;
    }
    config
}

/// Runs and asks to stop as soon as step `step` is reported.
fn stop_at(folder: &TempDir, config: &TrainingConfig, step: usize, device: &Device) -> Trained {
    let (run, _) = prepared(config, drawn(config), &rhyme(), folder.path());
    let (events, interrupter) = (Arc::new(Mutex::new(Vec::new())), run.interrupter());
    let told = Arc::clone(&events);
    let run = run.on_device(device.clone()).observed_by(move |event| {
        if matches!(event, TrainingEvent::Step(report) if report.step == step) {
            interrupter.stop(None);
        }
        told.lock().expect("no panic").push(event.clone());
    });
    finish(run, &events).unwrap_or_else(|error| panic!("{error}"))
}

fn resume(folder: &TempDir, config: &TrainingConfig, text: &str, device: &Device) -> Result<Trained, Error> {
    let (run, events) = prepared(config, drawn(config), text, folder.path());
    finish(run.on_device(device.clone()).resuming(true), &events)
}

fn checkpoints(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path().join("out/checkpoints")).expect("the folder is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The log without what depends on the time that steps take.
fn log(folder: &TempDir) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.path().join("out/metrics.jsonl")).expect("the log is there");
    let line = |line: &str| {
        let mut value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let keys = value.as_object_mut().expect("an object");
        keys.remove("tokens_per_second");
        keys.remove("seconds_left");
        value
    };
    text.lines().map(line).collect()
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let _alone = alone();
    let config = long();
    for (name, device) in devices() {
        if name == "wgpu" || name == "ndarray" {
            // Slow here; what is written and read does not depend on the backend.
            continue;
        }
        let whole = tempfile::tempdir().expect("a temporary folder");
        let expected = train_in(&whole, &config, &rhyme(), &device);
        assert_eq!(expected.losses().len(), 12);

        let folder = tempfile::tempdir().expect("a temporary folder");
        // Between two checkpoints and in the middle of an interval of measurements.
        let first = stop_at(&folder, &config, 5, &device);
        assert!(!first.summary.complete);
        assert_eq!(first.summary.steps, 5);
        assert_eq!(checkpoints(&folder), ["step-00000003", "step-00000005"]);
        assert!(!folder.path().join("out/model.safetensors").exists());
        let rest = resume(&folder, &config, &rhyme(), &device).unwrap_or_else(|error| panic!("{error}"));
        assert!(rest.summary.complete);
        assert_eq!(rest.summary.steps, 12);
        let losses = [first.losses(), rest.losses()].concat();
        let measured = [first.measured(), rest.measured()].concat();
        if name == "flex" {
            assert_eq!((losses, measured), (expected.losses(), expected.measured()));
            assert_eq!(log(&folder), log(&whole));
        } else {
            assert_close(name, &losses, &expected.losses(), 1e-6);
            assert_close(name, &measured, &expected.measured(), 1e-6);
        }
        assert_eq!(checkpoints(&folder), ["step-00000009", "step-00000012"]);
        assert!(folder.path().join("out/model.safetensors").exists());
    }
}

#[test]
fn what_was_not_finished_is_no_checkpoint() {
    let _alone = alone();
    let config = long();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = stop_at(&folder, &config, 7, &flex());
    let expected = train(&config, &rhyme(), &flex()).losses();
    // As after a kill while the next one was written, and while an old one was removed.
    let partial = folder.path().join("out/checkpoints/.step-00000009.partial");
    std::fs::create_dir(&partial).expect("it is made");
    std::fs::write(partial.join("training.json"), "{").expect("it is written");
    std::fs::create_dir(folder.path().join("out/checkpoints/.step-00000003.old")).expect("it is made");
    let rest = resume(&folder, &config, &rhyme(), &flex()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(first.losses(), expected[..7]);
    assert_eq!(rest.losses(), expected[7..]);
    assert_eq!(checkpoints(&folder), ["step-00000009", "step-00000012"]);
}

#[test]
fn a_finished_run_has_nothing_to_go_on_with() {
    let _alone = alone();
    let config = long();
    let folder = tempfile::tempdir().expect("a temporary folder");
    train_in(&folder, &config, &rhyme(), &flex());
    std::fs::remove_file(folder.path().join("out/model.safetensors")).expect("it is there");
    let again = resume(&folder, &config, &rhyme(), &flex()).unwrap_or_else(|error| panic!("{error}"));
    assert!(again.summary.complete && again.losses().is_empty());
    assert!(folder.path().join("out/model.safetensors").exists());
}

#[test]
fn another_run_is_refused_with_the_key_that_differs() {
    let _alone = alone();
    let config = long();
    let folder = tempfile::tempdir().expect("a temporary folder");
    stop_at(&folder, &config, 4, &flex());
    let refused = |config: &TrainingConfig, text: &str| match resume(&folder, config, text, &flex()) {
        Ok(_) => panic!("it went on"),
        Err(error) => error.to_string(),
    };
    let mut other = config.clone();
    other.optimizer.beta_2 = 0.99;
    assert!(refused(&other, &rhyme()).contains("`optimizer.beta_2` differs"));
    let mut other = config.clone();
    if let Some(ModelSource::Config(model)) = &mut other.model {
        model.n_layers = 3;
    }
    assert!(refused(&other, &rhyme()).contains("`model.n_layers` differs"));
    assert!(refused(&config, &(rhyme() + "!")).contains("the text differs"));
    // How often something is written or shown is no other run.
    let mut same = config.clone();
    same.checkpoints.every = 5;
    same.samples.every = 6;
    same.validation.every = 3;
    assert!(resume(&folder, &same, &rhyme(), &flex()).is_ok());
}
