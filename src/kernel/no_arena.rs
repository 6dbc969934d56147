//! In place of arenas of weights, where no backend that is compiled in has use for them.

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

/// There is none.
pub(crate) enum QuantisedArena {}

impl QuantisedArena {
    pub(crate) fn write(&mut self, _index: usize, _blocks: &[u8]) {
        match *self {}
    }

    pub(crate) fn into_matrices(self) -> Option<Vec<QuantisedMatrix>> {
        match self {}
    }
}

/// There is none.
#[derive(Clone, Debug)]
pub(crate) enum QuantisedMatrix {}

impl QuantisedMatrix {
    pub(crate) fn dims(&self) -> [usize; 2] {
        match *self {}
    }

    pub(crate) fn to_numbers(&self) -> Vec<f32> {
        match *self {}
    }
}
