//! Steps of training against those of PyTorch, in 64 bits, from the same weights and text.

use std::collections::BTreeMap;

use burn::tensor::{Device, FloatDType};
use burnformer::backend::Backend;
use burnformer::pretrained::Checkpoint;
use burnformer::training::{OptimizerConfig, TrainingEvent};
use serde_json::Value;

use super::common::*;
use super::*;

struct Fixture {
    steps: Value,
    text: String,
}

impl Fixture {
    fn open() -> Self {
        let folder = fixtures().join("training");
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("the fixture is there");
        Self { steps: serde_json::from_str(&text("steps.json")).expect("JSON"), text: text("text.txt") }
    }

    fn number(&self, key: &str) -> f64 {
        self.steps[key].as_f64().expect("a number")
    }

    fn whole(&self, key: &str) -> usize {
        self.steps[key].as_u64().expect("a whole number") as usize
    }

    /// `key` of each step.
    fn of_steps(&self, key: &str) -> Vec<f64> {
        let steps = self.steps["steps"].as_array().expect("a list");
        steps.iter().map(|step| step[key].as_f64().expect("a number")).collect()
    }

    /// All windows of the text in each step, in batches of two, measured on the same text after the last one.
    fn config(&self) -> TrainingConfig {
        let steps = self.of_steps("loss").len();
        TrainingConfig {
            model: None,
            tokenizer: Some("bytes".into()),
            steps,
            batch: 2,
            accumulation: self.whole("windows") / 2,
            seq: self.whole("seq"),
            schedule: ScheduleConfig {
                learning_rate: self.number("learning_rate"),
                min_learning_rate: Some(self.number("min_learning_rate")),
                warmup_steps: Some(self.whole("warmup_steps")),
            },
            optimizer: OptimizerConfig {
                beta_1: self.number("beta_1"),
                beta_2: self.number("beta_2"),
                eps: self.number("eps"),
                weight_decay: self.number("weight_decay"),
                clip_norm: self.number("clip_norm"),
            },
            validation: ValidationConfig { file: Some("".into()), every: steps, ..ValidationConfig::default() },
            ..TrainingConfig::default()
        }
    }

    /// Trains from the fixture's weights, at most `most` steps of the run.
    fn train(&self, config: &TrainingConfig, most: usize, device: &Device) -> (Trained, TempDir) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = config.clone();
        config.validation.file = Some(fixtures().join("training/text.txt"));
        let checkpoint = Checkpoint::open(fixtures().join("training/llama")).expect("the fixture is there");
        let (run, _) = prepared(&config, Start::Checkpoint(Arc::new(checkpoint)), &self.text, folder.path());
        let (events, interrupter) = (Arc::new(Mutex::new(Vec::new())), run.interrupter());
        let told = Arc::clone(&events);
        let run = run.on_device(device.clone()).observed_by(move |event| {
            if matches!(event, TrainingEvent::Step(report) if report.step == most) {
                interrupter.stop(None);
            }
            told.lock().expect("no panic").push(event.clone());
        });
        (finish(run, &events).unwrap_or_else(|error| panic!("{error}")), folder)
    }
}

fn of_reports(trained: &Trained, read: fn(&burnformer::training::StepReport) -> f64) -> Vec<f64> {
    let step = |event: &TrainingEvent| match event {
        TrainingEvent::Step(report) => Some(read(report)),
        _ => None,
    };
    trained.events.iter().filter_map(step).collect()
}

/// Losses around 5 in 32 bits: a few roundings of the logits, which eight updates carry on. Measured: below 4e-6.
const LOSS_TOLERANCE: f64 = 1e-5;

