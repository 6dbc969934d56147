//! The number types of GGUF files: plain floats, and blocks in which numbers of a few bits share a scale.
//!
//! A block type is a struct that is read from its bytes and gives its numbers, bit for bit as ggml does.

use half::{bf16, f16};

/// A type that a tensor can have here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorType {
    F32,
    F16,
    Bf16,
    F64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// What is known of a type.
struct Traits {
    /// ggml's number for it.
    id: u32,
    name: &'static str,
    tensor_type: TensorType,
    /// Numbers in a block.
    len: usize,
    /// Bytes of a block.
    bytes: usize,
}

const fn traits(id: u32, name: &'static str, tensor_type: TensorType, len: usize, bytes: usize) -> Traits {
    Traits { id, name, tensor_type, len, bytes }
}

/// Every type, in the order of the enum.
const TYPES: [Traits; 12] = [
    traits(0, "F32", TensorType::F32, 1, 4),
    traits(1, "F16", TensorType::F16, 1, 2),
    traits(30, "BF16", TensorType::Bf16, 1, 2),
    traits(28, "F64", TensorType::F64, 1, 8),
    traits(2, "Q4_0", TensorType::Q4_0, 32, 18),
    traits(3, "Q4_1", TensorType::Q4_1, 32, 20),
    traits(6, "Q5_0", TensorType::Q5_0, 32, 22),
    traits(7, "Q5_1", TensorType::Q5_1, 32, 24),
    traits(8, "Q8_0", TensorType::Q8_0, 32, 34),
    traits(12, "Q4_K", TensorType::Q4K, 256, 144),
    traits(13, "Q5_K", TensorType::Q5K, 256, 176),
    traits(14, "Q6_K", TensorType::Q6K, 256, 210),
];

