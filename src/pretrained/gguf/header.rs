//! The header of a GGUF file: keys with values, and where the tensors lie.
//!
//! Nothing is believed before it is checked against the length of the file, and nothing is copied or reserved by a count
//! that the file gives. (The readers of other crates trust those counts.)

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::super::tensor_file::not_weights;
use super::quantization::TensorType;

const MAGIC: &[u8; 4] = b"GGUF";
/// The first version wrote its lengths in another way and was in use for a few weeks.
const VERSIONS: [u32; 2] = [2, 3];
const MOST_DIMENSIONS: u32 = 4;
/// Lists in lists go no deeper than this.
const MOST_DEPTH: usize = 4;
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;

/// The least bytes that a key with its value, and a tensor's entry, can have.
const LEAST_KEY_BYTES: usize = 8 + 4 + 1;
const LEAST_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;

/// A value's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn from_id(id: u32) -> Option<Self> {
        const TYPES: [ValueType; 13] = [
            ValueType::U8,
            ValueType::I8,
            ValueType::U16,
            ValueType::I16,
            ValueType::U32,
            ValueType::I32,
            ValueType::F32,
            ValueType::Flag,
            ValueType::Text,
            ValueType::List,
            ValueType::U64,
            ValueType::I64,
            ValueType::F64,
        ];
        TYPES.get(usize::try_from(id).ok()?).copied()
    }

    /// The bytes of a value, where all values have as many.
    fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Flag => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::List => None,
        }
    }
}

/// The value of a key. Texts and lists stay in the file; these are the bytes they take there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Whole(i128),
    Real(f64),
    Flag(bool),
    Text(Range<usize>),
    List { items: ValueType, len: usize, bytes: Range<usize> },
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number:?}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(_) => f.write_str("a text"),
            Self::List { len, .. } => write!(f, "a list of {len}"),
        }
    }
}

/// A tensor in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorEntry {
    pub name: String,
    pub tensor_type: TensorType,
    /// The slowest axis first, as everywhere outside of these files.
    pub shape: Vec<usize>,
    pub bytes: Range<usize>,
}

/// What stands before the numbers.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub keys: BTreeMap<String, Value>,
    pub tensors: Vec<TensorEntry>,
}

/// Whether a file that begins like this is meant to be a GGUF file.
pub(super) fn has_magic(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

impl Header {
    /// Reads and checks everything about a file except its numbers.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor { bytes, at: 0 };
        if !has_magic(bytes) {
            return Err(match not_weights(bytes) {
                Some(other) => other.to_owned(),
                None => "does not begin with `GGUF`, so it is no GGUF file; download it again".to_owned(),
            });
        }
        cursor.take(MAGIC.len(), "its first word")?;
        check_version(cursor.u32("its version")?)?;
        let n_tensors = cursor.count("its number of tensors", "tensors", LEAST_TENSOR_BYTES)?;
        let n_keys = cursor.count("its number of keys", "keys", LEAST_KEY_BYTES)?;
        let mut keys = BTreeMap::new();
        for index in 0..n_keys {
            let name = cursor.text(format_args!("the name of key {index}"))?;
            let value_type = cursor.value_type(&name)?;
            let value = cursor.value(value_type, &name, 0)?;
            if let Some(name) = replaced(&mut keys, name, value) {
                return Err(format!("has the key `{name}` twice"));
            }
        }
        let alignment = alignment(&keys)?;
        let mut entries = Vec::new();
        for index in 0..n_tensors {
            entries.push(cursor.tensor(index)?);
        }
        let data = cursor.at.checked_next_multiple_of(alignment).ok_or("has a header that is too long")?;
        let tensors = entries
            .into_iter()
            .map(|entry| entry.place(data, alignment, bytes.len()))
            .collect::<Result<Vec<_>, String>>()?;
        refuse_duplicates(&tensors)?;
        refuse_overlaps(&tensors)?;
        Ok(Self { keys, tensors })
    }
}

fn check_version(version: u32) -> Result<(), String> {
    match version {
        _ if VERSIONS.contains(&version) => Ok(()),
        _ if VERSIONS.contains(&version.swap_bytes()) => {
            Err("is a big-endian GGUF file; only little-endian ones are read".to_owned())
        }
        _ => Err(format!("is a GGUF file of version {version}; versions 2 and 3 are read")),
    }
}

fn alignment(keys: &BTreeMap<String, Value>) -> Result<usize, String> {
    match keys.get(ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Whole(number)) if u32::try_from(*number).is_ok_and(u32::is_power_of_two) => Ok(*number as usize),
        Some(value) => Err(format!("`{ALIGNMENT}` must be a power of two, got {value}")),
    }
}

