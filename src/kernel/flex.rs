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

/// The same, to be written to, where the tensor lies dense and nothing else reads its storage.
pub(super) fn own_numbers(x: &mut FlexTensor) -> Option<&mut [f32]> {
    let is_whole = x.is_contiguous() && x.layout().start_offset() == 0;
    let len = x.layout().num_elements();
    if is_whole { x.try_storage_mut::<f32>().map(|numbers| &mut numbers[..len]) } else { None }
}

/// A tensor of `values`.
pub(super) fn tensor(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}

/// A tensor as rows of its last axis that lie at one distance from each other.
pub(super) struct Rows<'a> {
    /// From the first row on.
    pub numbers: &'a [f32],
    /// Numbers in a row.
    pub width: usize,
    /// Numbers from the start of a row to that of the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// The rows of `x`, a tensor of 32-bit floats; `None` where they do not lie so.
    pub(super) fn of(x: &'a FlexTensor) -> Option<Self> {
        let layout = x.layout();
        let (shape, strides) = (layout.shape(), layout.strides());
        let last = shape.num_dims().checked_sub(1)?;
        let width = shape[last];
        if width != 1 && strides[last] != 1 {
            return None;
        }
        // The innermost axis with more than one row gives the distance; all axes outside it must continue it.
        let (mut stride, mut count) = (width as isize, 1);
        for axis in (0..last).rev().filter(|&axis| shape[axis] != 1) {
            match count {
                1 => stride = strides[axis],
                _ if strides[axis] == stride * count as isize => {}
                _ => return None,
            }
            count *= shape[axis];
        }
        let numbers = &x.storage::<f32>()[layout.start_offset()..];
        Some(Self { numbers, width, stride: usize::try_from(stride).ok()? })
    }

    /// Row `index`.
    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        &self.numbers[index * self.stride..][..self.width]
    }
}
