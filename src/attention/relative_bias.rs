//! Bucketed relative positions ([Raffel et al. 2020](https://arxiv.org/abs/1910.10683)): each head learns what to add
//! to its scores for how far a key lies from the query, near distances one by one and far ones in ever wider buckets.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::error::Faults;

/// Configuration of bucketed relative positions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct RelativeBiasConfig {
    /// Number of buckets. Default: 32.
    #[serde(default = "default_buckets")]
    pub n_buckets: usize,
    /// Every distance from this one on falls into the last bucket. Default: 128.
    #[serde(default = "default_distance")]
    pub max_distance: usize,
}

fn default_buckets() -> usize {
    32
}

fn default_distance() -> usize {
    128
}

impl Default for RelativeBiasConfig {
    fn default() -> Self {
        Self { n_buckets: default_buckets(), max_distance: default_distance() }
    }
}

impl RelativeBiasConfig {
    pub(crate) fn check(&self, is_bidirectional: bool, faults: &mut Faults) {
        let (least, one_side) = if is_bidirectional { (4, self.n_buckets / 2) } else { (2, self.n_buckets) };
        faults.require(self.n_buckets >= least, "n_buckets", || {
            format!("must be at least {least}, got {}", self.n_buckets)
        });
        faults.positive_len(self.n_buckets, "n_buckets");
        faults.positive_len(self.max_distance, "max_distance");
        faults.require(self.max_distance > one_side / 2, "max_distance", || {
            format!("must be above {}, from where on buckets widen, got {}", one_side / 2, self.max_distance)
        });
    }

    /// The bucket of a key that lies `distance` tokens after its query (before it where negative).
    ///
    /// With `is_bidirectional` keys before and after the query have buckets of their own, half of all each; otherwise
    /// every key after the query falls into bucket 0.
    pub fn bucket(&self, distance: isize, is_bidirectional: bool) -> usize {
        let one_side = if is_bidirectional { self.n_buckets / 2 } else { self.n_buckets };
        let first = if is_bidirectional && distance > 0 { one_side } else { 0 };
        let away = if is_bidirectional { distance.unsigned_abs() } else { (-distance).max(0) as usize };
        let exact = one_side / 2;
        if away < exact {
            return first + away;
        }
        // In 32 bits, as in the published code: a logarithm that should be whole may come out just below.
        let whole = (self.max_distance as f64 / exact as f64).ln() as f32;
        let share = (away as f32 / exact as f32).ln() / whole;
        let widened = exact + (share * (one_side - exact) as f32) as usize;
        first + widened.min(one_side - 1)
    }

    pub(crate) fn init(self, n_heads: usize, is_bidirectional: bool, device: &Device) -> RelativeBias {
        RelativeBias {
            table: Initializer::Normal { mean: 0.0, std: 0.02 }.init([self.n_buckets, n_heads], device),
            config: self,
            is_bidirectional,
        }
    }
}

/// The biases of all buckets, shared by the layers of a model.
#[derive(Module, Debug)]
pub struct RelativeBias {
    /// What each head adds for a bucket, `[n_buckets, n_heads]`.
    pub table: Param<Tensor<2>>,
    #[module(skip)]
    config: RelativeBiasConfig,
    is_bidirectional: bool,
}

impl RelativeBias {
    /// The bias on scores. Positions are one row per sequence, or one row for all.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, n_heads, query_len, key_len]`
    ///
    /// # Panics
    ///
    /// When there are unequally many rows, or rows of unequal length.
    pub fn forward(&self, query_positions: &[Vec<usize>], key_positions: &[Vec<usize>]) -> Tensor<4> {
        let rows = query_positions.len().max(key_positions.len());
        let lengths = [query_positions, key_positions].map(|of| of.first().map_or(0, Vec::len));
        let [query_len, key_len] = lengths;
        let [_, n_heads] = self.table.shape().dims();
        let row = |of: &[Vec<usize>], row: usize| of[row % of.len()].clone();
        let mut buckets = Vec::with_capacity(rows * query_len * key_len);
        for index in 0..rows {
            let keys = row(key_positions, index);
            for query in row(query_positions, index) {
                let distance = |key: &usize| *key as isize - query as isize;
                buckets.extend(keys.iter().map(|key| self.config.bucket(distance(key), self.is_bidirectional) as i64));
            }
        }
        let table = self.table.val();
        let count = rows * query_len * key_len;
        let buckets = Tensor::<1, Int>::from_data(TensorData::new(buckets, [count]), &table.device());
        table.select(0, buckets).reshape([rows, query_len, key_len, n_heads]).permute([0, 3, 1, 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of transformers 5.24 for 32 buckets and the distance 128.
    #[test]
    fn buckets_are_those_of_t5() {
        let distances = [-200, -128, -64, -20, -16, -12, -9, -8, -7, -1, 0, 1, 7, 8, 9, 12, 16, 20, 64, 128, 200];
        let config = RelativeBiasConfig::default();
        let both = [15, 15, 14, 10, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 24, 25, 26, 26, 30, 31, 31];
        assert_eq!(distances.map(|distance| config.bucket(distance, true)), both);
        let causal = [31, 31, 26, 17, 16, 12, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(distances.map(|distance| config.bucket(distance, false)), causal);
    }
}
