//! Rows of flex tables. Flex's own `select` copies the whole table where it is a part of a storage, as each weight of an
//! arena is.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::{Shape, Tensor};

use super::flex::{Rows, dense, tensor};

#[burn::backend::backend_extension(Flex)]
pub trait LookupKernels: Backend {
    /// Rows of a table of 32-bit numbers, one for each index.
    fn lookup_kernel(table: FloatTensor<Self>, indices: Vec<usize>) -> FloatTensor<Self>;
}

impl LookupKernels for Flex {
    fn lookup_kernel(table: FlexTensor, indices: Vec<usize>) -> FlexTensor {
        let table = if Rows::of(&table).is_some() { table } else { dense(table) };
        let height = table.layout().shape()[0];
        let rows = Rows::of(&table).expect("a dense table has rows");
        let mut y = Vec::with_capacity(indices.len() * rows.width);
        for &index in &indices {
            assert!(index < height, "row {index} of a table of {height}");
            y.extend_from_slice(rows.row(index));
        }
        tensor(y, Shape::new([indices.len(), rows.width]))
    }
}

/// Rows of a flex table of 32-bit numbers.
pub(super) fn lookup(table: Tensor<2>, indices: Vec<usize>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::lookup_kernel(table.into_dispatch(), indices))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Int, Tensor};

    #[test]
    fn rows_are_those_that_select_gives_in_any_layout() {
        let device = Device::flex();
        let table = Tensor::<2>::random([11, 7], Distribution::Normal(0.0, 1.0), &device);
        let indices = [10_usize, 0, 3, 3, 9];
        for table in
            [table.clone(), table.clone().slice([1..11, 2..6]).repeat_dim(0, 2), table.transpose().repeat_dim(0, 2)]
        {
            let ids = Tensor::<1, Int>::from_data(indices.map(|index| index as i64), &device);
            let rows = super::lookup(table.clone(), indices.to_vec());
            rows.into_data().assert_eq(&table.select(0, ids).into_data(), true);
        }
    }
}