/// Inserts a value; the name back if it was there before.
fn replaced(keys: &mut BTreeMap<String, Value>, name: String, value: Value) -> Option<String> {
    if keys.contains_key(&name) {
        return Some(name);
    }
    keys.insert(name, value);
    None
}

fn refuse_duplicates(tensors: &[TensorEntry]) -> Result<(), String> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("has the tensor `{}` twice", pair[0])),
        None => Ok(()),
    }
}

fn refuse_overlaps(tensors: &[TensorEntry]) -> Result<(), String> {
    let mut places: Vec<&TensorEntry> = tensors.iter().filter(|tensor| !tensor.bytes.is_empty()).collect();
    places.sort_unstable_by_key(|tensor| tensor.bytes.start);
    match places.windows(2).find(|pair| pair[0].bytes.end > pair[1].bytes.start) {
        Some(pair) => Err(format!("has the tensors `{}` and `{}` in the same place", pair[0].name, pair[1].name)),
        None => Ok(()),
    }
}

/// A tensor's entry before it is known where the numbers begin.
struct Unplaced {
    name: String,
    tensor_type: TensorType,
    shape: Vec<usize>,
    size: usize,
    offset: u64,
}

impl Unplaced {
    fn place(self, data: usize, alignment: usize, file_len: usize) -> Result<TensorEntry, String> {
        let Self { name, tensor_type, shape, size, offset } = self;
        if !offset.is_multiple_of(alignment as u64) {
            return Err(format!("tensor `{name}` lies at {offset}, which is no multiple of {alignment}"));
        }
        let start = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(data));
        let bytes = start.and_then(|start| Some(start..start.checked_add(size)?));
        match bytes {
            Some(bytes) if bytes.end <= file_len => Ok(TensorEntry { name, tensor_type, shape, bytes }),
            _ => Err(format!(
                "tensor `{name}` of {size} bytes at {offset} ends behind the file of {file_len} (cut off?); download it \
                 again"
            )),
        }
    }
}

