//! `--adapter` of `generate` and `convert`.

use super::*;
use crate::common::{fixtures, golden};

/// Adapters for `llama` that `tests/fixtures/learning.py` has written.
fn adapters() -> PathBuf {
    fixtures().join("adapters/llama")
}

/// What they are compared with.
fn reference() -> Value {
    let text = std::fs::read_to_string(fixtures().join("learning.json")).expect("the file can be read");
    serde_json::from_str::<Value>(&text).expect("it is JSON")["lora"].clone()
}

/// The first nine tokens of `llama`'s reference.
fn row() -> String {
    golden("llama").rows("input_ids")[0][..9].iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn adapters_act_on_what_is_generated() {
    let (llama, adapters) = (checkpoint("llama"), adapters());
    let generate = |rest: &[&str]| {
        let common = ["generate", text(&llama), "--tokens", &row(), "--max-new-tokens", "8", "--ignore-eos"];
        json(&[&common, rest].concat())["tokens"].clone()
    };
    for backend in backends() {
        let tokens = generate(&["--adapter", text(&adapters), "--backend", &backend]);
        assert_eq!(tokens, reference()["greedy"], "{backend}");
    }
    assert_ne!(generate(&[]), reference()["greedy"]);
}

#[test]
fn adapters_are_merged_into_a_converted_checkpoint() {
    let (llama, adapters) = (checkpoint("llama"), adapters());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("merged");
    let report = json(&["convert", text(&llama), "--adapter", text(&adapters), "--out", text(&out)]);
    assert_eq!(report["format"], "native");
    let logits = json(&["logits", text(&out), "--tokens", &row()]);
    // A tiny model in 32 bits, with logits below 10.
    let difference = largest_difference(&floats(&logits["data"]), &floats(&reference()["logits"]));
    assert!(difference < 1e-5, "{difference}");

    let hub = folder.path().join("hub");
    let arguments = ["convert", text(&llama), "--adapter", text(&adapters), "--to", "hub", "--out", text(&hub)];
    error(&arguments, &["merged adapters", "--to native"]);
    assert!(!hub.exists());
}

#[test]
fn adapters_that_do_not_fit_are_refused_in_one_line() {
    let (adapters, mistral) = (adapters(), checkpoint("mistral"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tensor = "`layers.0.attention.query.weight.lora.a` has shape [24, 3]";
    error(&["generate", text(&mistral), "--tokens", "1,5", "--adapter", text(&adapters)], &[tensor]);
    let out = folder.path().join("out");
    error(&["convert", text(&mistral), "--adapter", text(&adapters), "--out", text(&out)], &[tensor]);
    let nothing = text(folder.path());
    error(&["generate", text(&mistral), "--tokens", "1,5", "--adapter", nothing], &["adapter.json"]);
}
