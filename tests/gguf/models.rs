//! The models in files give the logits of the models that the files were made from.

use std::collections::BTreeSet;

use burn::module::Module;
use burn::tensor::FloatDType;
use burnformer::model::{ForwardOptions, Logits, ModelInput, Transformer};
use burnformer::pretrained::{Checkpoint, Container, ConvertOptions, Existing, save_model};

use crate::common::{Fixture, argmax, assert_close, devices, flex, largest, logits, logits_in_chunks, values};
use crate::{fixture, smollm2};

/// A file per architecture, and two with positions that are scaled.
const MODELS: [&str; 14] = [
    "llama",
    "llama3",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "phi3",
    "starcoder2",
    "stablelm",
    "nemotron",
    "bloom",
];

/// A whole tiny model in 32 bits, relative to the largest logit, as for other checkpoints.
const MODEL: f64 = 1e-5;

fn load(name: &str, device: &burn::tensor::Device) -> Transformer {
    let path = fixture(&format!("{name}.gguf"));
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (model, report) = checkpoint.load(device, FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(report.unused.is_empty() && report.ignored.is_empty(), "{name}: {report:?}");
    model
}

#[test]
fn every_architecture_gives_the_logits_of_its_model() {
    for (backend, device) in devices() {
        for name in MODELS {
            let golden = Fixture::at(&fixture(&format!("{name}.safetensors")));
            let want = golden.values("logits");
            let model = load(name, &device);
            let rows = golden.rows("input_ids");
            let tolerance = MODEL * largest(&want);
            let whole = logits(&model, &ModelInput::tokens(&rows));
            assert_close(&format!("{name} on {backend}"), &whole, &want, tolerance);
            // Factors for long sequences are in force from the first token or not at all.
            if name != "phi3" {
                let len = rows[0].len();
                let split = logits_in_chunks(&model, &rows, &[len - 3, 2, 1]);
                assert_close(&format!("{name} on {backend}, in chunks"), &split, &want, tolerance);
            }
        }
    }
}

#[test]
fn matrices_stay_in_blocks_on_flex_and_save_their_memory() {
    let mut kinds = BTreeSet::new();
    for name in MODELS {
        let checkpoint = Checkpoint::open(fixture(&format!("{name}.gguf"))).expect("the file is whole");
        let is_kept = |stored: &str| ["Q8_0", "Q4_0", "Q4_1"].contains(&stored);
        let tensors = checkpoint.inspect().tensors;
        let kept: Vec<_> = tensors.iter().filter(|t| t.stored_dtype.as_deref().is_some_and(is_kept)).collect();
        kinds.extend(kept.iter().filter_map(|placement| placement.stored_dtype.clone()));
        let mut expected: Vec<&str> = kept.iter().map(|placement| placement.parameter.as_str()).collect();
        expected.sort_unstable();
        for (backend, device) in devices() {
            let (_, mut report) = checkpoint.load(&device, FloatDType::F32).expect("it loads");
            report.in_blocks.sort();
            let in_numbers = 4 * checkpoint.config().n_parameters();
            let bytes = checkpoint.loaded_bytes(&device, FloatDType::F32).expect("it can be loaded");
            match backend {
                "flex" => assert_eq!(report.in_blocks, expected, "{name}"),
                _ => assert!(report.in_blocks.is_empty(), "{name} on {backend}"),
            }
            assert_eq!(bytes < in_numbers, !report.in_blocks.is_empty(), "{name} on {backend}: {bytes} bytes");
            assert!(bytes <= in_numbers);
        }
    }
    assert_eq!(kinds.len(), 3, "the files have {kinds:?}");
}

#[test]
fn a_model_in_blocks_can_be_moved_trained_and_saved() {
    let name = "llama";
    let golden = Fixture::at(&fixture(&format!("{name}.safetensors")));
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    let tolerance = MODEL * largest(&want);
    let checkpoint = Checkpoint::open(fixture(&format!("{name}.gguf"))).expect("the file is whole");
    let load = || checkpoint.load(&flex(), FloatDType::F32).expect("it loads");
    for (backend, device) in devices() {
        let (model, report) = load();
        assert!(!report.in_blocks.is_empty());
        let moved = model.to_device(&device);
        let found = logits(&moved, &ModelInput::tokens(&rows));
        assert_close(&format!("from flex to {backend}"), &found, &want, tolerance);
    }
    let (model, report) = load();
    let trained = model.clone().train();
    let query = "layers.0.attention.query.weight";
    assert!(report.in_blocks.iter().any(|path| path == query));
    assert!(trained.layers[0].attention.query.weight.val().is_require_grad());
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("saved");
    save_model(&model, &path, Container::Safetensors, Existing::Keep).expect("it can be saved");
    let (again, report) = Checkpoint::open(&path).expect("it opens").load(&flex(), FloatDType::F32).expect("it loads");
    assert!(report.in_blocks.is_empty());
    assert_close("saved", &logits(&again, &ModelInput::tokens(&rows)), &want, tolerance);
}

#[test]
fn weights_are_widened_or_narrowed_as_asked() {
    let golden = Fixture::at(&fixture("qwen2.safetensors"));
    let checkpoint = Checkpoint::open(fixture("qwen2.gguf")).expect("the file is whole");
    let (model, _) = checkpoint.load(&flex(), FloatDType::F64).expect("flex has 64 bits");
    let found = logits(&model, &ModelInput::tokens(&golden.rows("input_ids")));
    let want = golden.values("logits");
    assert_close("f64", &found, &want, MODEL * largest(&want));
}

/// What a file stands for, written as a folder of the hub and opened again.
#[test]
fn a_converted_file_is_the_same_model() {
    for name in MODELS {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join(name);
        let checkpoint = Checkpoint::open(fixture(&format!("{name}.gguf"))).expect("the file is whole");
        let converted = checkpoint
            .convert(&path, &ConvertOptions::default(), |_| ())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(again.config(), checkpoint.config(), "{name}");
        let rows = Fixture::at(&fixture(&format!("{name}.safetensors"))).rows("input_ids");
        let outputs = |checkpoint: &Checkpoint| {
            let (model, _) =
                checkpoint.load(&flex(), FloatDType::F64).unwrap_or_else(|error| panic!("{name}: {error}"));
            logits(&model, &ModelInput::tokens(&rows))
        };
        assert_eq!(outputs(&again), outputs(&checkpoint), "{name}");
        #[cfg(feature = "tokenizer")]
        {
            let has_tokenizer = checkpoint.tokenizer().expect("it is supported").is_some();
            for file in ["tokenizer.json", "tokenizer_config.json"] {
                assert_eq!(path.join(file).is_file(), has_tokenizer, "{name}: {file}");
                assert_eq!(converted.files.iter().any(|known| known == file), has_tokenizer, "{name}: {file}");
            }
        }
    }
}

#[test]
fn a_folder_with_one_file_is_that_file() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let place = folder.path().join("anything.GGUF");
    std::fs::copy(fixture("gpt2.gguf"), &place).expect("the file can be copied");
    let config = |path: &std::path::Path| Checkpoint::open(path).map(|checkpoint| checkpoint.config().clone());
    let expected = config(&place).expect("the file is whole");
    assert_eq!(config(folder.path()).expect("the folder has one file"), expected);
    std::fs::copy(&place, folder.path().join("without_ending")).expect("the file can be copied");
    assert_eq!(config(&folder.path().join("without_ending")).expect("its first bytes tell"), expected);
    std::fs::copy(&place, folder.path().join("other.gguf")).expect("the file can be copied");
    let message = config(folder.path()).expect_err("two files").to_string();
    assert!(message.contains("config.json"), "{message}");
    let message = config(&folder.path().join("missing.gguf")).expect_err("no file").to_string();
    assert!(message.contains("missing.gguf"), "{message}");
}

/// The published values of `The capital of France is`, from transformers on the same weights.
#[test]
fn smollm2_gives_its_logits() {
    let Some(path) = smollm2() else { return };
    let tokens = vec![vec![504, 3575, 282, 4649, 314]];
    for (backend, device) in devices() {
        let (model, _) = Checkpoint::open(&path)
            .and_then(|checkpoint| checkpoint.load(&device, FloatDType::F32))
            .unwrap_or_else(|error| panic!("{backend}: {error}"));
        let options = ForwardOptions { logits: Logits::Last, ..ForwardOptions::default() };
        let output = model.forward(&ModelInput::tokens(&tokens), None, options).expect("the tokens are known");
        let found = values(output.logits.expect("the model has a head"));
        assert_eq!(argmax(&found, 49_152), [7042], "{backend}");
        // Rounded to five digits there, and sums of 576 products in another order here.
        let top = [7042, 260, 4528, 2250, 1315, 5145, 216, 441].map(|token| found[token]);
        let want = [17.37126, 14.88859, 13.24498, 13.00946, 12.95152, 12.90494, 12.71331, 12.69786];
        assert_close(backend, &top, &want, 1e-3);
    }
}
