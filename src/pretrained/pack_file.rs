//! One file of Burn's own format, a burnpack.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_store::burn_pack::{Reader, Tensor};
use safetensors::tensor::Dtype;

use super::tensor_file::{StoredTensor, TensorFile, first_bytes, hand_over, not_weights};
use crate::error::Error;

/// An open file. Numbers are read when they are asked for, one tensor at a time.
#[derive(Debug)]
pub(super) struct PackFile {
    path: PathBuf,
    tensors: HashMap<String, Tensor>,
}

impl PackFile {
    /// Opens a file and reads what tensors it has.
    pub fn open(path: &Path) -> Result<(Self, Vec<(String, StoredTensor)>), Error> {
        let start = first_bytes(path)?;
        if let Some(other) = not_weights(&start) {
            return Err(Error::weights(path, other));
        }
        let broken = |error| Error::weights(path, format!("cannot be read as a burnpack (cut off?): {error}"));
        let packed = Reader::from_file_exact(path).and_then(Reader::into_tensors).map_err(broken)?;
        let (mut tensors, mut stored) = (HashMap::new(), Vec::new());
        for tensor in packed {
            let name = tensor.name.clone();
            let Some(dtype) = dtype_of(tensor.dtype) else {
                let problem = format!("tensor `{name}` holds {:?} numbers, which are not read", tensor.dtype);
                return Err(Error::weights(path, problem));
            };
            stored.push((name.clone(), StoredTensor::plain(dtype, tensor.shape.to_vec())));
            tensors.insert(name, tensor);
        }
        Ok((Self { path: path.to_path_buf(), tensors }, stored))
    }
}

impl TensorFile for PackFile {
    fn read(&self, name: &str, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let broken = |problem: String| Error::weights(&self.path, format!("tensor `{name}` {problem}"));
        let tensor = self.tensors.get(name).ok_or_else(|| broken("is not there".to_owned()))?;
        let bytes = tensor.to_bytes().map_err(|error| broken(format!("cannot be read: {error}")))?;
        let row_bytes = tensor.shape.iter().skip(1).product::<usize>() * tensor.dtype.size();
        match hand_over(&bytes, row_bytes, rows, take) {
            true => Ok(()),
            false => Err(broken("is smaller than it should be".to_owned())),
        }
    }
}

fn dtype_of(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
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
        _ => return None,
    })
}
