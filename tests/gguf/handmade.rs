//! GGUF files that tests put together from pieces, so that each piece can be wrong.

use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnformer::model::Transformer;
use burnformer::pretrained::Checkpoint;

use crate::common::flex;

/// ggml's numbers for types.
pub const F32: u32 = 0;
pub const Q4_0: u32 = 2;

/// A value with its type, as the file has it.
#[derive(Clone)]
pub struct Value(pub u32, pub Vec<u8>);

pub fn u32(value: u32) -> Value {
    Value(4, value.to_le_bytes().into())
}

pub fn f32(value: f32) -> Value {
    Value(6, value.to_le_bytes().into())
}

pub fn flag(value: bool) -> Value {
    Value(7, vec![value.into()])
}

pub fn text(value: &str) -> Value {
    Value(8, string(value))
}

/// A list of values of one type.
pub fn list(values: &[Value]) -> Value {
    let items = values.first().map_or(4, |value| value.0);
    let mut bytes = [items.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
    values.iter().for_each(|value| bytes.extend(&value.1));
    Value(9, bytes)
}

pub fn texts(values: &[&str]) -> Value {
    list(&values.iter().map(|value| text(value)).collect::<Vec<_>>())
}

fn string(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A tensor's entry.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    /// The fastest axis first.
    pub dimensions: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

/// A file in pieces.
#[derive(Clone)]
pub struct Handmade {
    pub magic: [u8; 4],
    pub version: u32,
    /// Said to be there, where it is not the number that is.
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub keys: Vec<(String, Value)>,
    pub entries: Vec<Entry>,
    /// What follows the header and what fills it up to a multiple of 32.
    pub data: Vec<u8>,
}

impl Handmade {
    pub fn empty() -> Self {
        let (n_tensors, n_keys) = (None, None);
        Self { magic: *b"GGUF", version: 3, n_tensors, n_keys, keys: vec![], entries: vec![], data: vec![] }
    }

    /// A Llama of one layer, with a tokenizer.
    pub fn llama() -> Self {
        let mut file = Self::empty()
            .with("general.architecture", text("llama"))
            .with("llama.context_length", u32(16))
            .with("llama.embedding_length", u32(8))
            .with("llama.block_count", u32(1))
            .with("llama.feed_forward_length", u32(6))
            .with("llama.attention.head_count", u32(2))
            .with("llama.attention.head_count_kv", u32(1))
            .with("llama.attention.layer_norm_rms_epsilon", f32(1e-5))
            .with("llama.rope.dimension_count", u32(4))
            .with("tokenizer.ggml.model", text("gpt2"))
            .with("tokenizer.ggml.pre", text("gpt-2"))
            .with("tokenizer.ggml.tokens", texts(&["a", "b", "ab", "<end>"]))
            .with("tokenizer.ggml.token_type", list(&[u32(1), u32(1), u32(1), u32(3)]))
            .with("tokenizer.ggml.merges", texts(&["a b"]))
            .with("tokenizer.ggml.eos_token_id", u32(3));
        for (name, dimensions) in [
            ("token_embd.weight", vec![8, 5]),
            ("blk.0.attn_norm.weight", vec![8]),
            ("blk.0.attn_q.weight", vec![8, 8]),
            ("blk.0.attn_k.weight", vec![8, 4]),
            ("blk.0.attn_v.weight", vec![8, 4]),
            ("blk.0.attn_output.weight", vec![8, 8]),
            ("blk.0.ffn_norm.weight", vec![8]),
            ("blk.0.ffn_gate.weight", vec![8, 6]),
            ("blk.0.ffn_up.weight", vec![8, 6]),
            ("blk.0.ffn_down.weight", vec![6, 8]),
            ("output_norm.weight", vec![8]),
        ] {
            file = file.with_tensor(name, &dimensions);
        }
        file
    }

    /// Sets a key, in its place where it is there.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        match self.keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.to_owned(), value)),
        }
        self
    }

    /// Takes out a key, which must be there.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        let count = self.keys.len();
        self.keys.retain(|(known, _)| known != key);
        assert_eq!(self.keys.len(), count - 1, "the file has the key `{key}`");
        self
    }

    /// Adds a tensor of 32-bit floats behind the others.
    #[must_use]
    pub fn with_tensor(mut self, name: &str, dimensions: &[u64]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let (offset, count) = (self.data.len() as u64, dimensions.iter().product::<u64>());
        self.entries.push(Entry { name: name.to_owned(), dimensions: dimensions.to_vec(), kind: F32, offset });
        self.data.extend((0..count).flat_map(|index| (index as f32 / 40.0 - 0.3).sin().to_le_bytes()));
        self
    }

    /// Changes a tensor's entry.
    #[must_use]
    pub fn entry(mut self, name: &str, edit: impl FnOnce(&mut Entry)) -> Self {
        edit(self.entries.iter_mut().find(|entry| entry.name == name).expect("the file has the tensor"));
        self
    }

    pub fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.n_tensors.unwrap_or(self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, Value(kind, value)) in &self.keys {
            bytes.extend(string(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        for Entry { name, dimensions, kind, offset } in &self.entries {
            bytes.extend(string(name));
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        if !self.data.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(&self.data);
        }
        bytes
    }

    /// The model on flex, or what is wrong with the file.
    pub fn load(&self) -> Result<Transformer, String> {
        load(&self.bytes())
    }

    /// What is wrong with the file.
    #[track_caller]
    pub fn message(&self) -> String {
        message(&self.bytes())
    }
}

/// A file of these bytes on disk.
pub fn on_disk(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("the file can be written");
    (folder, path)
}

/// The model in these bytes on flex, or what is wrong with them.
pub fn load(bytes: &[u8]) -> Result<Transformer, String> {
    let (_folder, path) = on_disk(bytes);
    let loaded = Checkpoint::open(&path).and_then(|checkpoint| checkpoint.load(&flex(), FloatDType::F32));
    loaded.map(|(model, _)| model).map_err(|error| {
        let message = error.to_string();
        assert!(message.contains("model.gguf"), "the file is named: {message}");
        assert!(!message.contains('\n'), "one line: {message}");
        message
    })
}

/// What is wrong with these bytes.
#[track_caller]
pub fn message(bytes: &[u8]) -> String {
    match load(bytes) {
        Ok(_) => panic!("the file is broken and loads"),
        Err(message) => message,
    }
}

/// Fails unless the message holds all of `parts`.
#[track_caller]
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}
