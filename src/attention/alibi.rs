//! Attention with linear biases ([Press et al. 2021](https://arxiv.org/abs/2108.12409)): each head adds a slope times
//! the position of the key to its scores.

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use serde::{Deserialize, Serialize};

/// Configuration of linear biases.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct AlibiConfig {
    /// Whether the bias is multiplied by the score scale, as the scores are (Falcon). Default: no.
    #[serde(default)]
    pub scaled: bool,
    /// Whether slopes and biases are rounded to bfloat16, as Falcon's published code does. Default: no.
    #[serde(default)]
    pub rounded: bool,
}

/// The slopes for `n_heads` heads; any number of heads is allowed.
///
/// For the largest power of two `p ≤ n_heads` the first `p` slopes are `2^(−8(j+1)/p)`; the others are the odd entries
/// of the series for `2p`.
pub fn alibi_slopes(n_heads: usize) -> Vec<f64> {
    let Some(exponent) = n_heads.checked_ilog2() else { return Vec::new() };
    let p = 1_usize << exponent;
    let first = (0..p).map(|j| 2f64.powf(-8.0 * (j + 1) as f64 / p as f64));
    let rest = (0..n_heads - p).map(|j| 2f64.powf(-4.0 * (2 * j + 1) as f64 / p as f64));
    first.chain(rest).collect()
}

impl AlibiConfig {
    /// The bias on scores, up to a constant per query, which the softmax does not see.
    ///
    /// `key_positions` holds the absolute position of each key, one row per sequence (or one row for all); `scale` is
    /// the factor on scores.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, n_heads, 1, key_len]`
    pub fn bias(&self, n_heads: usize, key_positions: &[Vec<usize>], scale: f64, device: &Device) -> Tensor<4> {
        let round = |x: f64| if self.rounded { bf16::from_f64(x).to_f64() } else { x };
        let factor = if self.scaled { scale } else { 1.0 };
        let slopes: Vec<f64> = alibi_slopes(n_heads).into_iter().map(round).collect();
        let key_len = key_positions.first().map_or(0, Vec::len);
        let values: Vec<f32> = key_positions
            .iter()
            .flat_map(|row| slopes.iter().flat_map(move |slope| row.iter().map(move |j| slope * *j as f64)))
            .map(|bias| (round(bias) * factor) as f32)
            .collect();
        let data = TensorData::new(values, [key_positions.len(), n_heads, 1, key_len]);
        Tensor::from_data(data, (device, DType::F32))
    }
}