/// The bytes, and how far they are read.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The place of the next `len` bytes.
    fn place(&mut self, len: usize, what: impl fmt::Display) -> Result<Range<usize>, String> {
        if len > self.left() {
            return Err(format!("ends inside {what} (cut off?); download it again"));
        }
        let place = self.at..self.at + len;
        self.at = place.end;
        Ok(place)
    }

    fn take(&mut self, len: usize, what: impl fmt::Display) -> Result<&'a [u8], String> {
        Ok(&self.bytes[self.place(len, what)?])
    }

    fn array<const N: usize>(&mut self, what: impl fmt::Display) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: impl fmt::Display) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: impl fmt::Display) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things that take at least `least` bytes each.
    fn count(&mut self, what: impl fmt::Display, things: &str, least: usize) -> Result<u64, String> {
        let count = self.u64(what)?;
        if count > (self.left() / least) as u64 {
            return Err(format!("says that it has {count} {things}, more than fit into {} bytes", self.left()));
        }
        Ok(count)
    }

    /// The place of a text.
    fn text_place(&mut self, what: impl fmt::Display) -> Result<Range<usize>, String> {
        let len = self.u64(format_args!("the length of {what}"))?;
        match usize::try_from(len).ok().filter(|len| *len <= self.left()) {
            Some(len) => self.place(len, what),
            None => Err(format!("says that {what} has {len} bytes, and {} bytes are left", self.left())),
        }
    }

    fn text(&mut self, what: impl fmt::Display) -> Result<String, String> {
        let place = self.text_place(&what)?;
        let text =
            std::str::from_utf8(&self.bytes[place]).map_err(|_| format!("has bytes in {what} that are no text"))?;
        Ok(text.to_owned())
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, String> {
        let id = self.u32(format_args!("the type of `{key}`"))?;
        ValueType::from_id(id).ok_or_else(|| format!("has a value of the unknown type {id} under `{key}`"))
    }

    fn value(&mut self, value_type: ValueType, key: &str, depth: usize) -> Result<Value, String> {
        let what = format_args!("the value of `{key}`");
        Ok(match value_type {
            ValueType::U8 => Value::Whole(u8::from_le_bytes(self.array(what)?).into()),
            ValueType::I8 => Value::Whole(i8::from_le_bytes(self.array(what)?).into()),
            ValueType::U16 => Value::Whole(u16::from_le_bytes(self.array(what)?).into()),
            ValueType::I16 => Value::Whole(i16::from_le_bytes(self.array(what)?).into()),
            ValueType::U32 => Value::Whole(u32::from_le_bytes(self.array(what)?).into()),
            ValueType::I32 => Value::Whole(i32::from_le_bytes(self.array(what)?).into()),
            ValueType::U64 => Value::Whole(u64::from_le_bytes(self.array(what)?).into()),
            ValueType::I64 => Value::Whole(i64::from_le_bytes(self.array(what)?).into()),
            ValueType::F32 => Value::Real(as_written(f32::from_le_bytes(self.array(what)?))),
            ValueType::F64 => Value::Real(f64::from_le_bytes(self.array(what)?)),
            ValueType::Flag => match self.array(what)? {
                [0] => Value::Flag(false),
                [1] => Value::Flag(true),
                [other] => return Err(format!("`{key}` must be 0 or 1 (no or yes), got {other}")),
            },
            ValueType::Text => Value::Text(self.text_place(what)?),
            ValueType::List => self.list(key, depth)?,
        })
    }

    /// A list. Its items are checked to lie inside the file.
    fn list(&mut self, key: &str, depth: usize) -> Result<Value, String> {
        if depth == MOST_DEPTH {
            return Err(format!("`{key}` has lists in lists, more than {MOST_DEPTH} deep"));
        }
        let what = format_args!("the list `{key}`");
        let items = self.value_type(key)?;
        // A text begins with its length, and a list with its type and length.
        let least = items.size().unwrap_or(8);
        let len = self.count(format_args!("the length of {what}"), &format!("items in `{key}`"), least)? as usize;
        let start = self.at;
        match items.size() {
            Some(size) => {
                self.place(len * size, what)?;
            }
            None => {
                for _ in 0..len {
                    self.value(items, key, depth + 1)?;
                }
            }
        }
        Ok(Value::List { items, len, bytes: start..self.at })
    }

    fn tensor(&mut self, index: u64) -> Result<Unplaced, String> {
        let name = self.text(format_args!("the name of tensor {index}"))?;
        let what = format!("the entry of tensor `{name}`");
        let n_dimensions = self.u32(&what)?;
        if n_dimensions > MOST_DIMENSIONS {
            return Err(format!(
                "tensor `{name}` has {n_dimensions} dimensions; at most {MOST_DIMENSIONS} are allowed"
            ));
        }
        let mut dimensions = Vec::new();
        for _ in 0..n_dimensions {
            dimensions.push(self.u64(&what)?);
        }
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let tensor_type = TensorType::from_id(type_id).map_err(|problem| format!("tensor `{name}` {problem}"))?;
        let too_large = || format!("tensor `{name}` has the shape {dimensions:?}, which is larger than any memory");
        let mut shape = Vec::new();
        for dimension in &dimensions {
            shape.push(usize::try_from(*dimension).map_err(|_| too_large())?);
        }
        let columns = shape.first().copied().unwrap_or(1);
        if !columns.is_multiple_of(tensor_type.block_len()) {
            let (tensor_type, block) = (tensor_type.name(), tensor_type.block_len());
            return Err(format!("tensor `{name}` of type {tensor_type} has rows of {columns}, no multiple of {block}"));
        }
        let count = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size)).ok_or_else(too_large)?;
        let size = (count / tensor_type.block_len()).checked_mul(tensor_type.block_bytes()).ok_or_else(too_large)?;
        shape.reverse();
        Ok(Unplaced { name, tensor_type, shape, size, offset })
    }
}

/// The shortest decimal number that is stored as `number`: what was written into the config that the file was made from.
pub(super) fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// The texts of a list, whose extents [`Header::read`] has checked.
#[cfg(feature = "tokenizer")]
pub(super) fn texts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (text, after) = after.split_at_checked(len)?;
        rest = after;
        Some(text)
    })
}

/// The numbers of a list; `None` where its items are no numbers.
#[cfg(feature = "tokenizer")]
pub(super) fn numbers(items: ValueType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Option<Vec<f64>> {
        Some(bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect())
    }
    match items {
        ValueType::U8 => each(bytes, |b| u8::from_le_bytes(b).into()),
        ValueType::I8 => each(bytes, |b| i8::from_le_bytes(b).into()),
        ValueType::U16 => each(bytes, |b| u16::from_le_bytes(b).into()),
        ValueType::I16 => each(bytes, |b| i16::from_le_bytes(b).into()),
        ValueType::U32 => each(bytes, |b| u32::from_le_bytes(b).into()),
        ValueType::I32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        ValueType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        ValueType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        ValueType::F32 => each(bytes, |b| as_written(f32::from_le_bytes(b))),
        ValueType::F64 => each(bytes, f64::from_le_bytes),
        ValueType::Flag | ValueType::Text | ValueType::List => None,
    }
}
