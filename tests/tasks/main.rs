//! Models with task heads and models of images: the outputs of transformers, and what its pipelines make of texts.
//!
//! The values come from `tests/fixtures/tasks.py`.

#[path = "../common/mod.rs"]
mod common;
mod configs;
mod goldens;
#[cfg(feature = "tokenizer")]
mod texts;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType};
use burnformer::model::Transformer;
use burnformer::pretrained::Checkpoint;
use serde_json::Value;

use common::fixtures;

fn folder(name: &str) -> PathBuf {
    fixtures().join("tasks").join(name)
}

fn open(folder: &Path) -> Checkpoint {
    Checkpoint::open(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn load(name: &str, device: &Device) -> Transformer {
    open(&folder(name)).load(device, FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}")).0
}

fn golden(name: &str) -> common::Fixture {
    common::Fixture::at(&folder(name).join("golden.safetensors"))
}

/// A copy of a task's model with another config.
fn changed(name: &str, config_file: &str, edit: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder can be made");
    std::fs::copy(folder(name).join("model.safetensors"), copy.path().join("model.safetensors")).expect("copied");
    let text = std::fs::read(folder(name).join(config_file)).expect("the config can be read");
    let mut config: Value = serde_json::from_slice(&text).expect("the config is JSON");
    edit(&mut config);
    std::fs::write(copy.path().join("config.json"), config.to_string()).expect("the config can be written");
    copy
}
