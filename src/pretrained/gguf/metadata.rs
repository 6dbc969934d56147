//! Reads the keys of a header as what they should be, and notes every fault.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::header::Value;
#[cfg(feature = "tokenizer")]
use super::header::{ValueType, numbers, texts};
use crate::error::{ConfigError, Faults, nearest};

/// No size in a published file comes near this, and products of three sizes below it fit in 64 bits.
const LARGEST_SIZE: i128 = i32::MAX as i128;

/// The keys of a header.
pub(super) struct Metadata<'a> {
    /// The file, in which texts and lists lie.
    bytes: &'a [u8],
    keys: &'a BTreeMap<String, Value>,
    notes: RefCell<Notes>,
}

#[derive(Default)]
struct Notes {
    read: BTreeSet<String>,
    faults: Faults,
}

impl<'a> Metadata<'a> {
    pub fn new(bytes: &'a [u8], keys: &'a BTreeMap<String, Value>) -> Self {
        Self { bytes, keys, notes: RefCell::default() }
    }

    /// Notes a fault of `key`.
    pub fn fault(&self, key: &str, problem: impl Into<String>) {
        self.notes.borrow_mut().faults.add(key, problem);
    }

    /// Notes that `key` must be there.
    pub fn missing(&self, key: &str) {
        self.fault(key, "is missing");
    }

    /// Notes that `key` must be there, unless it is; what is wrong with its value has been noted then.
    pub fn missing_unless_there(&self, key: &str) {
        if !self.keys.contains_key(key) {
            self.missing(key);
        }
    }

    fn get<T>(&self, key: &str, expected: &str, convert: impl Fn(&Value) -> Option<T>) -> Option<T> {
        self.notes.borrow_mut().read.insert(key.to_owned());
        let value = self.keys.get(key)?;
        let converted = convert(value);
        if converted.is_none() {
            self.fault(key, format!("must be {expected}, got {value}"));
        }
        converted
    }

    /// A whole number.
    pub fn size(&self, key: &str) -> Option<usize> {
        self.get(key, "a whole number from 0 to 2147483647", |value| match value {
            Value::Whole(number) if (0..=LARGEST_SIZE).contains(number) => Some(*number as usize),
            _ => None,
        })
    }

    /// The id of a token. Some writers store −1 for none.
    pub fn token_id(&self, key: &str) -> Option<u32> {
        self.get(key, "the id of a token", |value| match value {
            Value::Whole(-1) => Some(None),
            Value::Whole(number) => u32::try_from(*number).ok().map(|id| (id != u32::MAX).then_some(id)),
            _ => None,
        })
        .flatten()
    }

    /// A finite number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key, "a number", |value| match value {
            Value::Whole(number) => Some(*number as f64),
            Value::Real(number) if number.is_finite() => Some(*number),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key, "yes or no", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key, "a text in UTF-8", |value| match value {
            Value::Text(place) => std::str::from_utf8(self.bytes.get(place.clone())?).ok(),
            _ => None,
        })
    }

    /// A list of texts.
    #[cfg(feature = "tokenizer")]
    pub fn texts(&self, key: &str) -> Option<Vec<&'a str>> {
        self.get(key, "a list of texts in UTF-8", |value| match value {
            Value::List { items: ValueType::Text, bytes, .. } => {
                texts(self.bytes.get(bytes.clone())?).map(|text| std::str::from_utf8(text).ok()).collect()
            }
            _ => None,
        })
    }

    /// The length of a list, whatever is in it.
    pub fn length(&self, key: &str) -> Option<usize> {
        self.get(key, "a list", |value| match value {
            Value::List { len, .. } => Some(*len),
            _ => None,
        })
    }

    /// A list of numbers.
    #[cfg(feature = "tokenizer")]
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.get(key, "a list of numbers", |value| match value {
            Value::List { items, bytes, .. } => numbers(*items, self.bytes.get(bytes.clone())?),
            _ => None,
        })
    }

    /// Gives all faults.
    #[cfg(feature = "tokenizer")]
    pub fn check(self) -> Result<(), ConfigError> {
        self.notes.into_inner().faults.into_result()
    }

    /// All faults, of which there are some.
    pub fn into_error(self) -> ConfigError {
        ConfigError { origin: String::new(), faults: self.notes.into_inner().faults.into_faults() }
    }

    /// Refuses keys below `prefix` that nothing has read and that are not `harmless`, then gives all faults.
    pub fn finish(self, prefix: &str, harmless: &[&str]) -> Result<(), ConfigError> {
        let Notes { read, mut faults } = self.notes.into_inner();
        for (key, value) in self.keys {
            let Some(name) = key.strip_prefix(prefix) else { continue };
            if read.contains(key) || harmless.contains(&name) || switches_off(value) {
                continue;
            }
            let absent = read.iter().map(String::as_str).filter(|known| !self.keys.contains_key(*known));
            let advice = nearest(key, absent).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
            faults.add(key, format!("= {value} is not understood and may change what the model computes{advice}"));
        }
        faults.into_result()
    }
}

/// Whether a value stands for nothing: such a key changes no outputs.
fn switches_off(value: &Value) -> bool {
    match value {
        Value::Whole(number) => *number == 0,
        Value::Real(number) => *number == 0.0,
        Value::Flag(flag) => !flag,
        Value::Text(place) => place.is_empty(),
        Value::List { len, .. } => *len == 0,
    }
}
