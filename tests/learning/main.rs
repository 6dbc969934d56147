//! What is learned from gradients: their norms by layer, and adapters.

#[path = "../common/mod.rs"]
mod common;

mod adapter_files;
mod adapters;
mod gradient_norms;

use std::path::Path;

use serde_json::Value;

/// The reference values that `tests/fixtures/learning.py` has written.
fn references() -> Value {
    let path = common::fixtures().join("learning.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of everything in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}
