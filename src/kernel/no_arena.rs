//! In place of an arena of weights, where no backend that is compiled in has use for one.

use burn::tensor::Tensor;

/// There is none.
pub(crate) enum WeightArena {}

impl WeightArena {
    pub(crate) fn write(&mut self, _index: usize, _numbers: &[u8]) {
        match *self {}
    }

    pub(crate) fn into_tensors(self) -> Vec<Tensor<2>> {
        match self {}
    }
}
