//! A checkpoint in another form is the same model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use burn::tensor::FloatDType;
use burnformer::model::{ForwardOptions, ModelInput, Transformer};
use burnformer::pretrained::{Checkpoint, ConvertOptions, Converted, Existing, Format, WriteProgress};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::common::{devices, fixtures, flex, values};
use crate::folder::{Folder, WEIGHTS, assert_says, config_of, file, file_as, parameters, tensors_of, weights_of};

fn convert(from: &Path, to: &Path, format: Option<Format>, dtype: Option<FloatDType>) -> Converted {
    let options = ConvertOptions { format, dtype, ..ConvertOptions::default() };
    let checkpoint = Checkpoint::open(from).unwrap_or_else(|error| panic!("{error}"));
    checkpoint.convert(to, &options, |_| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn loaded(folder: &Path, dtype: FloatDType) -> Transformer {
    Checkpoint::open(folder).and_then(|checkpoint| checkpoint.load(&flex(), dtype)).expect("it loads").0
}

/// The bits of what a model computes.
fn bits(model: &Transformer) -> Vec<u64> {
    let mut input = ModelInput::tokens(&[vec![1, 5, 9, 2, 7], vec![3, 3, 8, 1, 4]]);
    if model.config().encoder.is_some() {
        input = input.with_source(ModelInput::tokens(&[vec![4, 2, 2], vec![6, 1, 5]]));
    }
    let output = model.forward(&input, None, ForwardOptions::default()).expect("it runs");
    let numbers = output.logits.map_or_else(|| values(output.hidden), values);
    assert!(numbers.len() > 100 && numbers.iter().all(|number| number.is_finite()));
    numbers.into_iter().map(f64::to_bits).collect()
}

/// Every tensor of a file: type, shape, bytes.
fn contents(path: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let entry = |(name, view): (&str, safetensors::tensor::TensorView)| {
        (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    tensors.iter().map(entry).collect()
}

/// All fixtures that lie beside each other, so that other families come in by themselves.
fn fixture_folders() -> Vec<PathBuf> {
    crate::folder::names().into_iter().map(|name| fixtures().join("checkpoints").join(name)).collect()
}

#[test]
fn every_fixture_survives_every_form_bit_for_bit() {
    for from in fixture_folders() {
        let name = from.file_name().expect("a name").to_string_lossy().into_owned();
        let place = tempfile::tempdir().expect("a temporary folder");
        let [hub, native, pack, again] = ["hub", "native", "pack", "again"].map(|name| place.path().join(name));
        let model = loaded(&from, FloatDType::F32);
        let (want, parameters_of_it) = (bits(&model), parameters(&model));

        let written = convert(&from, &hub, None, None);
        assert_eq!((written.format, written.dtype.as_str()), (Format::Hub, "f32"), "{name}");
        assert!(contents(&hub.join(WEIGHTS)) == contents(&from.join(WEIGHTS)), "{name}: tensors differ");
        let config = |folder: &Path| std::fs::read(folder.join("config.json")).expect("read");
        assert!(config(&hub) == config(&from), "{name}: configs differ");

        convert(&hub, &native, Some(Format::Native), None);
        convert(&native, &pack, Some(Format::Pack), None);
        convert(&pack, &again, Some(Format::Native), None);
        assert!(contents(&native.join(WEIGHTS)) == contents(&again.join(WEIGHTS)), "{name}: tensors differ");
        for folder in [&hub, &native, &pack, &again] {
            let model = loaded(folder, FloatDType::F32);
            assert!(parameters(&model) == parameters_of_it, "{name}: {} has other parameters", folder.display());
            assert!(bits(&model) == want, "{name}: {} computes otherwise", folder.display());
        }
    }
}

#[test]
fn other_forms_compute_the_same_on_every_backend() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let from = fixtures().join("checkpoints/llama");
    let folders = [(Format::Native, "native"), (Format::Pack, "pack")].map(|(format, name)| {
        convert(&from, &place.path().join(name), Some(format), None);
        place.path().join(name)
    });
    for (name, device) in devices() {
        let load = |folder: &Path| {
            Checkpoint::open(folder).and_then(|opened| opened.load(&device, FloatDType::F32)).expect("it loads").0
        };
        let want = bits(&load(&from));
        for folder in &folders {
            assert!(bits(&load(folder)) == want, "{name}: {}", folder.display());
        }
    }
}

/// What `torch.save` wrote becomes what transformers writes itself.
#[test]
fn pytorch_files_become_safetensors() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = Folder::new(&config_of("gpt2", "config.json"));
    let bin = std::fs::read(fixtures().join("containers/gpt2/pytorch_model.bin")).expect("read");
    folder.write("pytorch_model.bin", &bin);
    let to = place.path().join("hub");
    let written = convert(folder.path(), &to, None, None);
    assert_eq!(written.files, ["config.json", WEIGHTS]);
    let (got, want) = (contents(&to.join(WEIGHTS)), contents(&fixtures().join("checkpoints/gpt2").join(WEIGHTS)));
    assert!(want.iter().all(|(name, tensor)| got.get(name) == Some(tensor)));
    let more: Vec<&String> = got.keys().filter(|name| !want.contains_key(*name)).collect();
    assert_eq!(more, ["lm_head.weight"], "the head is in the file of PyTorch, too");
    assert!(got["lm_head.weight"] == want["transformer.wte.weight"]);
    assert!(bits(&loaded(&to, FloatDType::F32)) == bits(&loaded(folder.path(), FloatDType::F32)));
    let metadata = SafeTensors::read_metadata(&std::fs::read(to.join(WEIGHTS)).expect("read")).expect("a header").1;
    assert_eq!(metadata.metadata().as_ref().and_then(|pairs| pairs.get("format")).map(String::as_str), Some("pt"));
}

#[test]
fn numbers_are_rounded_to_the_type_that_is_asked_for() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let tensors = tensors_of("llama");
    for (dtype, stored, name) in [(FloatDType::F16, Dtype::F16, "f16"), (FloatDType::BF16, Dtype::BF16, "bf16")] {
        let round = |x: &f64| match stored {
            Dtype::F16 => f16::from_f32(*x as f32).to_f64(),
            _ => bf16::from_f32(*x as f32).to_f64(),
        };
        let rounded: BTreeMap<_, _> = tensors
            .iter()
            .map(|(tensor, array)| {
                let mut array = array.clone();
                array.values.iter_mut().for_each(|x| *x = round(x));
                (tensor.clone(), array)
            })
            .collect();
        let want = Folder::new(&config_of("llama", "config.json"));
        want.write(WEIGHTS, &file(&rounded));
        for format in [Format::Hub, Format::Native, Format::Pack] {
            let to = place.path().join(format!("{name}-{}", format.name()));
            let from = fixtures().join("checkpoints/llama");
            let written = convert(&from, &to, Some(format), Some(dtype));
            assert_eq!(written.dtype, name);
            let numbers: u64 = tensors.values().map(|array| array.values.len() as u64).sum();
            // Two bytes a number; names and alignment take the rest.
            assert!((2 * numbers..3 * numbers).contains(&written.bytes), "{written:?}");
            let inspection = Checkpoint::open(&to).expect("it opens").inspect();
            assert!(inspection.tensors.iter().all(|tensor| tensor.stored_dtype == Some(stored.to_string())));
            assert!(parameters(&loaded(&to, FloatDType::F32)) == parameters(&want.loaded().0), "{name} {format:?}");
            if format == Format::Hub {
                let text = std::fs::read(to.join("config.json")).expect("read");
                let config: Value = serde_json::from_slice(&text).expect("JSON");
                assert_eq!(config["dtype"], if stored == Dtype::F16 { "float16" } else { "bfloat16" });
            }
        }
    }
    // And back: what is in 16 bits becomes 32 without a change.
    let to = place.path().join("wide");
    convert(&place.path().join("bf16-hub"), &to, None, Some(FloatDType::F32));
    assert!(
        parameters(&loaded(&to, FloatDType::F32))
            == parameters(&loaded(&place.path().join("bf16-hub"), FloatDType::F32))
    );
    // Whole numbers are no weights.
    let to = place.path().join("bert");
    convert(&fixtures().join("checkpoints/bert_bare"), &to, None, Some(FloatDType::F16));
    assert_eq!(contents(&to.join(WEIGHTS))["embeddings.position_ids"].0, Dtype::I64);
}

#[test]
fn what_stands_beside_the_weights_goes_along() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let mut config = config_of("llama", "config.json");
    config["eos_token_id"] = json!([2, 3]);
    config["bos_token_id"] = json!(1);
    config["decoder_start_token_id"] = json!(4);
    let folder = Folder::new(&config);
    folder.write(WEIGHTS, &weights_of("llama"));
    let plain = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];
    for name in plain {
        folder.write(name, name.as_bytes());
    }
    folder.write("secret.txt", b"not of the model");
    folder.write("modules.json", br#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "../1_Pooling"}]"#);
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
    folder.write("1_Pooling/config.json", b"{}");
    for format in [Format::Hub, Format::Native, Format::Pack] {
        let to = place.path().join(format.name());
        let written = convert(folder.path(), &to, Some(format), None);
        for name in plain {
            assert_eq!(std::fs::read(to.join(name)).expect("it is there"), name.as_bytes());
            assert!(written.files.contains(&name.to_owned()), "{:?}", written.files);
        }
        assert!(to.join("1_Pooling/config.json").is_file() && !to.join("secret.txt").exists());
        // This crate's own config.json has no place for the ids that end a text.
        if format == Format::Hub {
            assert!(!to.join("generation_config.json").exists());
            continue;
        }
        let text = std::fs::read(to.join("generation_config.json")).expect("it is there");
        let ids: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!((&ids["eos_token_id"], &ids["bos_token_id"]), (&json!([2, 3]), &json!(1)));
        assert_eq!(ids["decoder_start_token_id"], 4);
    }
}

