//! The folder of a run: a model like any other.

use std::ops::ControlFlow;

use burn::tensor::FloatDType;
use burnformer::generation::{GenerationOptions, Prompt, TextGenerator};
use burnformer::pretrained::Checkpoint;
use burnformer::training::{SampleConfig, TextCoder, decayed_parameters, window_loss};

use super::common::*;
use super::*;

/// A text that a model soon knows by heart.
fn litany() -> String {
    "one two three four five. ".repeat(40)
}

fn learned() -> TrainingConfig {
    TrainingConfig {
        steps: 400,
        seq: 24,
        schedule: ScheduleConfig { learning_rate: 0.02, ..ScheduleConfig::default() },
        samples: SampleConfig { every: 400, prompt: "three".into(), tokens: 12, temperature: 0.0 },
        ..config()
    }
}

fn continued(folder: &Path, prompt: &str, tokens: usize) -> String {
    let checkpoint = Checkpoint::open(folder).unwrap_or_else(|error| panic!("{error}"));
    let tokenizer = checkpoint.tokenizer().expect("it can be read").expect("there is one");
    let (model, report) = checkpoint.load(&flex(), FloatDType::F32).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.unused.is_empty(), "{:?}", report.unused);
    let generator = TextGenerator::new(&model, &tokenizer).unwrap_or_else(|error| panic!("{error}"));
    let prompt = generator.encode(&Prompt::from(prompt)).expect("text");
    let options = GenerationOptions::new(tokens);
    let generated = generator.generate(&[prompt], &options, &mut |_, _| ControlFlow::Continue(()));
    generated.unwrap_or_else(|error| panic!("{error}")).outputs[0].text.clone()
}

#[test]
fn a_trained_folder_writes_what_it_learned() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trained = train_in(&folder, &learned(), &litany(), &flex());
    let out = folder.path().join("out");
    assert_eq!(continued(&out, "three", 12), " four five. ");
    // So do the checkpoint of the last step and the sample that was drawn then.
    assert_eq!(continued(&out.join("checkpoints/step-00000400"), "two", 6), " three");
    let samples: Vec<&str> = trained
        .events
        .iter()
        .filter_map(|event| match event {
            TrainingEvent::Sample(report) => Some(report.sample.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(samples, ["three four five. "]);
    let files = ["config.json", "metrics.jsonl", "model.safetensors", "tokenizer.json", "training.json"];
    for file in files {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(std::fs::read_dir(&out).expect("it is there").count() == files.len() + 1, "and the checkpoints");
}

#[test]
fn training_starts_from_a_checkpoint_and_keeps_its_tokenizer() {
    let _alone = alone();
    let first = tempfile::tempdir().expect("a temporary folder");
    let untaught = train_in(&first, &learned(), &litany(), &flex());
    let checkpoint = Arc::new(Checkpoint::open(first.path().join("out")).unwrap_or_else(|error| panic!("{error}")));
    let second = tempfile::tempdir().expect("a temporary folder");
    let config = TrainingConfig { steps: 60, model: None, samples: SampleConfig::default(), ..learned() };
    let text = "one two three six seven. ".repeat(40);
    let (run, events) = prepared(&config, Start::Checkpoint(Arc::clone(&checkpoint)), &text, second.path());
    let tuned = finish(run.on_device(flex()), &events).unwrap_or_else(|error| panic!("{error}"));
    // Half of the text is known, so that the rest is learned in less time than all of it.
    let (tuned, untaught) = (tuned.losses()[11], untaught.losses()[11]);
    assert!(tuned < 2.0 && untaught > 3.0, "{tuned} {untaught}");
    let out = second.path().join("out");
    assert_eq!(continued(&out, "three", 6), " six s");
    let tokenizer = |folder: &Path| std::fs::read(folder.join("tokenizer.json")).expect("it is there");
    assert_eq!(tokenizer(&out), tokenizer(&first.path().join("out")));
}

#[test]
fn a_tokenizer_of_a_file_goes_along() {
    let _alone = alone();
    let tokenizer = fixtures().join("text/byte_level");
    let name = tokenizer.to_str().expect("UTF-8");
    let coder = TextCoder::open(name).unwrap_or_else(|error| panic!("{error}"));
    let mut config = TrainingConfig { tokenizer: Some(name.to_owned()), steps: 2, seq: 8, ..config() };
    if let Some(burnformer::training::ModelSource::Config(model)) = &mut config.model {
        model.embedding = Some(EmbeddingConfig::new(coder.vocab_size() + 8));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    train_in(&folder, &config, &rhyme(), &flex());
    let out = folder.path().join("out");
    let written = TextCoder::open(out.to_str().expect("UTF-8")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(written.encode(&rhyme()).expect("text"), coder.encode(&rhyme()).expect("text"));
    assert_ne!(coder.encode("the cat").expect("text").len(), "the cat".len());
}

#[test]
fn matrices_decay_and_nothing_else() {
    let _alone = alone();
    let model = model()
        .with_positions(Positions::Learned(Default::default()))
        .with_head(HeadConfig::new(false).with_bias(true));
    let names: Vec<String> = decayed_parameters(&model.init(&flex())).into_iter().map(|(_, name)| name).collect();
    let of_block = |block: usize| {
        let parts = [
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.output",
            "feed_forward.up",
            "feed_forward.down",
        ];
        parts.map(|part| format!("layers.{block}.{part}.weight"))
    };
    let expected: Vec<String> = (0..2).flat_map(of_block).chain(["head.weight".to_owned()]).collect();
    assert_eq!(names, expected);
}

#[test]
fn the_loss_of_a_window_is_that_of_the_next_tokens() {
    let _alone = alone();
    let model = randomised(model().init(&flex()), 3);
    let window = Numbers::new(4).tokens(1, 6, 256);
    let output = model
        .forward(&burnformer::model::ModelInput::tokens(&[window[0][..5].to_vec()]), None, Default::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let logits = values(output.logits.expect("the model has a head"));
    let of_token = |(row, target): (&[f64], i64)| {
        let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
        sum.ln() - row[target as usize]
    };
    let losses: Vec<f64> = logits.chunks(256).zip(window[0][1..].iter().copied()).map(of_token).collect();
    let expected = losses.iter().sum::<f64>() / 5.0;
    let loss: f64 = window_loss(&model, &window).expect("the model takes it").into_scalar();
    assert_close("loss", &[loss], &[expected], 1e-5);
}
