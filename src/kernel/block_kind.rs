//! How files store numbers of few bits.

use half::f16;

/// Numbers that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Blocks of 32 numbers, by the names they have in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// A scale in half precision, and 32 numbers of 8 bits.
    Q8_0,
    /// A scale, and 32 numbers of 4 bits around zero: of each byte the low bits are in the first half, the high ones in the
    /// second.
    Q4_0,
    /// As `Q4_0`, above a minimum that stands behind the scale.
    Q4_1,
}

impl BlockKind {
    /// Bytes before the quants: the scale, and the minimum.
    pub(crate) fn head(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 => 2,
            Self::Q4_1 => 4,
        }
    }

    /// Bytes of a block.
    pub(crate) fn bytes(self) -> usize {
        let bits = if self == Self::Q8_0 { 8 } else { 4 };
        self.head() + BLOCK * bits / 8
    }

    /// Whether all numbers in `blocks` are finite.
    pub(crate) fn are_finite(self, blocks: &[u8]) -> bool {
        let heads = blocks.chunks(self.bytes()).flat_map(|block| block[..self.head()].chunks(2));
        heads.fold(true, |all, half| all & f16::from_le_bytes([half[0], half[1]]).is_finite())
    }
}

/// `numbers` as [`BlockKind::Q8_0`]: the largest of a block becomes ±127.
pub(crate) fn to_q8_0(numbers: &[f32]) -> Vec<u8> {
    let mut blocks = Vec::with_capacity(numbers.len() / BLOCK * BlockKind::Q8_0.bytes());
    for block in numbers.chunks(BLOCK) {
        let largest = block.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let scale = largest / 127.0;
        blocks.extend(f16::from_f32(scale).to_le_bytes());
        let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        blocks.extend(block.iter().map(|number| (number * factor).round() as i8 as u8));
    }
    blocks
}
