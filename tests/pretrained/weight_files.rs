//! Weight files: whole and broken, one and several.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::Array;
use crate::family_tensors::{DISTILBERT, made};
use crate::folder::{
    Folder, INDEX, WEIGHTS, assert_says, file, file_as, file_with_header, parameters, tensors_of, weights_of,
};

#[test]
fn broken_files_are_called_what_they_look_like() {
    let whole = weights_of("llama");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("8 bytes")) as usize;
    let overlapping = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let with_hole = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}"#;
    let overflowing = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}}"#;
    let wrong_size = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
    let unknown_type = r#"{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}"#;
    for (what, bytes, said) in [
        ("nothing", Vec::new(), "is empty"),
        ("7 bytes", whole[..7].to_vec(), "has only 7 bytes"),
        ("a length alone", whole[..8].to_vec(), "download it again"),
        ("half a header", whole[..header / 2].to_vec(), "download it again"),
        ("a header alone", whole[..header].to_vec(), "ends"),
        ("all but one byte", whole[..whole.len() - 1].to_vec(), "ends 1 bytes before its last tensor does"),
        ("one byte more", [&whole[..], b"x"].concat(), "goes on for 1 bytes"),
        ("an absurd length", [&[0xFF; 8], &whole[8..]].concat(), "says that its header has 18446744073709551615 bytes"),
        ("a large length", [&50_000_000_u64.to_le_bytes(), &whole[8..]].concat(), "a header of 50000000"),
        ("no JSON", file_with_header("{not json", 8), "has a broken safetensors header"),
        ("overlap", file_with_header(overlapping, 12), "invalid offset for tensor `b`"),
        ("hole", file_with_header(with_hole, 20), "invalid offset for tensor `b`"),
        ("overflow", file_with_header(overflowing, 8), "overflow"),
        ("size", file_with_header(wrong_size, 8), "invalid shape"),
        ("type", file_with_header(unknown_type, 8), "F31"),
        ("LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".to_vec(), "git lfs pull"),
        ("HTML", b"<!DOCTYPE html><html><body>404</body></html>".to_vec(), "HTML"),
        ("HTML", b"\n  <html><body>Sign in</body></html>".to_vec(), "HTML"),
        ("JSON", br#"{"error": "Repository not found"}"#.to_vec(), "JSON"),
        ("pickle", b"PK\x03\x04\0\0\x08\x08".to_vec(), "pickle"),
        ("pickle", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "pickle"),
        ("GGUF", b"GGUF\x03\0\0\0rest".to_vec(), "GGUF"),
    ] {
        let folder = Folder::copy("llama");
        folder.write(WEIGHTS, &bytes);
        let message = folder.message();
        assert!(message.contains(WEIGHTS) && message.contains(said), "{what}: {message}");
    }
}

#[test]
fn models_that_the_tensors_do_not_fill_are_refused() {
    let folder = Folder::copy("llama");
    let changed = |change: &dyn Fn(&mut BTreeMap<String, Array>)| {
        let mut tensors = tensors_of("llama");
        change(&mut tensors);
        folder.write(WEIGHTS, &file(&tensors));
        folder.message()
    };
    let message = changed(&|tensors| {
        let norm = tensors.remove("model.norm.weight").expect("a norm");
        tensors.insert("model.norms.weight".into(), norm);
    });
    assert_says(
        &message,
        &[WEIGHTS, "no tensor for `final_norm.weight` (`model.norm.weight` in the file); not used: model.norms.weight"],
    );
    let message = changed(&|tensors| tensors.retain(|name, _| !name.contains("layers.1")));
    assert_says(&message, &["`layers.1.attention.query.weight`", "and 4 more"]);
    let message = changed(&|tensors| {
        let query = tensors.get_mut("model.layers.0.self_attn.q_proj.weight").expect("queries");
        *query = Array { shape: vec![12, 48], values: query.values.clone() };
    });
    assert_says(
        &message,
        &[
            "`model.layers.0.self_attn.q_proj.weight` has shape [12, 48] and should have [24, 24]",
            "attention.query.weight",
        ],
    );
    let message = changed(&|tensors| *tensors = made(DISTILBERT, 2));
    assert_says(
        &message,
        &["`embed_tokens.weight`", "it is no llama checkpoint", "distilbert.embeddings.LayerNorm.bias"],
    );
    let message = changed(&|tensors| tensors.retain(|name, _| name.contains("embed")));
    assert_says(&message, &["1 tensors, too few for the 2 layers"]);

    folder.write(WEIGHTS, &file_as(&tensors_of("llama"), Dtype::I64));
    assert_says(&folder.message(), &["`model.embed_tokens.weight` holds I64 numbers"]);
}