#[test]
fn progress_is_told_tensor_by_tensor() {
    for format in [Format::Hub, Format::Pack] {
        let place = tempfile::tempdir().expect("a temporary folder");
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let checkpoint = Checkpoint::open(fixtures().join("checkpoints/llama")).expect("it opens");
        let options = ConvertOptions { format: Some(format), ..ConvertOptions::default() };
        let watch = move |progress: WriteProgress| listener.lock().expect("no panic").push(progress);
        let written = checkpoint.convert(place.path().join("to"), &options, watch).expect("it is written");
        let want: Vec<_> = (1..=written.tensors).map(|done| WriteProgress { done, total: written.tensors }).collect();
        assert_eq!(*told.lock().expect("no panic"), want);
    }
}

#[test]
fn what_is_not_finite_is_named_and_no_error() {
    let mut tensors = tensors_of("llama");
    tensors.get_mut("model.norm.weight").expect("a norm").values[1] = f64::NAN;
    tensors.get_mut("model.layers.1.self_attn.k_proj.weight").expect("keys").values[3] = f64::NEG_INFINITY;
    // Finite in 32 bits, and too large for 16.
    tensors.get_mut("model.layers.0.mlp.down_proj.weight").expect("a projection").values[5] = 1e5;
    let want = ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight"];
    for stored in [Dtype::F32, Dtype::F64, Dtype::BF16] {
        let folder = Folder::new(&config_of("llama", "config.json"));
        folder.write(WEIGHTS, &file_as(&tensors, stored));
        let checkpoint = Checkpoint::open(folder.path()).expect("it opens");
        assert_eq!(checkpoint.report(&flex()).expect("it would load").not_finite, [""; 0], "no number has been read");
        for (name, device) in devices() {
            let (_, report) = checkpoint.load(&device, FloatDType::F32).expect("it loads");
            assert_eq!(report.not_finite, want, "{name}");
        }
        let (_, report) = checkpoint.load(&flex(), FloatDType::F16).expect("it loads");
        assert_eq!(report.not_finite.len(), 3, "{:?}", report.not_finite);
        let place = tempfile::tempdir().expect("a temporary folder");
        for (format, dtype, count) in [
            (Format::Hub, None, 2),
            (Format::Hub, Some(FloatDType::F16), 3),
            (Format::Native, None, 2),
            (Format::Pack, Some(FloatDType::F16), 3),
        ] {
            let to = place.path().join(format!("{format:?}{dtype:?}"));
            let written = convert(folder.path(), &to, Some(format), dtype);
            assert_eq!(written.not_finite.len(), count, "{format:?} {dtype:?}: {:?}", written.not_finite);
        }
    }
}

