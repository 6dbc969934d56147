use burn::tensor::{Device, Distribution, Tensor};

use super::super::block_kind::{BLOCK, BlockKind};
use super::{QuantisedArena, QuantisedMatrix, linears, rows};

/// Against sums in 64 bits, of the sum of the products' sizes: up to 672 additions are each rounded by 2⁻²⁴ of less than that,
/// and about the root of their number arrives.
const TOLERANCE: f64 = 1.6e-6;

const KINDS: [BlockKind; 3] = [BlockKind::Q8_0, BlockKind::Q4_0, BlockKind::Q4_1];

/// Blocks of numbers all over their range.
fn blocks(kind: BlockKind, [d_input, d_output]: [usize; 2], seed: usize) -> Vec<u8> {
    let n_blocks = d_output * d_input / BLOCK;
    let byte = |at: usize| (((at + seed) * 2_654_435_761) >> 7) as u8;
    let half = |at: usize| half::f16::from_f32((f32::from(byte(at)) - 100.0) / 800.0).to_le_bytes();
    let mut bytes = Vec::new();
    for block in 0..n_blocks {
        let at = block * kind.bytes();
        bytes.extend((0..kind.head() / 2).flat_map(|i| half(3 * at + i)));
        bytes.extend((kind.head()..kind.bytes()).map(|i| byte(at + i)));
    }
    bytes
}

/// What the blocks stand for, as the description of the format says.
fn numbers(kind: BlockKind, blocks: &[u8]) -> Vec<f64> {
    let mut numbers = Vec::new();
    for block in blocks.chunks(kind.bytes()) {
        let half = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
        let quants = &block[kind.head()..];
        for i in 0..BLOCK {
            let nibble = if i < 16 { quants[i % 16] & 15 } else { quants[i % 16] >> 4 };
            numbers.push(match kind {
                BlockKind::Q8_0 => half(0) * f64::from(quants[i] as i8),
                BlockKind::Q4_0 => half(0) * (f64::from(nibble) - 8.0),
                BlockKind::Q4_1 => half(0) * f64::from(nibble) + half(2),
            });
        }
    }
    numbers
}

fn quantised(groups: &[Vec<(BlockKind, [usize; 2])>]) -> Vec<(QuantisedMatrix, Vec<f64>)> {
    let mut arena = QuantisedArena::new(groups).expect("there is memory");
    let mut expected = Vec::new();
    for (index, (kind, dims)) in groups.iter().flatten().enumerate() {
        let blocks = blocks(*kind, *dims, index * 31);
        arena.write(index, &blocks);
        expected.push(numbers(*kind, &blocks));
    }
    arena.into_matrices().expect("the system lets it be read").into_iter().zip(expected).collect()
}

#[test]
fn numbers_are_those_of_the_blocks() {
    let groups = KINDS.map(|kind| vec![(kind, [32, 5]), (kind, [32, 1]), (kind, [160, 3])]);
    for (matrix, expected) in quantised(&groups) {
        let found = matrix.to_numbers();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            // A product and a sum in 32 bits.
            assert!((f64::from(*found) - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, not {expected}");
        }
    }
}

#[test]
fn products_are_those_of_the_numbers() {
    let device = Device::flex();
    for kind in KINDS {
        // Whole groups and parts of one, outputs that fill no vector, enough for two threads.
        for dims @ [d_input, d_output] in [[32, 1], [64, 3], [96, 7], [576, 130], [672, 515]] {
            let [(matrix, weight)] = <[_; 1]>::try_from(quantised(&[vec![(kind, dims)]])).expect("one");
            for count in [1, 2, 3, 4, 37] {
                let x = Tensor::<2>::random([count, d_input], Distribution::Normal(0.0, 1.0), &device);
                let x_numbers: Vec<f32> = x.clone().into_data().try_to_vec().expect("f32");
                let [y] = linears(x, [matrix.clone()]);
                let y: Vec<f32> = y.into_data().try_to_vec().expect("f32");
                assert_eq!(y.len(), count * d_output);
                for (index, y) in y.iter().enumerate() {
                    let x = &x_numbers[index / d_output * d_input..][..d_input];
                    let weight = &weight[index % d_output * d_input..][..d_input];
                    let products = x.iter().zip(weight).map(|(x, weight)| f64::from(*x) * weight);
                    let expected: f64 = products.clone().sum();
                    let error = (f64::from(*y) - expected).abs() / products.map(f64::abs).sum::<f64>();
                    assert!(error <= TOLERANCE, "{kind:?} {dims:?}, {count} rows: {y}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn matrices_of_one_input_are_one_product_or_several() {
    let device = Device::flex();
    let x = Tensor::<3>::random([1, 2, 64], Distribution::Normal(0.0, 1.0), &device);
    for kinds in [[BlockKind::Q8_0; 3], [BlockKind::Q8_0, BlockKind::Q4_1, BlockKind::Q8_0]] {
        let [q, k, v] = [(kinds[0], [64, 10]), (kinds[1], [64, 3]), (kinds[2], [64, 5])];
        let matrices: Vec<_> = quantised(&[vec![q, k, v]]).into_iter().map(|(matrix, _)| matrix).collect();
        let together = linears(x.clone(), <[_; 3]>::try_from(matrices.clone()).expect("three"));
        for (matrix, together) in matrices.into_iter().zip(together) {
            let [alone] = linears(x.clone(), [matrix]);
            together.into_data().assert_approx_eq::<f32>(&alone.into_data(), burn::tensor::Tolerance::absolute(1e-4));
        }
    }
}

#[test]
fn rows_are_looked_up() {
    let [(matrix, expected)] = <[_; 1]>::try_from(quantised(&[vec![(BlockKind::Q4_0, [64, 9])]])).expect("one");
    let found: Vec<f32> = rows(&matrix, &[8, 0, 3, 3], &Device::flex()).into_data().try_to_vec().expect("f32");
    let expected = [8, 0, 3, 3].into_iter().flat_map(|row| &expected[row * 64..][..64]);
    assert!(found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() <= 1e-6));
}
