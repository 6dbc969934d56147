//! Weights that stay in the blocks of a quantised file.

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use crate::kernel::{self, QuantisedMatrix};

/// Blocks in place of the numbers of a weight, for as long as nobody asks for these: the parameter draws them from the blocks
/// when it is read, trained, moved or saved, and stands for itself from then on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(Option<QuantisedMatrix>);

impl Blocks {
    /// Blocks of `matrix`, together with a parameter that stands for it. Its shape is `[d_input, d_output]`, or the other way
    /// round where it `is_table`.
    pub(crate) fn keep(
        matrix: QuantisedMatrix,
        is_table: bool,
        id: ParamId,
        device: &Device,
    ) -> (Self, Param<Tensor<2>>) {
        let [d_input, d_output] = matrix.dims();
        let numbers = matrix.clone();
        let init = move |device: &Device, is_require_grad: bool| {
            let data = TensorData::new(numbers.to_numbers(), [d_output, d_input]);
            let rows = Tensor::<2>::from_data(data, (device, DType::F32));
            let weight = if is_table { rows } else { rows.transpose() };
            weight.set_require_grad(is_require_grad)
        };
        let shape = if is_table { [d_output, d_input] } else { [d_input, d_output] };
        let weight = Param::uninitialized(id, init, device.clone(), true, Shape::new(shape));
        (Self(Some(matrix)), weight)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The blocks that still stand for `weight`.
    pub(crate) fn of(&self, weight: &Param<Tensor<2>>) -> Option<&QuantisedMatrix> {
        let is_changed = || weight.is_initialized() || weight.adapter().is_some();
        self.0.as_ref().filter(|_| !is_changed() && kernel::keeps_blocks(&weight.lazy_device()))
    }

    /// The same, where `x` is multiplied with them.
    pub(crate) fn beside<const D: usize>(&self, weight: &Param<Tensor<2>>, x: &Tensor<D>) -> Option<QuantisedMatrix> {
        self.of(weight).filter(|_| kernel::is_in_place(x)).cloned()
    }

    /// The type of the numbers of `weight`.
    pub(crate) fn dtype(&self, weight: &Param<Tensor<2>>) -> DType {
        if self.of(weight).is_some() { DType::F32 } else { weight.val().dtype() }
    }
}
