//! Reads a Hugging Face `config.json`.
//!
//! Two things are particular to these files. A key that is absent takes the default of its family, and one that is
//! `null` does not: `"sliding_window": null` switches off the window that a Mistral file without the key has. And a
//! key is no proof that anything reads it. So each read is noted, and what nothing has read at the end is a fault when
//! its value could change what the model computes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::hf_keys::{is_quantization, may_matter};
use super::lenient_json;
use crate::error::{ConfigError, Fault, Faults, nearest};

/// No size in a published file comes near this, and products of three sizes below it fit in 64 bits.
const LARGEST_SIZE: f64 = 2_147_483_647.0;

/// A config file, or one object inside it.
#[derive(Debug, Default)]
pub(crate) struct HfConfig {
    keys: Map<String, Value>,
    /// Where this object stands in the file: empty, or the keys that lead to it, each followed by a dot.
    place: String,
    /// The names under which a family's files write a key, before the name that is asked for.
    aliases: Vec<(&'static str, &'static str)>,
    read: BTreeSet<String>,
    faults: Faults,
}

/// What the file says about a key.
enum Entry<T> {
    Absent,
    Null,
    Given(T),
    /// A value of the wrong type, which has been reported.
    Faulty,
}

impl<T> Entry<T> {
    /// The value, whatever reason there is for having none.
    fn given(self) -> Option<T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Null | Self::Faulty => None,
        }
    }
}