#[test]
fn what_cannot_be_converted_leaves_nothing() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let native = place.path().join("native");
    convert(&fixtures().join("checkpoints/llama"), &native, Some(Format::Native), None);
    let fails = |from: &Path, to: &Path, options: ConvertOptions| {
        let checkpoint = Checkpoint::open(from).expect("it opens");
        checkpoint.convert(to, &options, |_| ()).expect_err("it cannot be").to_string()
    };
    let to = place.path().join("to");
    let hub = ConvertOptions { format: Some(Format::Hub), ..ConvertOptions::default() };
    assert_says(&fails(&native, &to, hub), &["has no configuration for the hub"]);

    let lacking = Folder::copy("llama");
    let mut tensors = tensors_of("llama");
    tensors.remove("model.norm.weight");
    lacking.write(WEIGHTS, &file(&tensors));
    assert_says(&fails(lacking.path(), &to, ConvertOptions::default()), &["no tensor for `final_norm.weight`"]);

    // A file that turns out to be broken when its numbers are read.
    let broken = Folder::new(&config_of("gpt2", "config.json"));
    let mut bin = std::fs::read(fixtures().join("containers/gpt2/pytorch_model.bin")).expect("read");
    let middle = bin.len() / 2;
    bin[middle] ^= 1;
    broken.write("pytorch_model.bin", &bin);
    for format in [Format::Hub, Format::Native, Format::Pack] {
        let options = ConvertOptions { format: Some(format), ..ConvertOptions::default() };
        assert_says(&fails(broken.path(), &to, options), &["pytorch_model.bin", "checksum"]);
    }

    let replace = ConvertOptions { existing: Existing::Replace, ..ConvertOptions::default() };
    assert_says(&fails(&native, &native, replace), &["holds the model that is to be converted"]);
    assert!(Checkpoint::open(&native).is_ok());
    let left: Vec<_> =
        std::fs::read_dir(place.path()).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    assert_eq!(left, [native]);
}
