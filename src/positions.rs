//! How a model knows the order of its tokens.

use serde::{Deserialize, Serialize};

use crate::attention::{AlibiConfig, RelativeBiasConfig, RotaryConfig};
use crate::error::Faults;

/// Where positions enter a model.
#[expect(clippy::large_enum_variant, reason = "there is one per model")]
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Positions {
    /// Nowhere.
    #[default]
    None,
    /// A learned vector per position is added to the embeddings.
    Learned(LearnedPositions),
    /// Sines and cosines are added to the embeddings (Vaswani et al. 2017).
    Sinusoidal,
    /// Queries and keys are turned.
    Rotary(RotaryPositions),
    /// A linear bias is added to scores.
    Alibi(AlibiConfig),
    /// A learned bias per distance is added to scores (T5).
    Relative(RelativeBiasConfig),
}

/// Learned positions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct LearnedPositions {
    /// Row of the table that holds position 0 (2 in OPT and RoBERTa). The table has `max_seq_len + offset` rows.
    /// Default: 0.
    #[serde(default)]
    pub offset: usize,
    /// Token id that takes the row before the first position and advances nothing (RoBERTa's padding). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding_id: Option<u32>,
}

/// Rotary positions of a model.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RotaryPositions {
    /// The rotation of layers whose pattern says `global`, which is the default.
    #[serde(default)]
    pub global: RotaryConfig,
    /// The rotation of layers whose pattern says `local`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<RotaryConfig>,
}

impl Positions {
    /// Rotary positions with one rotation for all layers.
    pub fn rotary(global: RotaryConfig) -> Self {
        Self::Rotary(RotaryPositions { global, local: None })
    }

    /// `is_bidirectional`: whether queries see the keys after them.
    pub(crate) fn check(&self, d_head: usize, is_bidirectional: bool, faults: &mut Faults) {
        if let Self::Learned(LearnedPositions { offset: offset @ 1.., .. }) = self {
            faults.positive_len(*offset, "learned.offset");
        }
        match self {
            Self::Rotary(RotaryPositions { global, local }) => {
                faults.section("rotary.global", |faults| global.check(d_head, faults));
                if let Some(local) = local {
                    faults.section("rotary.local", |faults| local.check(d_head, faults));
                }
            }
            Self::Learned(LearnedPositions { offset, padding_id: Some(_) }) => {
                faults.require(*offset > 0, "learned.offset", || "must be at least 1 where padding_id is given".into());
            }
            Self::Relative(relative) => {
                faults.section("relative", |faults| relative.check(is_bidirectional, faults));
            }
            Self::None | Self::Learned(_) | Self::Sinusoidal | Self::Alibi(_) => {}
        }
    }
}

/// The sinusoidal vector of one position: `sin(p / 10000^(2i/width))` in even columns and the cosine of the same angle
/// in odd ones; an odd width ends with a sine.
///
/// The vector of `p + k` is the one of `p` with each pair turned by an angle that depends on `k` alone.
pub fn sinusoidal(position: usize, width: usize) -> Vec<f64> {
    (0..width)
        .map(|column| {
            let frequency = 10_000f64.powf(-((column - column % 2) as f64) / width as f64);
            let angle = position as f64 * frequency;
            if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }
        })
        .collect()
}
