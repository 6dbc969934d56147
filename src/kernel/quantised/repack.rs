//! From the blocks of a file to words, scales and minima.

use half::f16;
use pulp::bytemuck;

use super::super::block_kind::{BLOCK, BlockKind};
use super::matrix::{Format, Stack, WORDS};

impl BlockKind {
    pub(super) fn format(self) -> Format {
        let (bits, zero, has_min) = match self {
            Self::Q8_0 => (8, 128, false),
            Self::Q4_0 => (4, 8, false),
            Self::Q4_1 => (4, 0, true),
        };
        Format { bits, zero, has_min }
    }
}

/// Puts the blocks of a matrix into `stack`, from its row `first` on.
pub(super) fn repack(kind: BlockKind, blocks: &[u8], memory: &mut [u8], stack: &Stack, first: usize) {
    let Stack { format, d_input, .. } = *stack;
    let (row_words, row_blocks) = (stack.groups() * WORDS * size_of::<u32>(), stack.blocks());
    let [words, scales, mins] = stack.split(memory);
    let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
    let mins: &mut [f32] = bytemuck::cast_slice_mut(mins);
    for (row, blocks) in (first..).zip(blocks.chunks(d_input / BLOCK * kind.bytes())) {
        let words = &mut words[row * row_words..][..row_words];
        for (index, block) in blocks.chunks(kind.bytes()).enumerate() {
            let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
            scales[row * row_blocks + index] = half(0);
            if format.has_min {
                mins[row * row_blocks + index] = half(2);
            }
            // Of 16 quants, or 32 of 4 bits, a byte goes to each of 16 words.
            for (part, quants) in block[kind.head()..].chunks(WORDS).enumerate() {
                let byte = index * (format.bits / 4) + part;
                let (group, byte) = (byte / 4, byte % 4);
                // Shifts find it so on every machine.
                let byte = if cfg!(target_endian = "big") { 3 - byte } else { byte };
                let words = &mut words[group * WORDS * 4..][..WORDS * 4];
                for (word, quant) in words.chunks_mut(4).zip(quants) {
                    // Of 8 bits with a sign, those in which 128 stands for zero.
                    word[byte] = if kind == BlockKind::Q8_0 { quant ^ 0x80 } else { *quant };
                }
            }
        }
    }
}
