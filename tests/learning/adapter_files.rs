//! Adapters saved and loaded alone, and merged while a checkpoint is converted.

use std::path::Path;

use burn::module::Module;
use burn::tensor::FloatDType;
use burnformer::adapters::{LoraConfig, merge_adapters};
use burnformer::model::Transformer;
use burnformer::pretrained::{
    Checkpoint, Container, ConvertOptions, Existing, Format, load_adapters, read_adapter_config, save_adapters,
    save_model,
};
use serde_json::Value;

use crate::adapters::{adapted_llama, reference_config, reference_input};
use crate::common::{
    Fixture, assert_apart, assert_close, checkpoint_folder, devices, fixtures, flex, load, logits, numbers,
};
use crate::{entries, references};

/// The reference's adapters in a folder of their own.
fn saved() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    save_adapters(&adapted_llama(&flex()), &reference_config(), folder.path(), Existing::Keep).unwrap();
    folder
}

fn refused(model: Transformer, folder: &Path) -> String {
    let error = load_adapters(model, folder).expect_err("the adapters do not fit").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn adapters_alone_are_saved_and_loaded_on_every_backend() {
    let folder = saved();
    assert_eq!(entries(folder.path()), ["adapter.json", "adapter.safetensors"]);
    let tensors = Fixture::at(&folder.path().join("adapter.safetensors")).all();
    assert_eq!(tensors.len(), 12);
    assert_eq!(tensors["layers.0.attention.value.weight.lora.a"].shape, [24, 3]);
    assert_eq!(tensors["layers.0.attention.value.weight.lora.b"].shape, [3, 12]);
    assert_eq!(read_adapter_config(folder.path()).unwrap(), reference_config());

    let wanted = numbers(&references()["lora"]["logits"]);
    for (backend, device) in devices() {
        let loaded = load_adapters(load("llama", &device), folder.path()).unwrap();
        // As in `adapters`.
        assert_close(&format!("{backend}: loaded"), &logits(&loaded, &reference_input()), &wanted, 1e-5);
    }
    let loaded = load_adapters(load("llama", &flex()), folder.path()).unwrap();
    assert_eq!(logits(&loaded, &reference_input()), logits(&adapted_llama(&flex()), &reference_input()));
}

#[test]
fn adapters_that_another_program_wrote_are_read() {
    let loaded = load_adapters(load("llama", &flex()), fixtures().join("adapters/llama")).unwrap();
    let wanted = numbers(&references()["lora"]["logits"]);
    assert_close("written by Python", &logits(&loaded, &reference_input()), &wanted, 1e-5);
}

#[test]
fn loaded_adapters_can_be_trained_further() {
    let model = load_adapters(load("llama", &flex().autodiff()), saved().path()).unwrap();
    let weight = &model.layers[0].attention.query.weight;
    let adapter = weight.adapter().expect("queries have adapters");
    assert!(adapter.a.val().is_require_grad() && adapter.b.val().is_require_grad());
    assert!(!weight.base().is_require_grad());
    // Loaded for inference and then taken to training, they are trained too.
    let model = load_adapters(load("llama", &flex()), saved().path()).unwrap().train();
    let weight = &model.layers[0].attention.query.weight;
    assert!(weight.adapter().unwrap().a.val().is_require_grad() && !weight.base().is_require_grad());
}

#[test]
fn factors_have_the_same_names_with_and_without_dropout() {
    let folder = tempfile::tempdir().unwrap();
    let lora = reference_config().with_dropout(0.25);
    let model = lora.apply(load("llama", &flex())).unwrap();
    save_adapters(&model, &lora, folder.path(), Existing::Keep).unwrap();
    let names = |folder: &Path| Fixture::at(&folder.join("adapter.safetensors")).all().into_keys().collect::<Vec<_>>();
    assert_eq!(names(folder.path()), names(saved().path()));
    assert_eq!(read_adapter_config(folder.path()).unwrap().dropout, 0.25);
    load_adapters(load("llama", &flex()), folder.path()).unwrap();
}

#[test]
fn a_folder_is_replaced_only_where_that_is_asked_for() {
    let folder = saved();
    let other = LoraConfig::new(5, 1.0);
    let model = other.apply(load("llama", &flex())).unwrap();
    let error = save_adapters(&model, &other, folder.path(), Existing::Keep).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(read_adapter_config(folder.path()).unwrap(), reference_config());
    save_adapters(&model, &other, folder.path(), Existing::Replace).unwrap();
    assert_eq!(read_adapter_config(folder.path()).unwrap(), other);
    assert_eq!(entries(folder.path()), ["adapter.json", "adapter.safetensors"]);

    let error = save_adapters(&load("llama", &flex()), &other, folder.path(), Existing::Replace).unwrap_err();
    assert!(error.to_string().contains("no adapters to save"), "{error}");
}

#[test]
fn adapters_of_another_model_are_refused_by_the_name_of_a_tensor() {
    let folder = saved();
    // Another width; the error names the first tensor that is wrong and both shapes.
    let error = refused(load("mistral", &flex()), folder.path());
    assert!(error.contains("adapter.safetensors"), "{error}");
    assert!(error.contains("`layers.0.attention.query.weight.lora.a` has shape [24, 3] and should have"), "{error}");
    // Fewer layers, and more.
    let mut shallow = load("llama", &flex());
    shallow.layers.truncate(1);
    let error = refused(shallow, folder.path());
    assert!(error.contains("`layers.1.attention.query.weight.lora.a` belongs to no weight of this model"), "{error}");
    let mut deep = load("llama", &flex());
    deep.layers.push(deep.layers[0].clone());
    let error = refused(deep, folder.path());
    assert!(error.contains("`layers.2.attention.query.weight.lora.a` is not there"), "{error}");
    // No network with that projection.
    let config = LoraConfig::default().with_projections(vec![burnformer::adapters::Projection::Gate]);
    let gated = config.apply(load("llama", &flex())).unwrap();
    let gates = tempfile::tempdir().unwrap();
    save_adapters(&gated, &config, gates.path(), Existing::Keep).unwrap();
    let error = refused(load("gpt2", &flex()), gates.path());
    assert!(error.contains("adapter.json") && error.contains("`gate`, which the model does not have"), "{error}");
    // A model that has adapters already.
    assert!(refused(adapted_llama(&flex()), folder.path()).contains("already"), "one pair per weight");
}

#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let folder = saved();
    let (config, factors) = (folder.path().join("adapter.json"), folder.path().join("adapter.safetensors"));
    let text = std::fs::read_to_string(&config).unwrap();
    let with_config = |text: &str| {
        std::fs::write(&config, text).unwrap();
        refused(load("llama", &flex()), folder.path())
    };
    let error = with_config(&text.replace("\"rank\": 3", "\"rank\": 4"));
    assert!(error.contains("`layers.0.attention.query.weight.lora.a` has shape [24, 3]"), "{error}");
    assert!(error.contains("should have [24, 4] for this model and this rank"), "{error}");
    let error = with_config(&text.replace("\"down\"", "\"up\""));
    assert!(error.contains("`layers.0.feed_forward.up.weight.lora.a` is not there"), "{error}");
    assert!(with_config(&text.replace("rank", "rnak")).contains("unknown field `rnak`"));
    assert!(with_config("{\"rank\": 0}").contains("`rank` must be at least 1"));
    assert!(with_config("").contains("adapter.json"));
    std::fs::write(&config, &text).unwrap();

    let bytes = std::fs::read(&factors).unwrap();
    let with_factors = |bytes: &[u8]| {
        std::fs::write(&factors, bytes).unwrap();
        refused(load("llama", &flex()), folder.path())
    };
    assert!(with_factors(&bytes[..bytes.len() - 10]).contains("ends 10 bytes before its last tensor"));
    let mut spoilt = bytes.clone();
    let last = spoilt.len();
    spoilt[last - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(with_factors(&spoilt).contains("holds numbers that are NaN or infinite"));
    std::fs::remove_file(&factors).unwrap();
    assert!(refused(load("llama", &flex()), folder.path()).contains("adapter.safetensors"));
    let nothing = tempfile::tempdir().unwrap();
    assert!(refused(load("llama", &flex()), nothing.path()).contains("adapter.json"));
}

#[test]
fn a_saved_model_has_its_adapters_merged() {
    let folder = tempfile::tempdir().unwrap();
    save_model(&adapted_llama(&flex()), folder.path(), Container::Safetensors, Existing::Keep).unwrap();
    let names = Fixture::at(&folder.path().join("model.safetensors")).all();
    assert_eq!(names.len(), 21, "no tensor more than the checkpoint has");
    let (model, report) = Checkpoint::open(folder.path()).unwrap().load(&flex(), FloatDType::F32).unwrap();
    assert!(report.unused.is_empty());
    let merged = merge_adapters(adapted_llama(&flex()));
    assert_eq!(logits(&model, &reference_input()), logits(&merged, &reference_input()));
}

#[test]
fn a_checkpoint_is_converted_with_adapters_merged() {
    let (adapters, out) = (saved(), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).unwrap();
    let wanted = numbers(&references()["lora"]["logits"]);
    let options =
        |format| ConvertOptions { format, adapters: Some(adapters.path().to_owned()), ..ConvertOptions::default() };
    for (name, format) in [("default", None), ("native", Some(Format::Native)), ("pack", Some(Format::Pack))] {
        let folder = out.path().join(name);
        checkpoint.convert(&folder, &options(format), |_| ()).unwrap();
        let (model, _) = Checkpoint::open(&folder).unwrap().load(&flex(), FloatDType::F32).unwrap();
        let got = logits(&model, &reference_input());
        // As in `adapters`.
        assert_close(name, &got, &wanted, 1e-5);
        assert_apart("merged and not", &got, &logits(&load("llama", &flex()), &reference_input()), 1e-3);
    }
    let hub = checkpoint.convert(out.path().join("hub"), &options(Some(Format::Hub)), |_| ()).unwrap_err().to_string();
    assert!(hub.contains("--to native"), "{hub}");
    let others = ConvertOptions { adapters: Some(adapters.path().to_owned()), ..ConvertOptions::default() };
    let mistral = Checkpoint::open(checkpoint_folder("mistral")).unwrap();
    let error = mistral.convert(out.path().join("mistral"), &others, |_| ()).unwrap_err().to_string();
    assert!(error.contains("`layers.0.attention.query.weight.lora.a`"), "{error}");
    assert_eq!(entries(out.path()), ["default", "native", "pack"], "nothing is left of what failed");
}

#[test]
fn adapters_of_peft_are_read_under_the_names_of_the_family() {
    let folder = fixtures().join("adapters/peft_llama");
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).unwrap();
    let wanted = numbers(&references()["lora"]["logits"]);
    let adapted = checkpoint.load_adapters(load("llama", &flex()), &folder).unwrap();
    assert_close("adapted", &logits(&adapted, &reference_input()), &wanted, 1e-5);
    let out = tempfile::tempdir().unwrap();
    let options = ConvertOptions { adapters: Some(folder.clone()), ..ConvertOptions::default() };
    checkpoint.convert(out.path().join("merged"), &options, |_| ()).unwrap();
    let (merged, _) = Checkpoint::open(out.path().join("merged")).unwrap().load(&flex(), FloatDType::F32).unwrap();
    assert_close("converted", &logits(&merged, &reference_input()), &wanted, 1e-5);
    // What was read is saved in this crate's own form.
    let config = LoraConfig { dropout: 0.1, ..reference_config() };
    let own = out.path().join("own");
    save_adapters(&adapted, &config, &own, Existing::Keep).unwrap();
    let again = checkpoint.load_adapters(load("llama", &flex()), &own).unwrap();
    assert_close("again", &logits(&again, &reference_input()), &wanted, 1e-5);

    for (name, tensor) in [
        ("mistral", "`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` has shape [3, 24]"),
        ("gpt2", "belongs to no weight of this model"),
    ] {
        let other = Checkpoint::open(checkpoint_folder(name)).unwrap();
        let error = other.load_adapters(load(name, &flex()), &folder).unwrap_err().to_string();
        assert!(error.contains(tensor), "{name}: {error}");
    }
}

