//! Weights that are read one after the other, laid one behind the other in memory.
//!
//! A step of decoding reads every weight once. In large pages the memory gives them half as fast again, and weights of one
//! input that lie side by side are one product.

use std::sync::Arc;

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, Tensor};
use memmap2::MmapMut;

use super::large_pages::large_pages;

/// Room for matrices of 32-bit numbers. The columns of the matrices of a group stand side by side, one group behind the
/// other.
pub(crate) struct WeightArena {
    memory: MmapMut,
    places: Vec<Place>,
    device: Device,
}

/// Where a matrix lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    dims: [usize; 2],
    /// Numbers from row to row.
    stride: usize,
    /// Numbers before the first.
    start: usize,
}

const NUMBER: usize = size_of::<f32>();

impl WeightArena {
    /// Room for groups of matrices of the same height. `None` where the system gives no memory.
    pub(super) fn new(groups: &[Vec<[usize; 2]>], device: &Device) -> Option<Self> {
        let mut places = Vec::new();
        let mut len = 0;
        for group in groups {
            let stride = group.iter().map(|[_, width]| width).sum();
            let mut start = len;
            for &dims in group {
                places.push(Place { dims, stride, start });
                start += dims[1];
            }
            len += group.first().map_or(0, |[height, _]| height * stride);
        }
        let memory = large_pages(len * NUMBER)?;
        Some(Self { memory, places, device: device.clone() })
    }

    /// Puts the numbers of a matrix, row after row, where it lies; matrices are counted through all groups.
    pub(crate) fn write(&mut self, index: usize, numbers: &[u8]) {
        let Place { dims: [height, width], stride, start } = self.places[index];
        assert_eq!(numbers.len(), height * width * NUMBER, "the numbers are those of the matrix");
        for (row, numbers) in numbers.chunks(width * NUMBER).enumerate() {
            self.memory[(start + row * stride) * NUMBER..][..numbers.len()].copy_from_slice(numbers);
        }
    }

    /// The matrices, all in one storage.
    pub(crate) fn into_tensors(self) -> Vec<Tensor<2>> {
        let Self { memory, places, device } = self;
        let arena = Arc::new(Bytes::from_shared(bytes::Bytes::from_owner(memory), AllocationProperty::Other));
        let on_device = Tensor::<1>::zeros([1], &device).into_dispatch();
        let at = |place| Dispatch::matrix_at_kernel(on_device.clone(), (Arc::clone(&arena), place));
        places.into_iter().map(|place| Tensor::from_dispatch(at(place))).collect()
    }
}

#[burn::backend::backend_extension(Flex)]
pub trait ArenaKernels: Backend {
    /// The matrix at a place of an arena, on the backend of `on_device`.
    fn matrix_at_kernel(on_device: FloatTensor<Self>, at: (Arc<Bytes>, Place)) -> FloatTensor<Self>;
}

impl ArenaKernels for Flex {
    fn matrix_at_kernel(_: FlexTensor, (arena, Place { dims, stride, start }): (Arc<Bytes>, Place)) -> FlexTensor {
        FlexTensor::from_arc(arena, Layout::new(Shape::new(dims), vec![stride as isize, 1], start), DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tensor};

    use super::WeightArena;

    #[test]
    fn matrices_keep_their_values() {
        let device = Device::flex();
        let groups = [vec![[5, 7], [5, 1], [5, 64]], vec![[130, 3]], vec![[9, 4], [9, 2]]];
        let mut arena = WeightArena::new(&groups, &device).expect("there is memory");
        let random =
            |dims: &[usize; 2]| Tensor::<2>::random(*dims, Distribution::Normal(0.0, 1.0), &device).into_data();
        let matrices: Vec<_> = groups.iter().flatten().map(random).collect();
        for (index, matrix) in matrices.iter().enumerate() {
            arena.write(index, matrix.as_bytes());
        }
        for (matrix, laid) in matrices.iter().zip(arena.into_tensors()) {
            laid.into_data().assert_eq(matrix, true);
        }
    }
}
