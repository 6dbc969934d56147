//! What every kind of weight file offers: tensors with a type and a shape, and their numbers row by row.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::Dtype;

use crate::error::Error;
use crate::kernel::BlockKind;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// The type of its numbers as [`TensorFile::read`] gives them.
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The format that the file packs them in, where that is another.
    pub packed_as: Option<&'static str>,
}

impl StoredTensor {
    /// A tensor whose numbers are stored as they are read.
    pub fn plain(dtype: Dtype, shape: Vec<usize>) -> Self {
        Self { dtype, shape, packed_as: None }
    }

    /// Whether it can be read into a parameter.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }

    /// The name of the type in the file.
    pub fn type_name(&self) -> String {
        self.packed_as.map_or_else(|| self.dtype.to_string(), str::to_owned)
    }

    /// The tensor as a matrix: its length along the first axis, and numbers in a row. A vector is a column, a scalar has
    /// one row.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        (self.shape.first().copied().unwrap_or(1), self.shape.iter().skip(1).product())
    }

    /// Bytes of the numbers as they are read.
    pub fn byte_len(&self) -> usize {
        self.shape.iter().product::<usize>() * bytes_of(self.dtype)
    }
}

/// Bytes of one number.
pub(super) fn bytes_of(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// A file with tensors. Its header is read when it is opened, its numbers each time they are asked for.
pub(super) trait TensorFile: fmt::Debug + Send + Sync {
    /// Hands `rows` of the tensor `name` to `take`, one range after the other, as little-endian numbers of the tensor's
    /// type: whole rows, as many at a time as suits the file. `rows` lie inside the tensor.
    fn read(&self, name: &str, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// The blocks that a matrix is stored in and kernels take, and the axis that goes from one row of blocks to the next.
    fn block_kind(&self, _name: &str) -> Option<(BlockKind, usize)> {
        None
    }

    /// Rows of these blocks.
    fn read_blocks(&self, name: &str, _rows: &[Range<usize>]) -> Result<Vec<u8>, Error> {
        unreachable!("tensor `{name}` is not stored in blocks")
    }
}

/// Hands over rows of a tensor whose bytes are in memory as a whole.
pub(super) fn hand_over(bytes: &[u8], row_bytes: usize, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> bool {
    rows.iter().all(|rows| {
        let piece = bytes.get(rows.start * row_bytes..rows.end * row_bytes);
        if let Some(piece) = piece {
            take(piece);
        }
        piece.is_some()
    })
}

/// The beginning of a file, enough to tell what it is.
pub(super) fn first_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut start));
    read.map(|_| start).map_err(|error| Error::file(path, error))
}

/// What a file is that holds no weights of any kind, as far as its first bytes tell.
///
/// What reaches people under the name of a weight file is often a Git LFS pointer or an error page.
pub(super) fn not_weights(bytes: &[u8]) -> Option<&'static str> {
    let start = &bytes[..bytes.len().min(512)];
    let text = start.trim_ascii_start();
    let is_text = !start.contains(&0);
    if bytes.is_empty() {
        Some("is empty; download it again")
    } else if start.starts_with(b"version https://git-lfs") {
        Some("is a Git LFS pointer, not the weights themselves; run `git lfs pull` in its folder")
    } else if is_text && text.starts_with(b"<") {
        Some("is an HTML or XML page, not weights: what was downloaded is an error page; download it again")
    } else if is_text && text.starts_with(b"{") {
        Some("is JSON text, not weights; download it again")
    } else {
        None
    }
}
