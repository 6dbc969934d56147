//! From the keys of a header to the `config.json` object of its family.

use serde_json::{Map, Value, json};

use super::architectures::{Architecture, Implied};
use super::header::{Header, TensorEntry};
use super::metadata::Metadata;
use crate::error::ConfigError;

/// What files mean that do not say how fast their features turn.
const THETA: f64 = 10_000.0;
const FREQUENCIES: &str = "rope_freqs.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";

/// Keys about how a file was made.
const HARMLESS: &[&str] = &["vocab_size", "rope.scaling.finetuned", "tensor_data_layout"];

/// A key of the header, below the name of its architecture, and a key of a `config.json`.
pub(super) struct Key {
    theirs: &'static str,
    hf: &'static str,
    is_size: bool,
    is_required: bool,
}

pub(super) const fn size(theirs: &'static str, hf: &'static str) -> Key {
    Key { theirs, hf, is_size: true, is_required: true }
}

pub(super) const fn optional_size(theirs: &'static str, hf: &'static str) -> Key {
    Key { is_required: false, ..size(theirs, hf) }
}

pub(super) const fn number(theirs: &'static str, hf: &'static str) -> Key {
    Key { theirs, hf, is_size: false, is_required: true }
}

pub(super) const fn optional_number(theirs: &'static str, hf: &'static str) -> Key {
    Key { is_required: false, ..number(theirs, hf) }
}

/// Which features of a head turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rope {
    None,
    /// All.
    Whole,
    /// The first few.
    Partial,
    /// All, and in sliding layers by a base of their own.
    WithLocal {
        key: &'static str,
    },
}

/// The heads of a file's attention.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadCounts {
    pub queries: usize,
    pub keys: usize,
}

/// The `config.json` object of a header, and the heads it speaks of.
pub(super) fn read(
    bytes: &[u8],
    header: &Header,
    architecture: &Architecture,
) -> Result<(Map<String, Value>, HeadCounts), ConfigError> {
    let metadata = Metadata::new(bytes, &header.keys);
    let mut reading = Reading { metadata, bytes, header, architecture, config: Map::new() };
    reading.set("model_type", architecture.model_type);
    reading.set("architectures", json!([architecture.class]));
    for key in architecture.keys.iter().copied().flatten() {
        reading.copy(key);
    }
    let heads = reading.heads();
    reading.vocabulary();
    if architecture.rope != Rope::None {
        reading.rope();
    }
    for implied in architecture.implied {
        reading.imply(*implied);
    }
    reading.refuse_others();
    let Reading { metadata, config, .. } = reading;
    let harmless = [HARMLESS, architecture.harmless].concat();
    metadata.finish(&format!("{}.", architecture.name), &harmless)?;
    Ok((config, heads))
}

struct Reading<'a> {
    metadata: Metadata<'a>,
    bytes: &'a [u8],
    header: &'a Header,
    architecture: &'a Architecture,
    config: Map<String, Value>,
}

