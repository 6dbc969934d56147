//! How quantised matrices lie in memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;
use pulp::{Simd, WithSimd, bytemuck};

use super::super::block_kind::BLOCK;

/// Words of a group: as many as the widest vectors have lanes.
pub(super) const WORDS: usize = 16;

/// How quants stand in words of 32 bits.
///
/// The numbers of a row come in groups of 16 words. A word `j` holds those at `j`, `j + 16`, `j + 32` and so on from its lowest
/// bits up, so that a vector of words, shifted, is a vector of neighbouring numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Of a number.
    pub bits: usize,
    /// What stands for zero.
    pub zero: u32,
    /// Whether a number is a minimum above zero as well.
    pub has_min: bool,
}

/// Rows of `d_input` numbers, each its quant less zero, times the scale of its block, plus the block's minimum.
///
/// In memory: words, then scales, then minima, each row after row, and rows filled up to whole groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub format: Format,
    pub d_input: usize,
    pub height: usize,
    /// Bytes of the memory before the first.
    pub start: usize,
}

impl Stack {
    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.d_input.div_ceil(WORDS * 32 / self.format.bits)
    }

    /// Scales of a row, those of whole groups.
    pub fn blocks(&self) -> usize {
        self.groups() * (WORDS * 32 / self.format.bits / BLOCK)
    }

    fn word_bytes(&self) -> usize {
        self.height * self.groups() * WORDS * size_of::<u32>()
    }

    fn scale_bytes(&self) -> usize {
        self.height * self.blocks() * size_of::<f32>()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.word_bytes() + self.scale_bytes() * if self.format.has_min { 2 } else { 1 }
    }

    /// Words, scales and minima in `memory`, as bytes.
    pub fn split<'a>(&self, memory: &'a mut [u8]) -> [&'a mut [u8]; 3] {
        let (words, rest) = memory[self.start..][..self.bytes()].split_at_mut(self.word_bytes());
        let (scales, mins) = rest.split_at_mut(self.scale_bytes());
        [words, scales, mins]
    }
}

/// A matrix `[d_input, d_output]`: some rows of a stack, one for each output.
#[derive(Clone)]
pub struct QuantisedMatrix {
    pub(super) memory: Arc<Mmap>,
    pub(super) stack: Stack,
    pub(super) rows: Range<usize>,
}

impl fmt::Debug for QuantisedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantisedMatrix({:?} of {} bits)", self.dims(), self.stack.format.bits)
    }
}

/// What some rows consist of.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub words: &'a [u32],
    pub scales: &'a [f32],
    /// Empty where there are none.
    pub mins: &'a [f32],
}

impl QuantisedMatrix {
    /// `[d_input, d_output]`.
    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.stack.d_input, self.rows.len()]
    }

    /// Every number, output after output.
    pub(crate) fn to_numbers(&self) -> Vec<f32> {
        let [d_input, d_output] = self.dims();
        let mut numbers = Vec::with_capacity(d_input * d_output);
        self.append(0..d_output, &mut numbers);
        numbers
    }

    /// The parts of `rows` of this matrix.
    pub(super) fn parts(&self, rows: Range<usize>) -> Parts<'_> {
        let stack = &self.stack;
        let bytes = &self.memory[stack.start..][..stack.bytes()];
        let (words, rest) = bytes.split_at(stack.word_bytes());
        let (scales, mins) = rest.split_at(stack.scale_bytes());
        let of = |per_row: usize| (self.rows.start + rows.start) * per_row..(self.rows.start + rows.end) * per_row;
        // Stacks start at multiples of a cache line.
        let floats = |bytes| &bytemuck::cast_slice(bytes)[of(stack.blocks())];
        Parts {
            words: &bytemuck::cast_slice(words)[of(stack.groups() * WORDS)],
            scales: floats(scales),
            mins: if stack.format.has_min { floats(mins) } else { &[] },
        }
    }

    /// Appends the numbers of `rows`.
    pub(super) fn append(&self, rows: Range<usize>, numbers: &mut Vec<f32>) {
        for row in rows {
            let start = numbers.len();
            numbers.resize(start + self.stack.blocks() * BLOCK, 0.0);
            let parts = self.parts(row..row + 1);
            super::super::simd::dispatch(Dequantise {
                format: self.stack.format,
                parts,
                numbers: &mut numbers[start..],
            });
            numbers.truncate(start + self.stack.d_input);
        }
    }
}

struct Dequantise<'a> {
    format: Format,
    parts: Parts<'a>,
    numbers: &'a mut [f32],
}

impl WithSimd for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.format.bits {
            8 => self.run::<S, 8>(simd),
            _ => self.run::<S, 4>(simd),
        }
    }
}

impl Dequantise<'_> {
    #[inline(always)]
    fn run<S: Simd, const BITS: usize>(self, simd: S) {
        let Self { format, parts, numbers } = self;
        let (words, numbers) = (S::as_simd_u32s(parts.words).0, S::as_mut_simd_f32s(numbers).0);
        let vectors = WORDS / S::F32_LANES;
        let per_word = 32 / BITS;
        let of_bits = FromBits::<S, BITS>::new(simd, format.zero);
        for (group, numbers) in numbers.chunks_exact_mut(per_word * vectors).enumerate() {
            let words = &words[group * vectors..][..vectors];
            for (half, numbers) in numbers.chunks_exact_mut(vectors).enumerate() {
                let block = (group * per_word + half) / 2;
                let scale = simd.splat_f32s(parts.scales[block]);
                let min = simd.splat_f32s(parts.mins.get(block).copied().unwrap_or(0.0));
                for (number, word) in numbers.iter_mut().zip(words) {
                    *number = simd.add_f32s(simd.mul_f32s(scale, of_bits.number(simd, *word, half)), min);
                }
            }
        }
    }
}

/// From the quants in words to numbers.
#[derive(Clone, Copy)]
pub(super) struct FromBits<S: Simd, const BITS: usize> {
    mask: S::u32s,
    unit: S::u32s,
    less: S::f32s,
}

impl<S: Simd, const BITS: usize> FromBits<S, BITS> {
    #[inline(always)]
    pub fn new(simd: S, zero: u32) -> Self {
        /// In a float of this size a unit is the lowest bit: 2²³.
        const UNIT: u32 = 0x4B00_0000;
        Self {
            mask: simd.splat_u32s(u32::MAX >> (32 - BITS)),
            unit: simd.splat_u32s(UNIT),
            less: simd.splat_f32s(f32::from_bits(UNIT | zero)),
        }
    }

    /// The numbers at `half` of words, without their scale.
    #[inline(always)]
    pub fn number(&self, simd: S, words: S::u32s, half: usize) -> S::f32s {
        let shift = simd.splat_u32s((BITS * half) as u32);
        let quant = simd.and_u32s(simd.wrapping_dyn_shr_u32s(words, shift), self.mask);
        simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(quant, self.unit)), self.less)
    }
}