impl HfConfig {
    /// Reads the text of a `config.json`. Where it describes more than a language model (text and vision), what is
    /// read is the part about text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let unreadable = |problem: String| {
            Err(ConfigError { origin: String::new(), faults: vec![Fault { key: String::new(), problem }] })
        };
        match lenient_json::parse(text) {
            Ok(Value::Object(keys)) => Ok(Self { keys, ..Self::default() }.language_part()),
            Ok(other) => unreadable(format!("is not a JSON object, but {}", shown(&other))),
            Err(error) => unreadable(format!("is not valid JSON: {error}")),
        }
    }

    fn language_part(self) -> Self {
        let Some(Value::Object(text)) = self.keys.get("text_config") else {
            return self;
        };
        let mut keys = text.clone();
        for inherited in ["model_type", "architectures", "tie_word_embeddings", "quantization_config"] {
            if let (false, Some(value)) = (keys.contains_key(inherited), self.keys.get(inherited)) {
                keys.insert(inherited.to_owned(), value.clone());
            }
        }
        Self { keys, place: "text_config.".to_owned(), ..Self::default() }
    }

    /// The first transformers class that the file names.
    pub fn architecture(&self) -> Option<String> {
        self.keys.get("architectures")?.get(0)?.as_str().map(str::to_owned)
    }

    /// From here on, reading `key` looks for `alias` first.
    pub fn alias(&mut self, key: &'static str, alias: &'static str) {
        self.aliases.push((key, alias));
    }

    /// Notes a fault of `key`.
    pub fn fault(&mut self, key: &str, problem: impl Into<String>) {
        self.faults.add(&format!("{}{key}", self.place), problem);
    }

    /// Whether the file has `key`, be it `null`. Does not count as reading it.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    fn entry<T>(&mut self, key: &str, expected: &str, convert: impl Fn(&Value) -> Option<T>) -> Entry<T> {
        self.read.insert(key.to_owned());
        let aliases = self.aliases.iter().filter(|(canonical, _)| *canonical == key).map(|(_, alias)| *alias);
        let written = aliases.chain([key]).find(|name| self.keys.contains_key(*name)).unwrap_or(key).to_owned();
        self.read.insert(written.clone());
        match self.keys.get(&written) {
            None => Entry::Absent,
            Some(Value::Null) => Entry::Null,
            Some(value) => match convert(value) {
                Some(value) => Entry::Given(value),
                None => {
                    let problem = format!("must be {expected}, got {}", shown(value));
                    self.fault(&written, problem);
                    Entry::Faulty
                }
            },
        }
    }

    fn whole(&mut self, key: &str) -> Entry<usize> {
        self.entry(key, "a whole number from 0 to 2147483647", size_of)
    }

    /// A size that every model has; `null` is a fault.
    pub fn size(&mut self, key: &str, default: usize) -> usize {
        match self.whole(key) {
            Entry::Given(size) => size,
            Entry::Null => {
                self.fault(key, "must be a whole number, got null");
                default
            }
            Entry::Absent | Entry::Faulty => default,
        }
    }

    /// A size that some models do not have; absent and `null` are the same.
    pub fn optional_size(&mut self, key: &str) -> Option<usize> {
        self.whole(key).given()
    }

    /// A size with a default that `null` overrides.
    pub fn size_or_null(&mut self, key: &str, default: Option<usize>) -> Option<usize> {
        match self.whole(key) {
            Entry::Given(size) => Some(size),
            Entry::Null => None,
            Entry::Absent | Entry::Faulty => default,
        }
    }

    fn real(&mut self, key: &str) -> Entry<f64> {
        self.entry(key, "a number", Value::as_f64)
    }

    /// A number that every model has; absent and `null` are the same.
    pub fn number(&mut self, key: &str, default: f64) -> f64 {
        self.real(key).given().unwrap_or(default)
    }

    /// A number that some models do not have; absent and `null` are the same.
    pub fn optional_number(&mut self, key: &str) -> Option<f64> {
        self.real(key).given()
    }

    /// A number with a default that `null` overrides.
    pub fn number_or_null(&mut self, key: &str, default: f64) -> Option<f64> {
        match self.real(key) {
            Entry::Given(number) => Some(number),
            Entry::Null => None,
            Entry::Absent | Entry::Faulty => Some(default),
        }
    }

    /// Yes or no; `null` is no, as in Python.
    pub fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.entry(key, "true or false", Value::as_bool) {
            Entry::Given(flag) => flag,
            Entry::Null => false,
            Entry::Absent | Entry::Faulty => default,
        }
    }

    /// A word; absent and `null` are the same.
    pub fn optional_text(&mut self, key: &str) -> Option<String> {
        self.entry(key, "a text", |value| value.as_str().map(str::to_owned)).given()
    }

    /// A list of words; absent and `null` are the same.
    pub fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        self.entry(key, "a list of texts", |value| value.as_array()?.iter().map(word).collect()).given()
    }

    /// A list of numbers; absent and `null` are the same.
    pub fn numbers(&mut self, key: &str) -> Option<Vec<f64>> {
        self.entry(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect()).given()
    }

    /// A height and a width, or one number for both.
    pub fn height_and_width(&mut self, key: &str, default: usize) -> [usize; 2] {
        let sizes = self.entry(key, "a whole number or two of them, height and width", |value| match value {
            Value::Array(sizes) => match sizes.as_slice() {
                [height, width] => Some([size_of(height)?, size_of(width)?]),
                _ => None,
            },
            size => size_of(size).map(|size| [size; 2]),
        });
        sizes.given().unwrap_or([default; 2])
    }

    /// The id of a token that some models do not have; what is no id (null, -1, a list) counts as none.
    pub fn token_id(&self, key: &str) -> Option<u32> {
        self.keys.get(key)?.as_u64().and_then(|id| id.try_into().ok())
    }

    /// An object that gives names to whole numbers; what is no such object counts as none. Names may be written as
    /// numbers.
    pub fn names_by_number(&self, key: &str) -> Option<BTreeMap<usize, String>> {
        let name = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let entries = self.keys.get(key)?.as_object()?.iter();
        entries.map(|(number, value)| Some((number.parse().ok()?, name(value)))).collect()
    }

    /// An object inside this one; absent, `null` and empty are the same. What is found in it goes back with
    /// [`close`](Self::close).
    pub fn section(&mut self, key: &str) -> Option<HfConfig> {
        let keys = self.entry(key, "an object", |value| value.as_object().cloned()).given()?;
        let place = format!("{}{key}.", self.place);
        (!keys.is_empty()).then(|| Self { keys, place, ..Self::default() })
    }

    /// Takes over the faults of an inner object, together with its keys that nothing has read.
    pub fn close(&mut self, mut section: HfConfig, harmless: &[&str]) {
        section.refuse_unread(harmless);
        for fault in section.faults.into_faults() {
            self.faults.add(&fault.key, fault.problem);
        }
    }

    /// Reads a flag that must be off, because what it switches on is not there.
    pub fn refuse_flag(&mut self, key: &str, what: &str) {
        if self.flag(key, false) {
            self.fault(key, format!("is true, and {what} is not supported"));
        }
    }

    /// Ends the reading.
    pub fn finish(mut self, harmless: &[&str]) -> Result<(), ConfigError> {
        self.refuse_unread(harmless);
        self.faults.into_result()
    }

    fn refuse_unread(&mut self, harmless: &[&str]) {
        let unread: Vec<(String, Value)> = self
            .keys
            .iter()
            .filter(|(key, value)| {
                !self.read.contains(*key) && !harmless.contains(&key.as_str()) && may_matter(key, value)
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for (key, value) in unread {
            let problem = if is_quantization(&key) {
                "says that the weights are quantised, which is not supported; use the checkpoint they were made from"
                    .to_owned()
            } else {
                let absent = self.read.iter().map(String::as_str).filter(|known| !self.keys.contains_key(*known));
                let advice = nearest(&key, absent).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
                format!("= {} is not understood and may change what the model computes{advice}", shown(&value))
            };
            self.fault(&key, problem);
        }
    }
}

/// A size, be it written as 32 or as 32.0.
fn size_of(value: &Value) -> Option<usize> {
    let number = value.as_f64()?;
    let is_size = number.fract() == 0.0 && (0.0..=LARGEST_SIZE).contains(&number);
    is_size.then_some(number as usize)
}

/// A value as it stands in messages.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> HfConfig {
        HfConfig::parse(text).expect("a JSON object")
    }

    fn faults(config: HfConfig) -> String {
        config.finish(&[]).expect_err("a fault").to_string()
    }

    #[test]
    fn absent_and_null_are_different() {
        let mut config = read(r#"{"a": null, "b": 3}"#);
        assert_eq!(config.size_or_null("a", Some(4096)), None);
        assert_eq!(config.size_or_null("b", Some(4096)), Some(3));
        assert_eq!(config.size_or_null("c", Some(4096)), Some(4096));
        assert_eq!(config.number_or_null("a", 30.0), None);
        assert_eq!(config.number_or_null("c", 30.0), Some(30.0));
        assert!(config.finish(&[]).is_ok());
    }

    #[test]
    fn numbers_may_be_written_either_way() {
        let mut config = read(r#"{"size": 32.0, "theta": 10000}"#);
        assert_eq!(config.size("size", 0), 32);
        assert_eq!(config.number("theta", 0.0), 10_000.0);
        assert!(config.finish(&[]).is_ok());
    }

    #[test]
    fn wrong_types_are_named_together() {
        let mut config = read(r#"{"hidden_size": "16", "layers": 2.5, "act": 3, "bias": "no", "heads": null}"#);
        config.size("hidden_size", 1);
        config.size("layers", 1);
        config.optional_text("act");
        config.flag("bias", true);
        config.size("heads", 1);
        let message = faults(config);
        for part in [
            r#"`hidden_size` must be a whole number from 0 to 2147483647, got "16""#,
            "`layers` must be a whole number from 0 to 2147483647, got 2.5",
            "`act` must be a text, got 3",
            r#"`bias` must be true or false, got "no""#,
            "`heads` must be a whole number, got null",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn unread_keys_that_may_matter_are_refused() {
        let mut config = read(
            r#"{"hiden_size": 64, "logit_scale": 2.0, "x": null, "y": false, "z": 0, "w": [], "note": {"a": 1},
                "attention_dropout": 0.1, "_name_or_path": "p", "torch_dtype": "torch.float32"}"#,
        );
        config.size("hidden_size", 1);
        let message = faults(config);
        assert!(message.contains("`hiden_size` = 64 is not understood"), "{message}");
        assert!(message.contains("did you mean `hidden_size`?"), "{message}");
        assert!(message.contains("`logit_scale` = 2.0 is not understood"), "{message}");
        assert_eq!(message.matches("is not understood").count(), 2, "{message}");
    }

    #[test]
    fn an_alias_is_read_first_and_named_in_faults() {
        let mut config = read(r#"{"n_embd": 12, "hidden_size": 13, "n_head": "3"}"#);
        config.alias("hidden_size", "n_embd");
        config.alias("num_attention_heads", "n_head");
        assert_eq!(config.size("hidden_size", 1), 12);
        config.size("num_attention_heads", 1);
        assert!(faults(config).contains("`n_head` must be"));
    }

    #[test]
    fn the_text_part_of_a_larger_config_is_read() {
        let mut config = read(r#"{"model_type": "both", "vision_config": {"x": 1}, "text_config": {"a": 1, "b": 2}}"#);
        assert_eq!(config.optional_text("model_type").as_deref(), Some("both"));
        assert_eq!(config.size("a", 0), 1);
        assert!(faults(config).contains("`text_config.b` = 2 is not understood"));
    }
}