/// The names of types that are not read, for messages.
const OTHERS: [(u32, &str); 21] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl TensorType {
    /// The type that ggml numbers `id`, or what is wrong with it.
    pub fn from_id(id: u32) -> Result<Self, String> {
        if let Some(known) = TYPES.iter().find(|known| known.id == id) {
            return Ok(known.tensor_type);
        }
        let supported: Vec<&str> = TYPES.iter().map(|known| known.name).collect();
        let name = match OTHERS.iter().find(|(other, _)| *other == id) {
            Some((_, name)) => format!("the type {name}"),
            None => format!("the unknown type {id}"),
        };
        Err(format!("has {name}, which is not supported; supported are {}", supported.join(", ")))
    }

    fn traits(self) -> &'static Traits {
        &TYPES[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.traits().name
    }

    /// Numbers in a block.
    pub fn block_len(self) -> usize {
        self.traits().len
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.traits().bytes
    }

    /// Appends the numbers in `bytes`, which are whole blocks.
    pub fn dequantize(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        match self {
            Self::F32 => plain(bytes, numbers, f32::from_le_bytes),
            Self::F16 => plain(bytes, numbers, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => plain(bytes, numbers, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Self::F64 => plain(bytes, numbers, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::Q4_0 => blocks::<Q4_0, 32, 18>(bytes, numbers),
            Self::Q4_1 => blocks::<Q4_1, 32, 20>(bytes, numbers),
            Self::Q5_0 => blocks::<Q5_0, 32, 22>(bytes, numbers),
            Self::Q5_1 => blocks::<Q5_1, 32, 24>(bytes, numbers),
            Self::Q8_0 => blocks::<Q8_0, 32, 34>(bytes, numbers),
            Self::Q4K => blocks::<Q4K, 256, 144>(bytes, numbers),
            Self::Q5K => blocks::<Q5K, 256, 176>(bytes, numbers),
            Self::Q6K => blocks::<Q6K, 256, 210>(bytes, numbers),
        }
    }
}

fn plain<const N: usize>(bytes: &[u8], numbers: &mut Vec<f32>, number: impl Fn([u8; N]) -> f32) {
    numbers.extend(bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)));
}

fn blocks<B: Block<LEN, BYTES>, const LEN: usize, const BYTES: usize>(bytes: &[u8], numbers: &mut Vec<f32>) {
    for block in bytes.as_chunks::<BYTES>().0 {
        numbers.extend_from_slice(&B::read(block).numbers());
    }
}

/// `LEN` numbers in `BYTES` bytes.
trait Block<const LEN: usize, const BYTES: usize> {
    fn read(bytes: &[u8; BYTES]) -> Self;
    fn numbers(&self) -> [f32; LEN];
}

/// Numbers of 4 bits around 0: the scale times −8 to 7.
struct Q4_0 {
    scale: f32,
    /// Two numbers each: the low bits are in the first half of the block, the high ones in the second.
    quants: [u8; 16],
}

impl Block<32, 18> for Q4_0 {
    fn read(bytes: &[u8; 18]) -> Self {
        Self { scale: half_at(bytes, 0), quants: part(bytes, 2) }
    }

    fn numbers(&self) -> [f32; 32] {
        nibbles(&self.quants).map(|quant| self.scale * (f32::from(quant) - 8.0))
    }
}

/// Numbers of 4 bits above a minimum.
struct Q4_1 {
    scale: f32,
    min: f32,
    quants: [u8; 16],
}

impl Block<32, 20> for Q4_1 {
    fn read(bytes: &[u8; 20]) -> Self {
        Self { scale: half_at(bytes, 0), min: half_at(bytes, 2), quants: part(bytes, 4) }
    }

    fn numbers(&self) -> [f32; 32] {
        nibbles(&self.quants).map(|quant| self.scale * f32::from(quant) + self.min)
    }
}

/// Numbers of 5 bits around 0: the scale times −16 to 15.
struct Q5_0 {
    scale: f32,
    /// The fifth bit of each number.
    high: u32,
    quants: [u8; 16],
}

impl Block<32, 22> for Q5_0 {
    fn read(bytes: &[u8; 22]) -> Self {
        Self { scale: half_at(bytes, 0), high: u32::from_le_bytes(part(bytes, 2)), quants: part(bytes, 6) }
    }

    fn numbers(&self) -> [f32; 32] {
        fives(&self.quants, self.high).map(|quant| self.scale * (f32::from(quant) - 16.0))
    }
}

/// Numbers of 5 bits above a minimum.
struct Q5_1 {
    scale: f32,
    min: f32,
    high: u32,
    quants: [u8; 16],
}

impl Block<32, 24> for Q5_1 {
    fn read(bytes: &[u8; 24]) -> Self {
        let (scale, min) = (half_at(bytes, 0), half_at(bytes, 2));
        Self { scale, min, high: u32::from_le_bytes(part(bytes, 4)), quants: part(bytes, 8) }
    }

    fn numbers(&self) -> [f32; 32] {
        fives(&self.quants, self.high).map(|quant| self.scale * f32::from(quant) + self.min)
    }
}

/// Numbers of 8 bits.
struct Q8_0 {
    scale: f32,
    quants: [u8; 32],
}

impl Block<32, 34> for Q8_0 {
    fn read(bytes: &[u8; 34]) -> Self {
        Self { scale: half_at(bytes, 0), quants: part(bytes, 2) }
    }

    fn numbers(&self) -> [f32; 32] {
        self.quants.map(|quant| self.scale * f32::from(quant.cast_signed()))
    }
}

/// Eight groups of 32 numbers of 4 bits, each group with a scale and a minimum of 6 bits.
struct Q4K {
    groups: [Group; 8],
    /// Two groups in 32 bytes: one in the low bits, the next in the high ones.
    quants: [u8; 128],
}

impl Block<256, 144> for Q4K {
    fn read(bytes: &[u8; 144]) -> Self {
        Self { groups: Group::read(part(bytes, 0)), quants: part(bytes, 16) }
    }

    fn numbers(&self) -> [f32; 256] {
        let mut numbers = [0.0; 256];
        for (index, (group, numbers)) in self.groups.iter().zip(numbers.as_chunks_mut::<32>().0).enumerate() {
            let quants: [u8; 32] = part(&self.quants, index / 2 * 32);
            let shift = index % 2 * 4;
            *numbers = quants.map(|quant| group.number(quant >> shift & 15));
        }
        numbers
    }
}

/// Eight groups of 32 numbers of 5 bits, each group with a scale and a minimum of 6 bits.
struct Q5K {
    groups: [Group; 8],
    /// The fifth bits: bit `g` of byte `i` belongs to number `i` of group `g`.
    high: [u8; 32],
    quants: [u8; 128],
}

impl Block<256, 176> for Q5K {
    fn read(bytes: &[u8; 176]) -> Self {
        Self { groups: Group::read(part(bytes, 0)), high: part(bytes, 16), quants: part(bytes, 48) }
    }

    fn numbers(&self) -> [f32; 256] {
        let mut numbers = [0.0; 256];
        for (index, (group, numbers)) in self.groups.iter().zip(numbers.as_chunks_mut::<32>().0).enumerate() {
            let quants: [u8; 32] = part(&self.quants, index / 2 * 32);
            let shift = index % 2 * 4;
            for ((number, quant), high) in numbers.iter_mut().zip(quants).zip(self.high) {
                *number = group.number(quant >> shift & 15 | (high >> index & 1) << 4);
            }
        }
        numbers
    }
}

/// Sixteen groups of 16 numbers of 6 bits around 0, each group with a scale of 8 bits.
struct Q6K {
    low: [u8; 128],
    high: [u8; 64],
    scales: [f32; 16],
}

impl Block<256, 210> for Q6K {
    fn read(bytes: &[u8; 210]) -> Self {
        let scale = half_at(bytes, 208);
        let scales = part::<16>(bytes, 192).map(|quant| scale * f32::from(quant.cast_signed()));
        Self { low: part(bytes, 0), high: part(bytes, 128), scales }
    }

    /// Each half of the block is four runs of 32 numbers. Runs 0 and 1 have their low bits in the low bits of 64 bytes,
    /// runs 2 and 3 in the high ones; the two high bits of all four are in one row of 32 bytes.
    fn numbers(&self) -> [f32; 256] {
        let mut numbers = [0.0; 256];
        for (run, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, quarter) = (run / 4, run % 4);
            let low: [u8; 32] = part(&self.low, half * 64 + quarter % 2 * 32);
            let high: [u8; 32] = part(&self.high, half * 32);
            let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
            for (index, number) in numbers.iter_mut().enumerate() {
                let quant = low[index] >> low_shift & 15 | (high[index] >> high_shift & 3) << 4;
                *number = self.scales[run * 2 + index / 16] * (f32::from(quant) - 32.0);
            }
        }
        numbers
    }
}