#[test]
fn a_folder_without_weights_says_what_is_there() {
    let folder = Folder::copy("llama");
    folder.remove(WEIGHTS);
    assert_says(&folder.message(), &["has no model.safetensors"]);
    folder.write("tf_model.h5", b"PK");
    assert_says(&folder.message(), &["there is `tf_model.h5`, which is not read under that name"]);
    folder.write("other.safetensors", b"PK");
    assert_says(&folder.message(), &["there are 2 weight files, as `other.safetensors`, of other names"]);
}

/// A fixture in two files, with the index that lists them.
fn sharded(name: &str) -> (Folder, Value) {
    let folder = Folder::copy(name);
    folder.remove(WEIGHTS);
    let tensors = tensors_of(name);
    let (mut shards, mut map) = ([BTreeMap::new(), BTreeMap::new()], serde_json::Map::new());
    for (index, (tensor, array)) in tensors.into_iter().enumerate() {
        map.insert(tensor.clone(), json!(shard_name(index % 2)));
        shards[index % 2].insert(tensor, array);
    }
    for (index, tensors) in shards.iter().enumerate() {
        folder.write(&shard_name(index), &file(tensors));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    folder.write(INDEX, index.to_string().as_bytes());
    (folder, index)
}

fn shard_name(index: usize) -> String {
    format!("model-0000{}-of-00002.safetensors", index + 1)
}

#[test]
fn weights_may_lie_in_several_files() {
    let (folder, _) = sharded("gemma2");
    let (model, report) = folder.loaded();
    assert_eq!(report.unused, [""; 0]);
    assert!(parameters(&model) == parameters(&Folder::copy("gemma2").loaded().0));
}

#[test]
fn an_index_must_say_what_is_there() {
    let (folder, index) = sharded("llama");
    let changed = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut index = index.clone();
        change(index["weight_map"].as_object_mut().expect("a map"));
        folder.write(INDEX, index.to_string().as_bytes());
        folder.message()
    };
    let message = changed(&|map| drop(map.insert("model.extra".into(), json!(shard_name(0)))));
    assert_says(&message, &[INDEX, "says that `model.extra` is in `model-00001-of-00002.safetensors`, and it is not"]);
    let message = changed(&|map| drop(map.remove("model.norm.weight")));
    assert_says(&message, &["does not say that `model.norm.weight` is in `model-0000"]);
    for name in [
        "../x.safetensors",
        "/etc/hostname",
        "a/../../x",
        "..",
        ".",
        "",
        "a\\b",
        "C:x",
        "./model-00001-of-00002.safetensors",
    ] {
        let message = changed(&|map| drop(map.insert("lm_head.weight".into(), json!(name))));
        assert_says(&message, &[&format!("names the file `{name}`; only files of its own folder are read")]);
    }
    folder.write(INDEX, b"[]");
    assert_says(&folder.message(), &[INDEX, "is no index of weight files"]);
    folder.write(INDEX, index.to_string().as_bytes());
    folder.remove(&shard_name(1));
    assert_says(&folder.message(), &[INDEX, "lists `model-00002-of-00002.safetensors` with", "there is no such file"]);
}

/// Lengths of headers whose bytes look like the start of something else: `<`, a pickle, blanks.
#[test]
fn a_length_is_not_taken_for_text() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for length in [60, 0x0A0A, 0x2020, 123, 640] {
        let folder = Folder::copy("llama");
        folder.write(WEIGHTS, &file_with_header(&format!("{header:length$}"), 4));
        assert_says(&folder.message(), &["holds 1 tensors"]);
    }
}

/// The Hugging Face cache is made of links.
#[cfg(unix)]
#[test]
fn files_may_be_links() {
    let folder = Folder::copy("llama");
    let elsewhere = Folder::copy("llama");
    folder.remove(WEIGHTS);
    std::os::unix::fs::symlink(elsewhere.path().join(WEIGHTS), folder.path().join(WEIGHTS)).expect("a link");
    assert!(folder.load().is_ok());
    elsewhere.remove(WEIGHTS);
    assert_says(&folder.message(), &[WEIGHTS, "No such file"]);
}
