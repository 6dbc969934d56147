//! Random numbers on the host, the same on every backend and machine.

use std::f64::consts::TAU;

/// The generator `SplitMix64` ([Steele et al. 2014](https://doi.org/10.1145/2660193.2660195)).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number in `0..end`.
    pub fn below(&mut self, end: usize) -> i64 {
        (self.uniform() * end as f64) as i64
    }

    /// A normally distributed number, by the method of Box and Muller.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        (radius * (TAU * self.uniform()).cos()) as f32
    }
}
