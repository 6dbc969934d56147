//! One safetensors file, mapped into memory.
//!
//! What reaches people under this name is often something else: a Git LFS pointer, an error page, half a download. So
//! the first bytes are looked at before the file is believed.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata};

use crate::error::Error;

/// Bytes in front of the header that hold its length.
const LENGTH_BYTES: usize = 8;
/// The longest header that the format allows.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    bytes: Range<usize>,
}

impl StoredTensor {
    /// Whether it can be read into a parameter.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

/// A float that weights are read into.
pub(super) trait Float: burn::tensor::Element + Copy + Default {
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
}

impl Float for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }

    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Float for f64 {
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }

    fn from_f64(value: f64) -> Self {
        value
    }
}

/// A mapped file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<(Self, Vec<(String, StoredTensor)>), Error> {
        let file = File::open(path).map_err(|error| Error::file(path, error))?;
        // SAFETY: the file is only read; as with every mapped file, another program that shortens it meanwhile breaks
        // this one.
        #[allow(unsafe_code, reason = "mapping a file is unsafe by nature")]
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::file(path, error))?;
        let tensors = read_header(&map).map_err(|problem| Error::weights(path, problem))?;
        Ok((Self { path: path.to_path_buf(), map }, tensors))
    }

    /// The numbers of a tensor seen as a matrix (a vector is a column) in the order of rows; of `axis` only `ranges`
    /// are read, or everything where there are none.
    pub fn read<F: Float>(
        &self,
        name: &str,
        tensor: &StoredTensor,
        axis: usize,
        ranges: &[Range<usize>],
    ) -> Result<Vec<F>, Error> {
        let broken = |problem: &str| Error::weights(&self.path, format!("tensor `{name}` {problem}"));
        let size = tensor.dtype.bitsize() / 8;
        let bytes = self.map.get(tensor.bytes.clone()).ok_or_else(|| broken("lies outside the file"))?;
        let rows = tensor.shape.first().copied().unwrap_or(1);
        let columns: usize = tensor.shape.iter().skip(1).product();
        let mut values = Vec::new();
        let mut take = |start: usize, end: usize| match bytes.get(start * size..end * size) {
            Some(bytes) => decode(tensor.dtype, bytes, &mut values).map_err(|problem| broken(&problem)),
            None => Err(broken("is smaller than it should be")),
        };
        if ranges.is_empty() {
            take(0, rows * columns)?;
        } else if axis == 0 {
            for range in ranges {
                take(range.start * columns, range.end * columns)?;
            }
        } else {
            for row in 0..rows {
                for range in ranges {
                    take(row * columns + range.start, row * columns + range.end)?;
                }
            }
        }
        Ok(values)
    }
}

/// Checks everything about a file except its numbers.
fn read_header(bytes: &[u8]) -> Result<Vec<(String, StoredTensor)>, String> {
    if let Some(other) = other_format(bytes) {
        return Err(other.to_owned());
    }
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(format!("has only {} bytes, too few for a safetensors file; download it again", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    let rest = bytes.len() - LENGTH_BYTES;
    if length > MOST_HEADER_BYTES {
        return Err(format!("says that its header has {length} bytes, so it is no safetensors file"));
    }
    let Some(header) = usize::try_from(length).ok().and_then(|length| bytes[LENGTH_BYTES..].get(..length)) else {
        return Err(format!("has {rest} bytes after its length field and a header of {length}; download it again"));
    };
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| format!("has a broken safetensors header: {error}"))?;
    let (expected, found) = (metadata.data_len(), rest - header.len());
    if found < expected {
        let lacking = expected - found;
        return Err(format!("ends {lacking} bytes before its last tensor does (cut off?); download it again"));
    }
    if found > expected {
        return Err(format!("goes on for {} bytes after its last tensor", found - expected));
    }
    let start = LENGTH_BYTES + header.len();
    let tensors = metadata.tensors().into_iter().map(|(name, info)| {
        let (begin, end) = info.data_offsets;
        (name, StoredTensor { dtype: info.dtype, shape: info.shape.clone(), bytes: start + begin..start + end })
    });
    Ok(tensors.collect())
}

/// What a file is that is no safetensors file, as far as its first bytes tell.
///
/// The length that such a file begins with can have any value in its low bytes, and has zeros in its high ones.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let start = &bytes[..bytes.len().min(512)];
    let text = start.trim_ascii_start();
    let is_text = !start.contains(&0);
    let is_length = start.get(4..LENGTH_BYTES) == Some(&[0; 4]);
    if bytes.is_empty() {
        Some("is empty; download it again")
    } else if start.starts_with(b"version https://git-lfs") {
        Some("is a Git LFS pointer, not the weights themselves; run `git lfs pull` in its folder")
    } else if is_text && text.starts_with(b"<") {
        Some("is an HTML or XML page, not weights: what was downloaded is an error page; download it again")
    } else if is_text && text.starts_with(b"{") {
        Some("is JSON text, not weights; download it again")
    } else if !is_length && (start.starts_with(b"PK\x03\x04") || start.starts_with(b"\x80\x02\x8a\x0a")) {
        Some("is a PyTorch pickle, not a safetensors file; convert it, as pickles can run code")
    } else if start.starts_with(b"GGUF") {
        Some("is a GGUF file, not a safetensors file")
    } else {
        None
    }
}

/// Appends the numbers in `bytes` to `values`.
fn decode<F: Float>(dtype: Dtype, bytes: &[u8], values: &mut Vec<F>) -> Result<(), String> {
    match dtype {
        Dtype::F64 => values.extend(chunks(bytes).map(|b| F::from_f64(f64::from_le_bytes(b)))),
        Dtype::F32 => values.extend(chunks(bytes).map(|b| F::from_f32(f32::from_le_bytes(b)))),
        Dtype::BF16 => values.extend(chunks(bytes).map(|b| F::from_f32(bf16::from_le_bytes(b).to_f32()))),
        Dtype::F16 => {
            let halves: Vec<f16> = chunks(bytes).map(f16::from_le_bytes).collect();
            values.extend(halves.to_f32_vec().into_iter().map(F::from_f32));
        }
        other => return Err(format!("holds {other} numbers; weights must be F64, F32, F16 or BF16")),
    }
    Ok(())
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}
