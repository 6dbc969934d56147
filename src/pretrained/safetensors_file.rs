//! One safetensors file, mapped into memory.
//!
//! What reaches people under this name is often something else, so the first bytes are looked at before the file is
//! believed.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::Metadata;

use super::mapped_file;
use super::tensor_file::{StoredTensor, TensorFile, bytes_of, not_weights};
use crate::error::Error;

/// Bytes in front of the header that hold its length.
const LENGTH_BYTES: usize = 8;
/// The longest header that the format allows.
const MOST_HEADER_BYTES: u64 = 100_000_000;
/// Bytes that are handed over at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Rows that are handed over at a time, however long they are, as many as one tile of a transposition has.
const FEWEST_ROWS: usize = 32;

/// A mapped file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    places: HashMap<String, Place>,
}

/// Where a tensor lies in its file.
#[derive(Clone, Debug)]
struct Place {
    bytes: Range<usize>,
    row_bytes: usize,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<(Self, Vec<(String, StoredTensor)>), Error> {
        let map = mapped_file::open(path)?;
        let (start, metadata) = read_header(&map).map_err(|problem| Error::weights(path, problem))?;
        let (mut places, mut tensors) = (HashMap::new(), Vec::new());
        for (name, info) in metadata.tensors() {
            let (begin, end) = info.data_offsets;
            let tensor = StoredTensor::plain(info.dtype, info.shape.clone());
            let row_bytes = tensor.rows_and_columns().1 * bytes_of(info.dtype);
            places.insert(name.clone(), Place { bytes: start + begin..start + end, row_bytes });
            tensors.push((name, tensor));
        }
        Ok((Self { path: path.to_path_buf(), map, places }, tensors))
    }
}

impl TensorFile for SafetensorsFile {
    fn read(&self, name: &str, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let broken = |problem: &str| Error::weights(&self.path, format!("tensor `{name}` {problem}"));
        let place = self.places.get(name).ok_or_else(|| broken("is not there"))?;
        let at_a_time = (PIECE_BYTES / place.row_bytes.max(1)).max(FEWEST_ROWS);
        for rows in rows {
            for first in rows.clone().step_by(at_a_time) {
                let last = (first + at_a_time).min(rows.end);
                let start = place.bytes.start + first * place.row_bytes;
                let end = place.bytes.start + last * place.row_bytes;
                let piece = self.map.get(start..end).filter(|_| end <= place.bytes.end);
                take(piece.ok_or_else(|| broken("is smaller than it should be"))?);
                mapped_file::release(&self.map, &(start..end));
            }
        }
        Ok(())
    }
}

/// Checks everything about a file except its numbers; gives where these start, and what there is.
fn read_header(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    if let Some(other) = not_weights(bytes).or_else(|| other_format(bytes)) {
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
    Ok((LENGTH_BYTES + header.len(), metadata))
}

/// Which other kind of weights a file holds, as far as its first bytes tell.
///
/// The length that such a file begins with can have any value in its low bytes, and has zeros in its high ones.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let is_length = bytes.get(4..LENGTH_BYTES) == Some(&[0; 4]);
    if !is_length && (bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02\x8a\x0a")) {
        Some("is a PyTorch pickle, not a safetensors file; call it `pytorch_model.bin`")
    } else if bytes.starts_with(b"GGUF") {
        Some("is a GGUF file, not a safetensors file; call it `.gguf`")
    } else {
        None
    }
}