#[test]
fn adapters_are_written_as_peft_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).unwrap();
    let lora = reference_config().with_dropout(0.1);
    let model = adapted_llama(&flex());
    checkpoint.save_peft_adapters(&model, &lora, folder.path(), Existing::Keep).unwrap();
    assert_eq!(entries(folder.path()), ["adapter_config.json", "adapter_model.safetensors"]);
    let theirs = fixtures().join("adapters/peft_llama");
    let tensors = |folder: &Path| Fixture::at(&folder.join("adapter_model.safetensors")).all();
    let (got, wanted) = (tensors(folder.path()), tensors(&theirs));
    assert!(got.keys().eq(wanted.keys()), "{:?}", got.keys());
    for (name, wanted) in &wanted {
        assert_eq!(got[name].shape, wanted.shape, "{name}");
        // Theirs went through 32 bits as well.
        assert_close(name, &got[name].values, &wanted.values, 1e-7);
    }
    let config = |folder: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.join("adapter_config.json")).unwrap()).unwrap()
    };
    let (got, wanted) = (config(folder.path()), config(&theirs));
    for (key, value) in got.as_object().unwrap() {
        assert_eq!(value, &wanted[key], "{key}");
    }
    checkpoint.save_peft_adapters(&model, &lora, folder.path(), Existing::Replace).unwrap();

    // GPT-2 stores queries, keys and values as one matrix.
    let gpt2 = Checkpoint::open(checkpoint_folder("gpt2")).unwrap();
    let model = LoraConfig::default().apply(load("gpt2", &flex())).unwrap();
    let out = folder.path().join("gpt2");
    let error = gpt2.save_peft_adapters(&model, &LoraConfig::default(), &out, Existing::Keep).unwrap_err().to_string();
    assert!(error.contains("`layers.0.attention.query.weight` is no matrix of its own"), "{error}");
    assert!(!out.exists());
}
