//! Writes weight files tensor by tensor, so that a model need not fit into memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Bytes, DType};
use burn_store::burn_pack::{Error as PackError, Tensor as PackTensor, Writer};
use safetensors::tensor::{Dtype, View};

use super::tensor_file::bytes_of;
use crate::error::Error;

/// What a tensor's numbers are fetched as: little-endian bytes, and whether all numbers are finite.
pub(super) struct Fetched {
    pub bytes: Vec<u8>,
    pub is_finite: bool,
}

type Fetch = Box<dyn Fn() -> Result<Fetched, Error> + Send + Sync>;

/// A tensor to be written. Its numbers are fetched when it is its turn.
pub(super) struct Outgoing {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub fetch: Fetch,
}

impl Outgoing {
    fn byte_len(&self) -> usize {
        self.shape.iter().product::<usize>() * bytes_of(self.dtype)
    }
}

/// How far writing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProgress {
    /// Tensors that are written.
    pub done: usize,
    /// Tensors in all.
    pub total: usize,
}

/// Who is told how far writing has come.
pub(super) type Watch = Arc<dyn Fn(WriteProgress) + Send + Sync>;

/// What is known about tensors that have been fetched.
struct Log {
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    progress: WriteProgress,
    not_finite: Vec<String>,
    error: Option<Error>,
}

impl Log {
    fn new(total: usize, watch: Watch) -> Self {
        let progress = WriteProgress { done: 0, total };
        Self { watch, state: Mutex::new(State { progress, not_finite: Vec::new(), error: None }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a tensor; none where it, or one before it, cannot be fetched.
    fn fetch(&self, tensor: &Outgoing) -> Option<Vec<u8>> {
        if self.state().error.is_some() {
            return None;
        }
        let fetched = (tensor.fetch)();
        let mut state = self.state();
        let bytes = match fetched {
            Ok(Fetched { bytes, is_finite }) => {
                if !is_finite {
                    state.not_finite.push(tensor.name.clone());
                }
                bytes
            }
            Err(error) => {
                state.error = Some(error);
                return None;
            }
        };
        state.progress.done += 1;
        (self.watch)(state.progress);
        Some(bytes)
    }

    /// The names of tensors with numbers that are not finite, or the first thing that went wrong.
    fn finish(&self, written: Result<(), Error>) -> Result<Vec<String>, Error> {
        let mut state = self.state();
        match state.error.take() {
            Some(error) => Err(error),
            None => written.map(|()| std::mem::take(&mut state.not_finite)),
        }
    }
}

/// Writes a safetensors file with these `metadata`; gives the names of tensors that hold NaN or infinity.
pub(super) fn write_safetensors(
    path: &Path,
    tensors: &[Outgoing],
    metadata: &[(&str, &str)],
    watch: Watch,
) -> Result<Vec<String>, Error> {
    struct Lazy<'a>(&'a Outgoing, &'a Log);
    impl View for Lazy<'_> {
        fn dtype(&self) -> Dtype {
            self.0.dtype
        }

        fn shape(&self) -> &[usize] {
            &self.0.shape
        }

        fn data(&self) -> Cow<'_, [u8]> {
            // A view cannot fail. What is written after a failure is thrown away.
            Cow::Owned(self.1.fetch(self.0).unwrap_or_default())
        }

        fn data_len(&self) -> usize {
            self.0.byte_len()
        }
    }
    let unwritable = |error: &dyn std::fmt::Display| Error::file(path, format!("cannot be written: {error}"));
    // The writer makes a file that its owner alone can read. This one has the rights that a new file has here.
    let rights = File::create(path).and_then(|file| file.metadata()).map_err(|error| unwritable(&error))?.permissions();
    let log = Log::new(tensors.len(), watch);
    let views = tensors.iter().map(|tensor| (tensor.name.as_str(), Lazy(tensor, &log)));
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let written = safetensors::serialize_to_file(views, Some(metadata), path).map_err(|error| unwritable(&error));
    let written = written.and_then(|()| std::fs::set_permissions(path, rights).map_err(|error| unwritable(&error)));
    log.finish(written)
}

/// Writes a file in Burn's own format; gives the names of tensors that hold NaN or infinity.
pub(super) fn write_pack(path: &Path, tensors: Vec<Outgoing>, watch: Watch) -> Result<Vec<String>, Error> {
    let log = Arc::new(Log::new(tensors.len(), watch));
    let mut packed = Vec::new();
    for tensor in tensors {
        let Some(dtype) = pack_dtype(tensor.dtype) else {
            let problem = format!("tensor `{}` holds {} numbers, which a pack cannot hold", tensor.name, tensor.dtype);
            return Err(Error::weights(path, problem));
        };
        let (log, name, shape, length) =
            (Arc::clone(&log), tensor.name.clone(), tensor.shape.clone(), tensor.byte_len());
        packed.push(PackTensor::deferred(name, dtype, shape, None, length, move || {
            log.fetch(&tensor).map(Bytes::from_bytes_vec).ok_or_else(|| PackError::IoError(String::new()))
        }));
    }
    let writer = Writer::new(packed).with_metadata("format", "burnpack").with_metadata("producer", "burnformer");
    let written = writer.write_to_file(path).map_err(|error| Error::file(path, format!("cannot be written: {error}")));
    log.finish(written)
}

fn pack_dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F64 => Some(DType::F64),
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}
