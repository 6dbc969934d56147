//! Numbers that are the same on every machine, and how far two lists of numbers lie apart.

/// [SplitMix64](https://prng.di.unimi.it/splitmix64.c): a seeded generator of a few lines that no dependency can change.
struct SplitMix64(u64);

impl SplitMix64 {
    /// A stream of its own for each name: the seed is the name's FNV-1a hash.
    fn named(name: &str) -> Self {
        Self(
            name.bytes()
                .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// `len` numbers with the standard deviation `std` and mean 0, uniformly spread, the same for the same name.
///
/// Each is a 32-bit number, so that models in 32 and in 64 bits start from the same values; only products are taken on
/// the way, so that no mathematical library has a say in them.
pub(super) fn draw(name: &str, len: usize, std: f64) -> Vec<f64> {
    let mut stream = SplitMix64::named(name);
    let half_width = std * 1.732_050_807_568_877_2;
    let unit = |bits: u64| (bits >> 40) as f64 / (1_u64 << 23) as f64 - 1.0;
    (0..len).map(|_| f64::from((unit(stream.next()) * half_width) as f32)).collect()
}

/// `len` whole numbers from 0 to `bound − 1`, the same for the same name.
pub(super) fn draw_below(name: &str, len: usize, bound: u64) -> Vec<i64> {
    let mut stream = SplitMix64::named(name);
    (0..len).map(|_| (stream.next() % bound) as i64).collect()
}

/// How far numbers lie from those they should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The largest absolute difference; infinite where the lengths differ, not a number where one of the numbers is none.
    pub max_abs: f64,
    /// The Euclidean norm of the difference over that of the expected numbers.
    pub rel_l2: f64,
    /// The largest expected absolute value.
    pub largest: f64,
}

impl Difference {
    /// Compares `found` with `expected`.
    pub fn between(expected: &[f64], found: &[f64]) -> Self {
        let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        if expected.len() != found.len() {
            return Self { max_abs: f64::INFINITY, rel_l2: f64::INFINITY, largest };
        }
        let (mut max_abs, mut squares, mut expected_squares) = (0.0_f64, 0.0, 0.0);
        for (a, b) in found.iter().zip(expected) {
            let difference = (a - b).abs();
            // `f64::max` would drop what is not a number.
            max_abs = if difference.is_nan() || max_abs.is_nan() { f64::NAN } else { max_abs.max(difference) };
            squares += difference * difference;
            expected_squares += b * b;
        }
        let rel_l2 = if squares == 0.0 { 0.0 } else { (squares / expected_squares).sqrt() };
        Self { max_abs, rel_l2, largest }
    }

    /// Whether no number is off by more than `tolerance`, relative to the largest expected one where that is above 1.
    /// What is not a number is never within.
    pub fn is_within(&self, tolerance: f64) -> bool {
        self.max_abs <= tolerance * self.largest.max(1.0)
    }
}
