//! Folders in this crate's own format.

use std::path::Path;

use burn::tensor::FloatDType;
use burn_store::{BurnpackStore, ModuleSnapshot};
use burnformer::attention::MultiHeadAttentionConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{ModelConfig, ModelKind};
use burnformer::pretrained::{Checkpoint, Container, Existing, save_model};
use burnformer::{Error, cast_parameters};

use crate::common::{devices, fixtures, flex, randomised};
use crate::folder::{Folder, assert_says, parameters};

/// A model with nothing but blocks, so without a token table.
fn blocks() -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(12, 3);
    ModelConfig::new(ModelKind::Encoder, 2, 9, attention, FeedForwardConfig::new(12, 20)).with_final_norm(true)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a text"))
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_is_opened_again_on_every_backend() {
    for config in [blocks(), Checkpoint::open(Folder::copy("gemma2").path()).expect("it opens").config().clone()] {
        for (name, device) in devices() {
            let model = randomised(config.init(&device), 5);
            for (container, file) in [(Container::Safetensors, "model.safetensors"), (Container::Pack, "model.bpk")] {
                let place = tempfile::tempdir().expect("a temporary folder");
                let folder = place.path().join("model");
                save_model(&model, &folder, container, Existing::Keep).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(names(&folder), ["config.json", file], "{name}");
                assert_eq!(names(place.path()), ["model"], "{name}: nothing is left over");
                let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(*checkpoint.config(), config, "{name}");
                let (again, report) = checkpoint.load(&device, FloatDType::F32).expect("it loads");
                assert!(parameters(&again) == parameters(&model), "{name}, {file}");
                assert_eq!((report.unused, report.ignored, report.not_finite), Default::default(), "{name}");
                assert!(report.loaded.iter().all(|(parameter, tensor)| parameter == tensor), "{name}");
            }
        }
    }
}

#[test]
fn half_precision_is_kept() {
    let model = cast_parameters(randomised(blocks().init(&flex()), 6), FloatDType::BF16);
    let place = tempfile::tempdir().expect("a temporary folder");
    for container in [Container::Safetensors, Container::Pack] {
        let folder = place.path().join(format!("{container:?}"));
        save_model(&model, &folder, container, Existing::Keep).expect("it is saved");
        let checkpoint = Checkpoint::open(&folder).expect("it opens");
        assert!(checkpoint.inspect().tensors.iter().all(|tensor| tensor.stored_dtype.as_deref() == Some("BF16")));
        let (again, _) = checkpoint.load(&flex(), FloatDType::BF16).expect("it loads");
        assert!(parameters(&again) == parameters(&model));
    }
}

/// A pack is one of Burn's own: Burn reads ours, and its own are read here.
#[test]
fn packs_are_those_of_burn() {
    let config = blocks();
    let model = randomised(config.init(&flex()), 7);
    let place = tempfile::tempdir().expect("a temporary folder");
    let ours = place.path().join("ours");
    save_model(&model, &ours, Container::Pack, Existing::Keep).expect("it is saved");
    let mut by_burn = randomised(config.init(&flex()), 8);
    let result = by_burn.load_from(&mut BurnpackStore::from_file(ours.join("model.bpk"))).expect("Burn reads it");
    assert!(result.missing.is_empty() && result.unused.is_empty(), "{result:?}");
    assert!(parameters(&by_burn) == parameters(&model));

    let theirs = place.path().join("theirs");
    std::fs::create_dir(&theirs).expect("a folder");
    std::fs::copy(ours.join("config.json"), theirs.join("config.json")).expect("copied");
    model.save_into(&mut BurnpackStore::from_file(theirs.join("model.bpk"))).expect("Burn writes it");
    let (again, _) = Checkpoint::open(&theirs).expect("it opens").load(&flex(), FloatDType::F32).expect("it loads");
    assert!(parameters(&again) == parameters(&model));
}

