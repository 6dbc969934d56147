//! Weights in the files that PyTorch writes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnformer::pretrained::Checkpoint;
use half::{bf16, f16};
use serde_json::{Value, json};

use crate::common::{Array, assert_close, devices, fixtures};
use crate::folder::{Folder, WEIGHTS, assert_says, config_of, parameters, tensors_of, weights_of};
use crate::torch_writer::{Saved, torch_file};

const BIN: &str = "pytorch_model.bin";
const BIN_INDEX: &str = "pytorch_model.bin.index.json";

fn container(name: &str) -> PathBuf {
    fixtures().join("containers").join(name)
}

/// A folder with the config of a checkpoint, and files of a container in place of its weights.
fn folder(checkpoint: &str, files: &[&str]) -> Folder {
    let folder = Folder::new(&config_of(checkpoint, "config.json"));
    for file in files {
        let path = container(file);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        folder.write(name, &std::fs::read(&path).expect("it can be read"));
    }
    folder
}

const SHARDS: [&str; 3] = [
    "llama_shards/pytorch_model-00001-of-00002.bin",
    "llama_shards/pytorch_model-00002-of-00002.bin",
    "llama_shards/pytorch_model.bin.index.json",
];

#[test]
fn a_state_dict_fills_the_same_model_on_every_backend() {
    let folder = folder("gpt2", &["gpt2/pytorch_model.bin"]);
    let want = parameters(&Folder::copy("gpt2").loaded().0);
    for (name, device) in devices() {
        let checkpoint = Checkpoint::open(folder.path()).expect("it opens");
        let (model, report) = checkpoint.load(&device, FloatDType::F32).unwrap_or_else(|error| panic!("{error}"));
        assert!(parameters(&model) == want, "{name}");
        assert_eq!(report.unused, [""; 0], "{name}");
    }
}

/// PyTorch writes the matrix of a tied head once more, and one table in memory is enough.
#[test]
fn a_head_that_is_the_token_table_is_not_loaded_twice() {
    let tied = folder("gpt2", &["gpt2/pytorch_model.bin"]);
    let checkpoint = Checkpoint::open(tied.path()).expect("it opens");
    let head = checkpoint.config().head.as_ref().expect("a head");
    assert!(head.tied);
    let (model, report) = tied.loaded();
    assert!(model.head.expect("a head").weight.is_none());
    assert!(report.ignored.contains(&"lm_head.weight".to_owned()), "{:?}", report.ignored);

    // A matrix of other numbers wins over what the config says.
    let mut tensors = tensors_of("gpt2");
    let mut head = tensors["transformer.wte.weight"].clone();
    head.values[7] = 1.5;
    tensors.insert("lm_head.weight".to_owned(), head.clone());
    let folder = Folder::new(&config_of("gpt2", "config.json"));
    folder.write(BIN, &saved(&tensors, &[]));
    let got = parameters(&folder.loaded().0);
    assert!(got["head.weight"] == head.values);
}

#[test]
fn the_file_of_a_training_program_is_read_as_its_state_dict() {
    let want = Folder::copy("llama").loaded();
    let old = folder("llama", &["llama_training/last.pt"]);
    let (model, report) = old.loaded();
    assert!(parameters(&model) == parameters(&want.0));
    assert_eq!(report, want.1, "names are those inside the state dict");
    let path = container("llama_training/last.pt");
    let bytes = std::fs::read(path).expect("it can be read");
    for name in ["last.pth", BIN] {
        let folder = Folder::new(&config_of("llama", "config.json"));
        folder.write(name, &bytes);
        assert!(parameters(&folder.loaded().0) == parameters(&model), "{name}");
    }
    // Which of two is meant, nobody can know.
    old.write("best.pt", &bytes);
    assert_says(&old.message(), &["has no model.safetensors", "there are 2 weight files, as `best.pt`"]);
}

#[test]
fn names_may_be_in_dictionaries_and_under_prefixes() {
    let tensors = tensors_of("llama");
    let want = parameters(&Folder::copy("llama").loaded().0);
    let renamed = |rename: &dyn Fn(&str) -> String| -> BTreeMap<String, Array> {
        tensors.iter().map(|(name, array)| (rename(name), array.clone())).collect()
    };
    let bare = renamed(&|name| name.trim_start_matches("model.").to_owned());
    let data_parallel = renamed(&|name| format!("module.{name}"));
    for wrappers in [&[][..], &["state_dict"], &["model_state_dict"], &["model"], &["outer", "inner"]] {
        for (what, tensors) in [("as it is", &tensors), ("bare", &bare), ("module", &data_parallel)] {
            let folder = Folder::new(&config_of("llama", "config.json"));
            folder.write(BIN, &saved(tensors, wrappers));
            let (model, report) = folder.loaded();
            assert!(parameters(&model) == want, "{what} in {wrappers:?}");
            assert_eq!(report.unused, [""; 0], "{what} in {wrappers:?}");
        }
    }
}

#[test]
fn shards_of_half_precision_are_widened() {
    let (model, report) = folder("llama", &SHARDS).loaded();
    assert_eq!(report.unused, [""; 0]);
    let want = parameters(&Folder::copy("llama").loaded().0);
    let bf16s = container(SHARDS[2]);
    let index: Value = serde_json::from_slice(&std::fs::read(bf16s).expect("read")).expect("JSON");
    for (parameter, tensor) in &report.loaded {
        let file = index["weight_map"][tensor].as_str().expect("a name");
        let round = |x: &f64| match file.contains("00001") {
            true => bf16::from_f32(*x as f32).to_f64(),
            false => f16::from_f32(*x as f32).to_f64(),
        };
        let rounded: Vec<f64> = want[parameter].iter().map(round).collect();
        assert_close(parameter, &parameters(&model)[parameter], &rounded, 0.0);
    }
}

