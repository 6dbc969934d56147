//! The numbers of flex tensors as slices, and back.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape};

/// `x`, row after row without gaps; copied where it is a view of another order.
pub(super) fn dense(x: FlexTensor) -> FlexTensor {
    if x.is_contiguous() { x } else { x.to_contiguous() }
}

/// The numbers of a tensor of 32-bit floats that lies [`dense`].
pub(super) fn numbers(x: &FlexTensor) -> &[f32] {
    debug_assert!(x.is_contiguous(), "the tensor lies dense");
    let layout = x.layout();
    &x.storage::<f32>()[layout.start_offset()..][..layout.num_elements()]
}

/// A tensor of `values`.
pub(super) fn tensor(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}
