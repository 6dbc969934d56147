//! GGUF files: the models and tokenizers that they hold, and what is said about broken ones.
//!
//! The values come from `tests/fixtures/gguf_files.py`.

#[path = "../common/mod.rs"]
mod common;
mod handmade;
mod keys;
mod malformed;
mod models;
#[cfg(feature = "tokenizer")]
mod texts;

use std::path::PathBuf;

use crate::common::fixtures;

/// A file that the script has written.
fn fixture(name: &str) -> PathBuf {
    fixtures().join("gguf").join(name)
}

/// SmolLM2, where it has been fetched with `scripts/fetch-models`; `scripts/env` says where it lies.
fn smollm2() -> Option<PathBuf> {
    let models = std::env::var_os("BURNFORMER_MODELS").map(PathBuf::from).unwrap_or_default();
    let path = models.join("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.is_file() {
        println!("skipped: there is no file `{}`; run scripts/fetch-models", path.display());
        return None;
    }
    Some(path)
}
