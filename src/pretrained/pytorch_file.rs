//! One file that `torch.save` wrote: `pytorch_model.bin`, `.pt` or `.pth`.
//!
//! The pickle inside is interpreted, never run: what is no tensor, number, text or collection is left alone.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn_store::pytorch_reader::{DType, PickleValue, PytorchError, PytorchReader, Tensor};
use safetensors::tensor::Dtype;

use super::tensor_file::{StoredTensor, TensorFile, first_bytes, hand_over, not_weights};
use crate::error::Error;

/// Keys under which training programs put the tensors, with other things beside them.
const WRAPPERS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// An open file. Numbers are read when they are asked for, one tensor at a time.
#[derive(Debug)]
pub(super) struct PytorchFile {
    path: PathBuf,
    tensors: HashMap<String, Tensor>,
}

impl PytorchFile {
    /// Opens a file and reads what tensors it has.
    pub fn open(path: &Path) -> Result<(Self, Vec<(String, StoredTensor)>), Error> {
        let start = first_bytes(path)?;
        if let Some(other) = not_weights(&start).or_else(|| other_format(&start)) {
            return Err(Error::weights(path, other));
        }
        let tensors = read_tensors(path).map_err(|error| Error::weights(path, problem_of(&error)))?;
        if tensors.is_empty() {
            return Err(Error::weights(path, "holds no tensors"));
        }
        let stored = tensors.iter().map(|(name, tensor)| {
            (name.clone(), StoredTensor::plain(dtype_of(tensor.dtype()), tensor.shape().to_vec()))
        });
        let stored = stored.collect();
        Ok((Self { path: path.to_path_buf(), tensors }, stored))
    }
}

impl TensorFile for PytorchFile {
    fn read(&self, name: &str, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let broken = |problem: String| Error::weights(&self.path, format!("tensor `{name}` {problem}"));
        let tensor = self.tensors.get(name).ok_or_else(|| broken("is not there".to_owned()))?;
        let bytes = tensor.read().map_err(|error| broken(format!("cannot be read: {error}; download it again")))?;
        let row_bytes = tensor.shape().iter().skip(1).product::<usize>() * tensor.dtype().size();
        match hand_over(&bytes, row_bytes, rows, take) {
            true => Ok(()),
            false => Err(broken("is smaller than it should be".to_owned())),
        }
    }
}

/// The tensors of a state dict, be it the file itself or one of the things in it.
fn read_tensors(path: &Path) -> Result<HashMap<String, Tensor>, PytorchError> {
    let wrapper = match PytorchReader::read_pickle_data(path, None)? {
        PickleValue::Dict(keys) => {
            WRAPPERS.into_iter().find(|wrapper| matches!(keys.get(*wrapper), Some(PickleValue::Dict(_))))
        }
        _ => None,
    };
    let reader = match wrapper {
        Some(wrapper) => PytorchReader::with_top_level_key(path, wrapper),
        None => PytorchReader::new(path),
    };
    Ok(reader?.into_tensors())
}

/// What is wrong with a file, for people who have downloaded it.
fn problem_of(error: &PytorchError) -> String {
    match error {
        PytorchError::Zip(error) => format!("is no whole PyTorch file (cut off?): {error}; download it again"),
        PytorchError::Io(error) => format!("cannot be read as a PyTorch file: {error}; download it again"),
        error => format!("cannot be read as a PyTorch file: {error}"),
    }
}

/// Which other kind of weights a file holds, as far as its first bytes tell.
fn other_format(start: &[u8]) -> Option<&'static str> {
    let is_safetensors = start.get(4..9).is_some_and(|bytes| bytes == b"\0\0\0\0{");
    if start.starts_with(b"GGUF") {
        Some("is a GGUF file, not one of PyTorch; call it `.gguf`")
    } else if is_safetensors {
        Some("is a safetensors file, not one of PyTorch; call it `model.safetensors`")
    } else {
        None
    }
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
