//! The numbers of tensors in safetensors files, whatever type they are stored in.

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Whole numbers of any width.
pub(crate) fn integers(tensor: &TensorView) -> Result<Vec<i64>, String> {
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::I64 => numbers(data, i64::from_le_bytes),
        Dtype::I32 => numbers(data, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::U8 | Dtype::BOOL => data.iter().map(|byte| i64::from(*byte)).collect(),
        other => return Err(format!("has type {other:?}, expected whole numbers")),
    })
}

/// Floating-point numbers of any width.
pub(crate) fn floats(tensor: &TensorView) -> Result<Vec<f64>, String> {
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F64 => numbers(data, f64::from_le_bytes),
        Dtype::F32 => numbers(data, |bytes| f32::from_le_bytes(bytes).into()),
        Dtype::F16 => numbers(data, |bytes| f16::from_le_bytes(bytes).into()),
        Dtype::BF16 => numbers(data, |bytes| bf16::from_le_bytes(bytes).into()),
        other => return Err(format!("has type {other:?}, expected floating-point numbers")),
    })
}

/// Numbers of `N` bytes each.
fn numbers<const N: usize, T>(data: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.chunks_exact(N).map(|bytes| read(bytes.try_into().expect("chunks have this length"))).collect()
}