#[test]
fn a_folder_that_is_there_is_kept() {
    let model = randomised(blocks().init(&flex()), 9);
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = place.path().join("model");
    let save = |existing| -> Result<(), Error> { save_model(&model, &folder, Container::Safetensors, existing) };
    std::fs::create_dir(&folder).expect("a folder");
    save(Existing::Keep).expect("an empty folder is no loss");
    let message = save(Existing::Keep).expect_err("it is there").to_string();
    assert_says(&message, &["model`: is not empty"]);
    std::fs::write(folder.join("model.bpk"), b"of an older model").expect("written");
    save(Existing::Replace).expect("it is replaced");
    assert_eq!(names(&folder), ["config.json", "model.safetensors"]);
    std::fs::remove_file(folder.join("config.json")).expect("removed");
    let message = save(Existing::Replace).expect_err("it is no model").to_string();
    assert_says(&message, &["is not empty and holds no model"]);
    assert_eq!(names(&folder), ["model.safetensors"]);

    std::fs::write(place.path().join("file"), b"").expect("written");
    for (target, said) in
        [("file", "is no folder"), ("file/model", "there is no folder"), ("none/model", "there is no")]
    {
        let target = place.path().join(target);
        let error = save_model(&model, &target, Container::Pack, Existing::Replace).expect_err("it cannot be made");
        assert_says(&error.to_string(), &[said]);
    }
    assert_eq!(names(place.path()), ["file", "model"], "nothing is left over");
}

#[test]
fn broken_folders_are_refused() {
    let model = randomised(blocks().init(&flex()), 10);
    let place = tempfile::tempdir().expect("a temporary folder");
    for (container, file) in [(Container::Safetensors, "model.safetensors"), (Container::Pack, "model.bpk")] {
        let folder = place.path().join(file);
        save_model(&model, &folder, container, Existing::Keep).expect("it is saved");
        let message = || match Checkpoint::open(&folder).and_then(|opened| opened.load(&flex(), FloatDType::F32)) {
            Ok(_) => panic!("it loads"),
            Err(error) => error.to_string(),
        };
        let config = std::fs::read_to_string(folder.join("config.json")).expect("read");
        std::fs::write(folder.join("config.json"), config.replace("\"n_layers\": 2", "\"n_layers\": 3"))
            .expect("written");
        assert_says(&message(), &[file, "no tensor for `layers.2.attention.query.weight`", "and 11 more"]);
        std::fs::write(folder.join("config.json"), config.replace("\"d_ff\": 20", "\"d_ff\": 21")).expect("written");
        assert_says(
            &message(),
            &[file, "`layers.0.feed_forward.up.weight` has shape [12, 20] and should have [12, 21]"],
        );
        std::fs::write(folder.join("config.json"), config.replace("n_layers", "n_layer")).expect("written");
        assert_says(&message(), &["config.json", "did you mean `n_layers`?"]);
        std::fs::write(folder.join("config.json"), &config).expect("written");

        let whole = std::fs::read(folder.join(file)).expect("read");
        for cut in [0, 3, 9, 40, whole.len() / 2, whole.len() - 1] {
            std::fs::write(folder.join(file), &whole[..cut]).expect("written");
            assert_says(&message(), &[file]);
        }
        for place in (0..400).step_by(3) {
            let mut wrong = whole.clone();
            wrong[place] ^= 0x2A;
            std::fs::write(folder.join(file), wrong).expect("written");
            // An error or other numbers, but no panic.
            drop(Checkpoint::open(&folder).and_then(|opened| opened.load(&flex(), FloatDType::F32)));
        }
        std::fs::write(folder.join(file), b"<html>").expect("written");
        assert_says(&message(), &[file, "HTML"]);
    }
    let folder = place.path().join("elsewhere");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(fixtures().join("checkpoints/llama/model.safetensors"), folder.join("model.bpk")).expect("copied");
    std::fs::copy(place.path().join("model.bpk/config.json"), folder.join("config.json")).expect("copied");
    assert_says(&Checkpoint::open(&folder).expect_err("no pack").to_string(), &["cannot be read as a burnpack"]);
}
