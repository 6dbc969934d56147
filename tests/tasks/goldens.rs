//! Scores, answers and hidden states of tiny models on every backend.

use burn::module::Module;
use burn::tensor::Tensor;
use burnformer::model::{ForwardOptions, ModelInput, Transformer};
use burnformer::pretrained::read_config;
use burnformer::verification::{Golden, verify};

use crate::common::{assert_apart, assert_close, devices, flex, largest, values};
use crate::{changed, folder, golden, load, open};

/// Of the largest expected value, as for every tiny model; measured are 1e-6.
const TOLERANCE: f64 = 1e-5;

/// Every task with the outputs that its golden file holds.
const TASKS: [(&str, &[&str]); 12] = [
    ("bert_answers", &["start_logits", "end_logits"]),
    ("bert_sequences", &["logits"]),
    ("bert_tokens", &["logits"]),
    ("bert_words", &["logits"]),
    ("distilbert_sequences", &["logits"]),
    ("distilbert_tokens", &["logits"]),
    ("gpt2_sequences", &["logits"]),
    ("llama_sequences", &["logits"]),
    ("roberta_sequences", &["logits"]),
    ("roberta_words", &["logits"]),
    ("vit", &["last_hidden_state", "pooler_output"]),
    ("vit_images", &["logits"]),
];

#[test]
fn every_backend_gives_the_outputs_of_transformers() {
    for (backend, device) in devices() {
        for (name, outputs) in TASKS {
            let golden = Golden::open(folder(name).join("golden.safetensors")).expect("the golden file is whole");
            let found =
                verify(&load(name, &device), &golden, TOLERANCE).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found.ok, "{backend}, {name}: {found:?}");
            assert_eq!(found.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), outputs, "{name}");
        }
    }
    let of_other = Golden::open(folder("bert_sequences").join("golden.safetensors")).expect("whole");
    assert!(!verify(&load("bert_sequences", &flex()), &of_other, 1e-12).expect("it runs").ok);
    let error = verify(&load("bert_tokens", &flex()), &of_other, TOLERANCE).expect_err("another head").to_string();
    assert!(error.contains("`logits`") && error.contains("[3, 3]") && error.contains("[3, 9, 4]"), "{error}");
}

#[test]
fn every_spelling_describes_the_tensors_of_the_file() {
    for (name, _) in TASKS {
        let configs = ["config.json", "config.old.json"].map(|file| {
            let copy = changed(name, file, |_| ());
            let checkpoint = open(copy.path());
            let report = checkpoint.report(&flex()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(report.unused, [""; 0], "{name}");
            let alone = read_config(copy.path().join("config.json")).expect("it is valid");
            assert_eq!(&alone, checkpoint.config(), "{name}, {file}: without the weights");
            checkpoint.config().clone()
        });
        assert_eq!(configs[0], configs[1], "{name}");
        assert_eq!(load(name, &flex()).num_params() as u64, configs[0].n_parameters(), "{name}");
    }
}

fn scores(model: &Transformer, input: &ModelInput) -> Vec<f64> {
    let output = model.forward(input, None, ForwardOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    values(output.scores.expect("the model has a task head"))
}

/// transformers looks for the padding id alone, and a mask says the same.
#[test]
fn the_last_token_is_before_the_padding() {
    for name in ["llama_sequences", "gpt2_sequences"] {
        let golden = golden(name);
        let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
        let tolerance = TOLERANCE * largest(&want);
        let marked = ModelInput::tokens(&rows).with_padding(golden.padding("attention_mask"));
        let unmarked = ModelInput::tokens(&rows);
        let unnamed = changed(name, "config.json", |config| config["pad_token_id"] = serde_json::json!(-1));
        for (backend, device) in devices() {
            let named = load(name, &device);
            assert_close(&format!("{backend}, {name}: by id"), &scores(&named, &unmarked), &want, tolerance);
            let unnamed = open(unnamed.path()).load(&device, burn::tensor::FloatDType::F32).expect("it loads").0;
            assert_close(&format!("{backend}, {name}: by mask"), &scores(&unnamed, &marked), &want, tolerance);
            assert_apart("padding that is taken for tokens", &scores(&unnamed, &unmarked), &want, 100.0 * tolerance);
        }
    }
}

#[test]
fn images_have_the_shape_of_the_model() {
    let said = |model: &Transformer, input: &ModelInput| {
        model.forward(input, None, ForwardOptions::default()).expect_err("it does not fit").to_string()
    };
    for (backend, device) in devices() {
        let vit = load("vit", &device);
        let images = |shape: [usize; 4]| ModelInput::pixels(Tensor::zeros(shape, &device));
        for shape in [[1, 2, 20, 13], [1, 3, 13, 20], [2, 2, 16, 20]] {
            let message = said(&vit, &images(shape));
            let given = format!("images have shape {:?}", &shape[1..]);
            assert!(
                message.contains(&given) && message.contains("the model takes [2, 13, 20]"),
                "{backend}: {message}"
            );
        }
        let none = vit.forward(&images([0, 2, 13, 20]), None, ForwardOptions::default()).expect("no images");
        assert_eq!(none.hidden.dims(), [0, 13, 18]);
        let padded = images([1, 2, 13, 20]).with_padding(vec![vec![false; 13]]);
        assert!(said(&vit, &padded).contains("images have none"));
        assert!(said(&vit, &ModelInput::tokens(&[vec![1]])).contains("takes images, not token ids"));
        let hidden = ModelInput::hidden(Tensor::zeros([1, 13, 18], &device));
        assert!(said(&vit, &hidden).contains("takes images, not hidden states"));
        assert!(said(&load("bert_words", &device), &images([1, 2, 13, 20])).contains("takes no images"));
    }
}
