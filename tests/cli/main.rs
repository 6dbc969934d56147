//! The command line from outside: exit codes, messages and JSON.
//!
//! Every error is exit code 2 and exactly one line on stderr, with no sign of a panic.

#![cfg(feature = "cli")]

mod adapters;
mod checkpoint_forms;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod errors;
mod generate;
mod gguf;
mod heads;
mod plots;
#[cfg(feature = "remote")]
mod remote;
mod results;
mod tasks;
mod train;

use std::path::{Path, PathBuf};
use std::process::Command;

use burnformer::backend::Backend;
use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_burnformer");

/// What a run of the program left.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run(arguments: &[&str]) -> Run {
    let output = Command::new(PROGRAM).args(arguments).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
    Run {
        code: output.status.code().expect("it ends by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs what must succeed and gives its JSON.
fn json(arguments: &[&str]) -> Value {
    let run = run(&[arguments, &["--json"]].concat());
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", run.stdout))
}

/// Runs what must fail with one line that holds all of `parts`, and gives that line.
#[track_caller]
fn error(arguments: &[&str], parts: &[&str]) -> String {
    let Run { code, stdout, stderr } = run(arguments);
    assert_eq!(code, 2, "{arguments:?}: {stdout}{stderr}");
    assert_eq!(stdout, "", "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("burnformer: error: "), "{arguments:?}: {stderr}");
    for word in ["panicked", "RUST_BACKTRACE", "internal error"] {
        assert!(!stderr.contains(word), "{arguments:?}: {stderr}");
    }
    for part in parts {
        assert!(stderr.contains(part), "{arguments:?}: `{part}` is not in: {stderr}");
    }
    stderr
}

/// The compiled backends that have a device here, by the program's own account.
fn backends() -> Vec<String> {
    let found = json(&["backends"]);
    let found = found.as_array().expect("a list");
    assert_eq!(found.len(), Backend::ALL.len());
    for entry in found {
        let name = entry["name"].as_str().expect("a name");
        let is_compiled = Backend::compiled().any(|backend| backend.name() == name);
        let is_available = entry["available"] == true;
        assert!(is_compiled || !is_available, "{entry}");
        assert_eq!(entry["device"].is_string(), is_available, "{entry}");
        assert_eq!(entry["error"].is_string(), !is_available, "{entry}");
    }
    let available = found.iter().filter(|entry| entry["available"] == true);
    available.map(|entry| entry["name"].as_str().unwrap_or_default().to_owned()).collect()
}

const CONFIG: &str = r#"
kind = "decoder"
d_model = 16
n_layers = 2
max_seq_len = 12
[embedding]
vocab_size = 32
[positions.learned]
offset = 0
[attention]
n_heads = 4
n_kv_heads = 2
[feed_forward]
d_ff = 24
[norm]
eps = 1e-5
[head]
tied = true
"#;

/// A folder with the file `config.toml`: [`CONFIG`] with some lines replaced.
fn config(edits: &[(&str, &str)]) -> (TempDir, String) {
    let text = edits.iter().fold(CONFIG.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).expect("the file is written");
    let path = path.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// A copy of a folder of files.
fn copied(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for file in std::fs::read_dir(folder).expect("the folder is there") {
        let file = file.expect("it is listed");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    copy
}

/// A copy of a checkpoint folder in which the last number is NaN, and the tensor that holds it.
fn with_a_nan(folder: &Path) -> (TempDir, String) {
    let copy = copied(folder);
    let path = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &bytes).expect("written");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let spoiled = tensors.iter().find(|(_, view)| view.data().ends_with(&f32::NAN.to_le_bytes())).expect("one").0;
    (copy, spoiled.to_owned())
}