#[test]
fn steps_are_those_of_torch() {
    let _alone = alone();
    let fixture = Fixture::open();
    let steps = fixture.of_steps("loss").len();
    for (name, device) in devices() {
        // Software Vulkan takes seconds for each step.
        let is_whole = name != Backend::Wgpu.name();
        let count = if is_whole { steps } else { 3 };
        let (trained, folder) = fixture.train(&fixture.config(), if is_whole { steps + 1 } else { count }, &device);
        assert_close(name, &trained.losses(), &fixture.of_steps("loss")[..count], LOSS_TOLERANCE);
        // Norms reach 6, and are sums over all parameters.
        let norms = of_reports(&trained, |report| report.gradient_norm);
        assert_close(name, &norms, &fixture.of_steps("gradient_norm")[..count], 5.0 * LOSS_TOLERANCE);
        let rates = of_reports(&trained, |report| report.learning_rate);
        assert_close(name, &rates, &fixture.of_steps("learning_rate")[..count], 1e-12);
        if is_whole {
            assert_close(name, &trained.measured(), &[fixture.number("final_loss")], LOSS_TOLERANCE);
        }
        if name == Backend::Flex.name() {
            compare_parameters(&folder.path().join("out"));
        }
    }
}

/// Compares all parameters of a trained folder with those that PyTorch ended with.
fn compare_parameters(trained: &Path) {
    let names = fixtures().join("training/llama");
    // The trained file is read as if it were the checkpoint's: the same names and layout.
    let reference = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(names.join("config.json"), reference.path().join("config.json")).expect("copied");
    let weights = fixtures().join("training/trained.safetensors");
    std::fs::copy(weights, reference.path().join("model.safetensors")).expect("copied");
    let load = |folder: &Path| -> BTreeMap<String, Vec<f64>> {
        let checkpoint = Checkpoint::open(folder).unwrap_or_else(|error| panic!("{error}"));
        let (model, _) = checkpoint.load(&flex(), FloatDType::F32).unwrap_or_else(|error| panic!("{error}"));
        parameters(&model)
    };
    let (got, want) = (load(trained), load(reference.path()));
    let start = load(&names);
    assert_eq!(got.len(), want.len());
    for (name, want) in &want {
        // Each update is at most the learning rate, 0.02, times a quotient that the rounding of small gradients moves.
        assert_close(name, &got[name], want, 2e-5);
        assert_apart(name, &start[name], want, 1e-2);
    }
}

/// All parameters by their paths.
fn parameters(model: &burnformer::model::Transformer) -> BTreeMap<String, Vec<f64>> {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::Tensor;
    #[derive(Default)]
    struct All {
        path: Vec<String>,
        found: BTreeMap<String, Vec<f64>>,
    }
    impl ModuleVisitor for All {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found.insert(self.path.join("."), values(param.val()));
        }
    }
    let mut all = All::default();
    model.visit(&mut all);
    all.found
}

/// A name, and what is changed in a configuration.
type Change = (&'static str, fn(&mut TrainingConfig));

#[test]
fn every_setting_of_the_update_counts() {
    let _alone = alone();
    let fixture = Fixture::open();
    let config = fixture.config();
    let cases: [Change; 9] = [
        ("clip_norm", |config| config.optimizer.clip_norm = 0.0),
        ("weight_decay", |config| config.optimizer.weight_decay = 0.0),
        ("beta_1", |config| config.optimizer.beta_1 = 0.9),
        ("beta_2", |config| config.optimizer.beta_2 = 0.999),
        ("eps", |config| config.optimizer.eps = 1e-8),
        ("learning_rate", |config| config.schedule.learning_rate = 0.018),
        ("min_learning_rate", |config| config.schedule.min_learning_rate = Some(0.0)),
        ("warmup_steps", |config| config.schedule.warmup_steps = Some(0)),
        ("steps", |config| config.steps = 9),
    ];
    for (name, change) in cases {
        let mut changed = config.clone();
        change(&mut changed);
        let losses = fixture.train(&changed, usize::MAX, &flex()).0.losses();
        assert_apart(name, &losses[..8], &fixture.of_steps("loss"), 100.0 * LOSS_TOLERANCE);
    }
}
