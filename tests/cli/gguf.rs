//! GGUF files as MODEL arguments.

use serde_json::Value;

use crate::{error, json, text};

fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf").join(name)
}

#[test]
fn a_gguf_file_is_a_model() {
    let file = fixture("qwen2.gguf");
    let file = text(&file);
    let logits = json(&["logits", file, "--tokens", "1,5,9"]);
    assert_eq!(logits["shape"][1], 3);
    let config = json(&["config", "show", file]);
    assert_eq!(config["n_layers"], 2, "{config}");
    let by_text = json(&["run", file, "--text", "a dog"]);
    assert_eq!(by_text["shape"][1], 2, "{by_text}");
    let golden = fixture("qwen2.safetensors");
    let report: Value = json(&["verify", file, "--golden", text(&golden)]);
    assert_eq!(report["ok"], true, "{report}");
}

#[test]
fn a_broken_gguf_file_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("cut.gguf");
    let whole = std::fs::read(fixture("qwen2.gguf")).expect("the fixture is there");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("the file can be written");
    error(&["logits", text(&path), "--tokens", "1"], &["cut.gguf", "download it again"]);
    error(&["logits", text(&folder.path().join("none.gguf")), "--tokens", "1"], &["none.gguf"]);
    std::fs::write(folder.path().join("plain"), &whole).expect("the file can be written");
    json(&["logits", text(&folder.path().join("plain")), "--tokens", "1"]);
}