#[test]
fn an_index_of_pytorch_files_must_say_what_is_there() {
    let folder = folder("llama", &SHARDS);
    let text = std::fs::read(container(SHARDS[2])).expect("read");
    let changed = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut index: Value = serde_json::from_slice(&text).expect("JSON");
        change(index["weight_map"].as_object_mut().expect("a map"));
        folder.write(BIN_INDEX, index.to_string().as_bytes());
        folder.message()
    };
    let message = changed(&|map| drop(map.insert("model.norm.weight".into(), json!("../pytorch_model.bin"))));
    assert_says(&message, &[BIN_INDEX, "names the file `../pytorch_model.bin`"]);
    let message = changed(&|map| drop(map.insert("x".into(), json!("pytorch_model-00001-of-00002.bin"))));
    assert_says(&message, &["says that `x` is in `pytorch_model-00001-of-00002.bin`, and it is not"]);
    folder.write(BIN_INDEX, &text);
    folder.remove("pytorch_model-00002-of-00002.bin");
    assert_says(&folder.message(), &["lists `pytorch_model-00002-of-00002.bin` with", "there is no such file"]);
}

#[test]
fn safetensors_come_first() {
    let folder = Folder::copy("llama");
    folder.write(BIN, b"<html>");
    folder.write(BIN_INDEX, b"{}");
    assert!(folder.load().is_ok());
    folder.remove(WEIGHTS);
    assert_says(&folder.message(), &[BIN, "HTML"]);
}

#[test]
fn broken_files_are_called_what_they_look_like() {
    let whole = std::fs::read(container("gpt2/pytorch_model.bin")).expect("read");
    let old = std::fs::read(container("llama_training/last.pt")).expect("read");
    let mut not_there = saved(&tensors_of("gpt2"), &[]);
    let entry = b"archive/data/3";
    while let Some(place) = not_there.windows(entry.len()).position(|window| window == entry) {
        not_there[place + entry.len() - 1] = b'x';
    }
    for (what, bytes, said) in [
        ("nothing", Vec::new(), "is empty"),
        ("half an archive", whole[..whole.len() / 2].to_vec(), "is no whole PyTorch file (cut off?)"),
        ("an archive but for its end", whole[..whole.len() - 30].to_vec(), "is no whole PyTorch file (cut off?)"),
        ("4 bytes", whole[..4].to_vec(), "is no whole PyTorch file (cut off?)"),
        ("half of an old file", old[..old.len() / 2].to_vec(), "beyond the end of the file"),
        ("the start of an old file", old[..300].to_vec(), "cannot be read as a PyTorch file"),
        ("some text", b"hello, world, this is no pickle".to_vec(), "cannot be read as a PyTorch file"),
        ("an empty pickle", b"\x80\x02}.".to_vec(), "holds no tensors"),
        ("a list", b"\x80\x02].".to_vec(), "cannot be read as a PyTorch file"),
        ("an archive of other things", torch_file(&[], &[]), "holds no tensors"),
        ("a storage short", not_there, "cannot be read"),
        ("LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".to_vec(), "git lfs pull"),
        ("HTML", b"<!DOCTYPE html><html><body>404</body></html>".to_vec(), "HTML"),
        ("JSON", br#"{"error": "Repository not found"}"#.to_vec(), "JSON"),
        ("safetensors", weights_of("gpt2"), "is a safetensors file"),
        ("GGUF", b"GGUF\x03\0\0\0rest".to_vec(), "GGUF"),
    ] {
        let folder = Folder::new(&config_of("gpt2", "config.json"));
        folder.write(BIN, &bytes);
        let message = folder.message();
        assert!(message.contains(BIN) && message.contains(said), "{what}: {message}");
        assert!(!message.contains('\n'), "{what}: {message}");
    }
}

/// Whatever is wrong with a file, it is an error and no panic.
#[test]
fn no_cut_and_no_wrong_byte_is_a_panic() {
    let files = ["gpt2/pytorch_model.bin", "llama_training/last.pt"].map(|name| {
        let bytes = std::fs::read(container(name)).expect("read");
        (if name.starts_with("gpt2") { "gpt2" } else { "llama" }, bytes)
    });
    for (checkpoint, whole) in files {
        let folder = Folder::new(&config_of(checkpoint, "config.json"));
        let mut refused = 0;
        for step in 0..150 {
            let place = step * whole.len() / 150;
            folder.write(BIN, &whole[..place]);
            assert!(folder.load().is_err(), "cut at {place}");
            // Bytes near the ends, where what the others mean is said.
            let near = if step % 2 == 0 { step * 7 } else { whole.len() - 1 - step * 7 };
            let mut wrong = whole.clone();
            wrong[near] ^= 0x15;
            folder.write(BIN, &wrong);
            refused += usize::from(folder.load().is_err());
        }
        assert!(refused > 20, "{refused}");
    }
}

/// A file of 32-bit tensors.
fn saved(tensors: &BTreeMap<String, Array>, wrappers: &[&str]) -> Vec<u8> {
    let of = |(name, array): (&String, &Array)| Saved {
        name: name.clone(),
        storage: "FloatStorage",
        shape: array.shape.clone(),
        bytes: array.values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
    };
    torch_file(&tensors.iter().map(of).collect::<Vec<_>>(), wrappers)
}