impl Reading<'_> {
    /// A key in full.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    fn set(&mut self, hf: &str, value: impl Into<Value>) {
        self.config.insert(hf.to_owned(), value.into());
    }

    fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.header.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn copy(&mut self, key: &Key) {
        let name = self.key(key.theirs);
        let value: Option<Value> = match key.is_size {
            true => self.metadata.size(&name).map(Value::from),
            false => self.metadata.number(&name).map(Value::from),
        };
        match value {
            Some(value) => self.set(key.hf, value),
            None if key.is_required => self.metadata.missing_unless_there(&name),
            None => {}
        }
    }

    fn heads(&mut self) -> HeadCounts {
        let queries = self.metadata.size(&self.key("attention.head_count")).unwrap_or(0);
        let keys = self.metadata.size(&self.key("attention.head_count_kv")).unwrap_or(queries);
        // Families with other names for sizes have as many heads of one kind as of the other.
        match self.config.contains_key("num_attention_heads") {
            true => self.set("num_key_value_heads", keys),
            false if keys != queries => {
                let problem = format!("= {keys} must be equal to the {queries} heads of queries in this architecture");
                self.metadata.fault(&self.key("attention.head_count_kv"), problem);
            }
            false => {}
        }
        HeadCounts { queries, keys }
    }

    /// The table of tokens counts: it can be longer than the list of tokens.
    fn vocabulary(&mut self) {
        match self.tensor("token_embd.weight").map(|table| table.shape.as_slice()) {
            Some([vocab_size, _]) => {
                let (key, vocab_size) = ("tokenizer.ggml.tokens", *vocab_size);
                if let Some(tokens) = self.metadata.length(key).filter(|tokens| *tokens > vocab_size) {
                    self.metadata.fault(key, format!("has {tokens} tokens, and `token_embd.weight` has {vocab_size}"));
                }
                self.set("vocab_size", vocab_size);
            }
            Some(shape) => {
                let problem = format!("has shape {shape:?}; a table of tokens has two dimensions");
                self.metadata.fault("token_embd.weight", problem);
            }
            None => self.metadata.fault("token_embd.weight", "is missing among the tensors"),
        }
        let is_tied = self.tensor("output.weight").is_none();
        self.set("tie_word_embeddings", is_tied);
        for (key, hf) in [
            ("tokenizer.ggml.bos_token_id", "bos_token_id"),
            ("tokenizer.ggml.eos_token_id", "eos_token_id"),
            ("tokenizer.ggml.padding_token_id", "pad_token_id"),
        ] {
            if let Some(id) = self.metadata.token_id(key) {
                self.set(hf, id);
            }
        }
    }

    /// The width of a head, where the sizes it follows from are there.
    fn d_head(&self) -> Option<usize> {
        let size = |name: &str| self.metadata.size(&self.key(name));
        size("attention.key_length").or_else(|| size("embedding_length")?.checked_div(size("attention.head_count")?))
    }

    fn rope(&mut self) {
        let theta = self.metadata.number(&self.key("rope.freq_base")).unwrap_or(THETA);
        self.set("rope_theta", theta);
        if let Rope::WithLocal { key } = self.architecture.rope {
            let local = self.metadata.number(&self.key("rope.freq_base_swa")).unwrap_or(THETA);
            self.set(key, local);
        }
        let key = self.key("rope.dimension_count");
        if let (Some(turning), Some(d_head)) = (self.metadata.size(&key), self.d_head())
            && turning != d_head
        {
            match self.architecture.rope {
                Rope::Partial if d_head > 0 => self.set("partial_rotary_factor", turning as f64 / d_head as f64),
                _ => {
                    let problem =
                        format!("= {turning}, and heads of {d_head} features turn whole in this architecture");
                    self.metadata.fault(&key, problem);
                }
            }
        } else if let (Rope::Partial, None) = (self.architecture.rope, self.metadata.size(&key)) {
            // Families of this kind have fractions of their own where a config is silent.
            self.set("partial_rotary_factor", 1.0);
        }
        if let Some(scaling) = self.rope_scaling() {
            self.set("rope_scaling", scaling);
        }
    }

    fn rope_scaling(&self) -> Option<Value> {
        let by_keys = self.rope_scaling_by_keys();
        let by_tensors = self.rope_scaling_by_tensors();
        if by_keys.is_some() && by_tensors.is_some() {
            let problem =
                "is given, and tensors with factors of their own are there; which of them counts is not known";
            self.metadata.fault(&self.key("rope.scaling.type"), problem);
        }
        by_tensors.or(by_keys)
    }

    fn rope_scaling_by_keys(&self) -> Option<Value> {
        let type_key = self.key("rope.scaling.type");
        let factor_key = self.key("rope.scaling.factor");
        let older = self.metadata.number(&self.key("rope.scale_linear"));
        let factor = self.metadata.number(&factor_key).or(older).filter(|factor| *factor != 0.0);
        // A factor alone is linear.
        let scaling_type = self.metadata.text(&type_key).unwrap_or(if factor.is_some() { "linear" } else { "none" });
        let original = self.metadata.size(&self.key("rope.scaling.original_context_length"));
        let mut scaling = match scaling_type {
            "none" | "longrope" => return None,
            "linear" | "yarn" => json!({"rope_type": scaling_type}),
            other => {
                self.metadata
                    .fault(&type_key, format!("`{other}` is not known; known are none, linear, yarn, longrope"));
                return None;
            }
        };
        match factor {
            Some(factor) => scaling["factor"] = factor.into(),
            None => self.metadata.missing(&factor_key),
        }
        if let ("yarn", Some(original)) = (scaling_type, original) {
            scaling["original_max_position_embeddings"] = original.into();
        }
        Some(scaling)
    }

    /// Divisors of the frequencies, one list for all lengths (as Llama 3 has) or one for short and one for long ones (as
    /// Phi 3 has). In the words of a config both are `longrope`.
    fn rope_scaling_by_tensors(&self) -> Option<Value> {
        let all = self.factors(FREQUENCIES);
        let (short, long) = (self.factors(SHORT_FACTORS), self.factors(LONG_FACTORS));
        let original = self.metadata.size(&self.key("rope.scaling.original_context_length"));
        let attention = self.metadata.number(&self.key("rope.scaling.attn_factor")).unwrap_or(1.0);
        let (short, long, original) = match (all, short, long, original) {
            (None, None, None, _) => {
                if self.metadata.text(&self.key("rope.scaling.type")) == Some("longrope") {
                    self.metadata.fault(LONG_FACTORS, "is missing among the tensors");
                }
                if attention != 1.0 {
                    let problem = format!("= {attention} is supported together with tensors of factors only");
                    self.metadata.fault(&self.key("rope.scaling.attn_factor"), problem);
                }
                return None;
            }
            (Some(all), None, None, _) => {
                let context = self.metadata.size(&self.key("context_length")).unwrap_or(0);
                (all.clone(), all, context)
            }
            (None, Some(short), Some(long), Some(original)) => (short, long, original),
            (None, Some(_), Some(_), None) => {
                self.metadata.missing(&self.key("rope.scaling.original_context_length"));
                return None;
            }
            _ => {
                let problem = format!("must come together with `{LONG_FACTORS}`, and without `{FREQUENCIES}`");
                self.metadata.fault(SHORT_FACTORS, problem);
                return None;
            }
        };
        Some(json!({
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": original,
            "attention_factor": attention,
        }))
    }

    fn factors(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.tensor(name)?;
        let mut factors = Vec::new();
        tensor.tensor_type.dequantize(self.bytes.get(tensor.bytes.clone())?, &mut factors);
        if !factors.iter().all(|factor| factor.is_finite()) {
            self.metadata.fault(name, "holds numbers that are not finite");
        }
        Some(factors)
    }

    fn imply(&mut self, implied: Implied) {
        match implied {
            Implied::Text(hf, text) => self.set(hf, text),
            Implied::IfTensor(hf, name) => self.set(hf, self.tensor(name).is_some()),
            Implied::UnlessTensor(hf, name) => self.set(hf, self.tensor(name).is_none()),
            Implied::GemmaScale { largest } => {
                let size = |name: &str| self.metadata.size(&self.key(name));
                let per_head = || size("embedding_length")?.checked_div(size("attention.head_count")?);
                let scalar = if size("block_count") == Some(largest) { per_head() } else { self.d_head() };
                if let Some(scalar) = scalar {
                    self.set("query_pre_attn_scalar", scalar);
                }
            }
        }
    }

    /// What no family here can be.
    fn refuse_others(&self) {
        let split = "split.count";
        if let Some(parts) = self.metadata.size(split).filter(|parts| *parts > 1) {
            let problem =
                format!("= {parts}: the file is one of several parts; join them with `llama-gguf-split --merge`");
            self.metadata.fault(split, problem);
        }
        let causal = self.key("attention.causal");
        if self.metadata.flag(&causal) == Some(false) {
            self.metadata.fault(&causal, "is false, and attention to both sides is not supported here");
        }
        let value_length = self.key("attention.value_length");
        if let (Some(value), Some(key)) = (self.metadata.size(&value_length), self.d_head())
            && value != key
        {
            let problem = format!("= {value}; values as wide as the keys ({key}) are supported");
            self.metadata.fault(&value_length, problem);
        }
    }
}

/// Whether a tensor belongs to the configuration.
pub(super) fn is_configuration(tensor: &str) -> bool {
    [FREQUENCIES, LONG_FACTORS, SHORT_FACTORS].contains(&tensor)
}