/// The scale and the minimum of a group in a K block.
#[derive(Clone, Copy)]
struct Group {
    scale: f32,
    min: f32,
}

impl Group {
    /// The groups from the first 16 bytes of a block: a scale for the scales, one for the minima, and 12 bytes with the
    /// 6 bits of each. Groups 0 to 3 have theirs in a byte of their own; of the others, 4 bits are in the last four
    /// bytes and 2 above the bits of those.
    fn read(bytes: [u8; 16]) -> [Self; 8] {
        let (scale, min) = (half_at(&bytes, 0), half_at(&bytes, 2));
        let packed: [u8; 12] = part(&bytes, 4);
        std::array::from_fn(|group| {
            let (scale_bits, min_bits) = match group {
                0..4 => (packed[group] & 63, packed[group + 4] & 63),
                _ => (
                    packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                    packed[group + 4] >> 4 | packed[group] >> 6 << 4,
                ),
            };
            Self { scale: scale * f32::from(scale_bits), min: min * f32::from(min_bits) }
        })
    }

    fn number(self, quant: u8) -> f32 {
        self.scale * f32::from(quant) - self.min
    }
}

/// `N` bytes from `start` on, which must be there.
fn part<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[start + index])
}

fn half_at(bytes: &[u8], start: usize) -> f32 {
    f16::from_le_bytes(part(bytes, start)).to_f32()
}

/// Numbers of 4 bits: first the low ones of all bytes, then the high ones.
fn nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|index| bytes[index % 16] >> (index / 16 * 4) & 15)
}

/// The same with a fifth bit for each.
fn fives(bytes: &[u8; 16], high: u32) -> [u8; 32] {
    let quants = nibbles(bytes);
    std::array::from_fn(|index| quants[index] | ((high >> index & 1) as u8) << 4)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn blocks_have_the_numbers_that_ggml_gives_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf/blocks.safetensors");
        let file = std::fs::read(path).expect("the fixture is there");
        let file = SafeTensors::deserialize(&file).expect("the fixture is whole");
        let mut compared = 0;
        for known in &TYPES {
            let tensor = |what: &str| file.tensor(&format!("{}.{what}", known.name));
            let Ok(blocks) = tensor("bytes") else { continue };
            let mut numbers = Vec::new();
            known.tensor_type.dequantize(blocks.data(), &mut numbers);
            let found: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
            let want = tensor("numbers").expect("blocks have numbers");
            let want: Vec<u32> = want.data().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
            assert_eq!(found, want, "{}", known.name);
            compared += 1;
        }
        assert_eq!(compared, 10, "every type but the floats of 32 and 64 bits");
    }

    #[test]
    fn the_table_is_in_the_order_of_the_types() {
        for known in &TYPES {
            assert_eq!(known.tensor_type.name(), known.name);
            let mut numbers = Vec::new();
            known.tensor_type.dequantize(&vec![0; 3 * known.bytes], &mut numbers);
            assert_eq!(numbers, vec![0.0; 3 * known.len], "{}", known.name);
        }
    }

    #[test]
    fn other_types_are_named() {
        let problem = |id| TensorType::from_id(id).expect_err("not supported");
        assert!(problem(10).contains("the type Q2_K"), "{}", problem(10));
        assert!(problem(99).contains("the unknown type 99"), "{}", problem(99));
        assert!(
            problem(99).ends_with("supported are F32, F16, BF16, F64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K")
        );
    }
}
