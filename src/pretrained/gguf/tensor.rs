//! One tensor of a file: its numbers in the order that a checkpoint has them.

use std::ops::Range;

use safetensors::tensor::Dtype;

use super::super::tensor_file::StoredTensor;
use super::header::TensorEntry;
use super::names::Layout;
use super::quantization::TensorType;
use crate::kernel::BlockKind;

/// Numbers that are handed over at a time, and rows, however long they are: as many as one tile of a transposition has.
const PIECE: usize = 1 << 18;
const FEWEST_ROWS: usize = 32;

/// A tensor, and what makes it that of a checkpoint.
#[derive(Debug)]
pub(super) struct Tensor {
    pub entry: TensorEntry,
    pub layout: Layout,
}

impl Tensor {
    /// The tensor as a checkpoint has it.
    pub fn describe(&self) -> StoredTensor {
        let stored = self.entry.tensor_type;
        let dtype = self.plain().unwrap_or(Dtype::F32);
        let packed_as = (self.plain().is_none() && stored != TensorType::F32).then_some(stored.name());
        StoredTensor { dtype, shape: self.layout.shape(&self.entry.shape), packed_as }
    }

    /// The type of numbers that are handed over as they are.
    fn plain(&self) -> Option<Dtype> {
        if matches!(self.layout, Layout::PlusOne | Layout::Transposed) {
            return None;
        }
        match self.entry.tensor_type {
            TensorType::F32 => Some(Dtype::F32),
            TensorType::F16 => Some(Dtype::F16),
            TensorType::Bf16 => Some(Dtype::BF16),
            TensorType::F64 => Some(Dtype::F64),
            _ => None,
        }
    }

    /// Hands `rows` of the tensor in a checkpoint to `take`, piece by piece; `bytes` are those of the tensor in the file.
    /// `None` where they are too few.
    pub fn read(&self, bytes: &[u8], rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Option<()> {
        let stored_rows = self.entry.shape.first().copied().unwrap_or(1);
        let row_bytes = bytes.len().checked_div(stored_rows)?;
        if self.layout == Layout::Transposed {
            return self.read_turned(bytes, stored_rows, rows, take);
        }
        let columns: usize = self.entry.shape.iter().skip(1).product();
        let at_a_time = (PIECE / columns.max(1)).max(FEWEST_ROWS);
        let mut piece = Vec::new();
        for range in rows {
            for start in range.clone().step_by(at_a_time) {
                piece.clear();
                self.append(bytes, row_bytes, start..range.end.min(start + at_a_time), &mut piece)?;
                take(&piece);
            }
        }
        Some(())
    }

    /// The blocks that are kept as they are, and the axis of a checkpoint's tensor along which their rows lie.
    pub fn block_kind(&self) -> Option<(BlockKind, usize)> {
        let kind = match self.entry.tensor_type {
            TensorType::Q8_0 => BlockKind::Q8_0,
            TensorType::Q4_0 => BlockKind::Q4_0,
            TensorType::Q4_1 => BlockKind::Q4_1,
            _ => return None,
        };
        let axis = match self.layout {
            Layout::AsStored | Layout::Interleaved { .. } | Layout::Stacked { .. } => 0,
            Layout::Transposed => 1,
            Layout::PlusOne => return None,
        };
        (self.entry.shape.len() == 2).then_some((kind, axis))
    }

    /// Rows of blocks in the order of a checkpoint; `None` where `bytes` are too few.
    pub fn read_blocks(&self, bytes: &[u8], rows: &[Range<usize>]) -> Option<Vec<u8>> {
        let row_bytes = bytes.len().checked_div(self.entry.shape[0])?;
        let mut blocks = Vec::with_capacity(rows.iter().map(Range::len).sum::<usize>() * row_bytes);
        for row in rows.iter().cloned().flatten() {
            let row = self.layout.row_in_file(row).unwrap_or(row);
            blocks.extend_from_slice(bytes.get(row * row_bytes..(row + 1) * row_bytes)?);
        }
        Some(blocks)
    }

    /// Appends rows of a checkpoint's tensor.
    fn append(&self, bytes: &[u8], row_bytes: usize, rows: Range<usize>, piece: &mut Vec<u8>) -> Option<()> {
        let mut one = |rows: Range<usize>| {
            let bytes = bytes.get(rows.start * row_bytes..rows.end * row_bytes)?;
            match self.plain() {
                Some(_) => piece.extend_from_slice(bytes),
                None => self.append_numbers(bytes, piece),
            }
            Some(())
        };
        match self.layout.row_in_file(0) {
            None => one(rows),
            Some(_) => rows.filter_map(|row| self.layout.row_in_file(row)).try_for_each(|row| one(row..row + 1)),
        }
    }

    fn append_numbers(&self, bytes: &[u8], piece: &mut Vec<u8>) {
        let mut numbers = Vec::new();
        self.entry.tensor_type.dequantize(bytes, &mut numbers);
        if self.layout == Layout::PlusOne {
            numbers.iter_mut().for_each(|number| *number -= 1.0);
        }
        append_bytes(&numbers, piece);
    }

    /// The same for a matrix whose rows are the columns in the file.
    fn read_turned(
        &self,
        bytes: &[u8],
        stored_rows: usize,
        rows: &[Range<usize>],
        take: &mut dyn FnMut(&[u8]),
    ) -> Option<()> {
        let mut numbers = Vec::new();
        self.entry.tensor_type.dequantize(bytes, &mut numbers);
        let columns = numbers.len().checked_div(stored_rows)?;
        let (mut row_numbers, mut piece) = (Vec::with_capacity(FEWEST_ROWS * stored_rows), Vec::new());
        for range in rows {
            for start in range.clone().step_by(FEWEST_ROWS) {
                row_numbers.clear();
                for column in start..range.end.min(start + FEWEST_ROWS) {
                    row_numbers.extend(numbers.iter().skip(column).step_by(columns.max(1)));
                }
                piece.clear();
                append_bytes(&row_numbers, &mut piece);
                take(&piece);
            }
        }
        Some(())
    }
}

fn append_bytes(numbers: &[f32], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + size_of_val(numbers), 0);
    for (bytes, number) in bytes[start..].as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
}
