//! Rotary position embedding ([Su et al. 2021](https://arxiv.org/abs/2104.09864)) in the layouts and with the length
//! scalings that published models use.

use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, Faults};
use crate::kernel;
use crate::precision::{narrow, widen};

/// Which two features of a head turn together.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RotaryStyle {
    /// Feature `i` with feature `i + R/2` (Llama and most others as published on the Hugging Face hub).
    #[default]
    Half,
    /// Feature `2i` with feature `2i + 1` (the paper; Cohere, GPT-J).
    Interleaved,
}

/// How frequencies are changed for contexts longer than those of training.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RotaryScaling {
    /// No change.
    #[default]
    None,
    /// Every frequency divided by `factor` ([Chen et al. 2023](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// The stretch.
        factor: f64,
    },
    /// A larger base once the sequence is longer than `original_max_seq_len` (dynamic NTK).
    Dynamic {
        /// The stretch.
        factor: f64,
        /// Positions up to which nothing changes.
        original_max_seq_len: usize,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The stretch of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_seq_len / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_seq_len / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// The context of training.
        original_max_seq_len: usize,
    },
    /// YaRN ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// The stretch.
        factor: f64,
        /// The context of training.
        original_max_seq_len: usize,
        /// Turns per training context above which a frequency is kept. Default: 32.
        #[serde(default = "default_beta_fast")]
        beta_fast: f64,
        /// Turns per training context below which a frequency is divided. Default: 1.
        #[serde(default = "default_beta_slow")]
        beta_slow: f64,
        /// Factor on cosine and sine; derived from `factor` when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Enters the derived factor, together with `mscale_all_dim`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale: Option<f64>,
        /// Enters the derived factor, together with `mscale`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale_all_dim: Option<f64>,
        /// Whether the ramp starts and ends at whole features. Default: true.
        #[serde(default = "default_true")]
        truncate: bool,
    },
    /// LongRoPE ([Ding et al. 2024](https://arxiv.org/abs/2402.13753)): one divisor per frequency.
    Longrope {
        /// Divisors for sequences up to `original_max_seq_len`; one per frequency.
        short_factor: Vec<f64>,
        /// Divisors for longer sequences; one per frequency.
        long_factor: Vec<f64>,
        /// The context of training.
        original_max_seq_len: usize,
        /// The longest context, from which the attention factor is derived when neither it nor `factor` is given.
        max_seq_len: usize,
        /// The stretch from which the attention factor is derived.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        factor: Option<f64>,
        /// Factor on cosine and sine; derived when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
}

fn default_beta_fast() -> f64 {
    32.0
}

fn default_beta_slow() -> f64 {
    1.0
}

fn default_true() -> bool {
    true
}

fn default_theta() -> f64 {
    10_000.0
}

fn default_fraction() -> f64 {
    1.0
}

/// Configuration of rotary positions.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RotaryConfig {
    /// The base of the frequencies. Default: 10,000.
    #[serde(default = "default_theta")]
    pub theta: f64,
    /// The share of each head that turns, from its first feature on; the rest passes through. Default: 1.
    #[serde(default = "default_fraction")]
    pub fraction: f64,
    /// Which features turn together. Default: `half`.
    #[serde(default)]
    pub style: RotaryStyle,
    /// Length scaling. Default: none.
    #[serde(default)]
    pub scaling: RotaryScaling,
}

impl Default for RotaryConfig {
    fn default() -> Self {
        Self {
            theta: default_theta(),
            fraction: default_fraction(),
            style: RotaryStyle::default(),
            scaling: RotaryScaling::None,
        }
    }
}

impl burn::config::Config for RotaryConfig {}

/// The frequencies of a [`RotaryConfig`] for sequences of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    /// Radians per position, one per pair of features.
    pub inverse: Vec<f64>,
    /// Factor on cosine and sine.
    pub attention_factor: f64,
}

impl RotaryConfig {
    /// Rotary positions with base `theta`.
    pub fn new(theta: f64) -> Self {
        Self { theta, ..Self::default() }
    }

    setters! {
        with_fraction => fraction: f64,
        with_style => style: RotaryStyle,
        with_scaling => scaling: RotaryScaling,
    }

    /// How many features of a head of `d_head` turn.
    pub fn rotary_size(&self, d_head: usize) -> usize {
        (d_head as f64 * self.fraction) as usize
    }

    /// Checks the configuration for heads of `d_head` features.
    ///
    /// # Errors
    ///
    /// When the base, the fraction or a scaling value is out of its range, or an odd number of features would turn.
    pub fn validate(&self, d_head: usize) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(d_head, &mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, d_head: usize, faults: &mut Faults) {
        faults.positive_number(self.theta, "theta");
        faults.require(self.fraction > 0.0 && self.fraction <= 1.0, "fraction", || {
            format!("must be above 0 and at most 1, got {}", self.fraction)
        });
        let size = self.rotary_size(d_head);
        faults.require(size > 0 && size.is_multiple_of(2), "fraction", || {
            format!("turns {size} of the {d_head} features of a head; an even number of at least 2 must turn")
        });
        faults.section("scaling", |faults| self.check_scaling(size / 2, faults));
    }

    fn check_scaling(&self, pairs: usize, faults: &mut Faults) {
        match &self.scaling {
            RotaryScaling::None => {}
            RotaryScaling::Linear { factor } => faults.positive_number(*factor, "linear.factor"),
            RotaryScaling::Dynamic { factor, original_max_seq_len } => {
                faults.positive_number(*factor, "dynamic.factor");
                faults.positive_len(*original_max_seq_len, "dynamic.original_max_seq_len");
                faults.require(pairs > 1, "dynamic", || "needs at least 4 features that turn".into());
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
                faults.positive_number(*factor, "llama3.factor");
                faults.positive_number(*low_freq_factor, "llama3.low_freq_factor");
                faults.require(high_freq_factor > low_freq_factor, "llama3.high_freq_factor", || {
                    format!("must be above low_freq_factor {low_freq_factor}, got {high_freq_factor}")
                });
                faults.positive_len(*original_max_seq_len, "llama3.original_max_seq_len");
            }
            RotaryScaling::Yarn { factor, original_max_seq_len, beta_fast, beta_slow, .. } => {
                faults.positive_number(*factor, "yarn.factor");
                faults.positive_len(*original_max_seq_len, "yarn.original_max_seq_len");
                faults.positive_number(*beta_fast, "yarn.beta_fast");
                faults.positive_number(*beta_slow, "yarn.beta_slow");
            }
            RotaryScaling::Longrope { short_factor, long_factor, original_max_seq_len, max_seq_len, .. } => {
                for (key, list) in [("longrope.short_factor", short_factor), ("longrope.long_factor", long_factor)] {
                    faults.require(list.len() == pairs, key, || {
                        format!("must hold {pairs} numbers, one per pair of features that turn, got {}", list.len())
                    });
                    faults.require(list.iter().all(|f| f.is_finite() && *f > 0.0), key, || {
                        "must hold numbers above 0".into()
                    });
                }
                faults.require(*original_max_seq_len > 1, "longrope.original_max_seq_len", || {
                    format!("must be at least 2, got {original_max_seq_len}")
                });
                faults.positive_len(*max_seq_len, "longrope.max_seq_len");
            }
        }
    }

    /// The frequencies for heads of `d_head` features in a call whose longest sequence has `len` positions, those of
    /// the cache included.
    pub fn frequencies(&self, d_head: usize, len: usize) -> RotaryFrequencies {
        let size = self.rotary_size(d_head);
        let plain =
            |theta: f64| -> Vec<f64> { (0..size / 2).map(|i| theta.powf(-2.0 * i as f64 / size as f64)).collect() };
        let base = plain(self.theta);
        let mut attention_factor = 1.0;
        let inverse = match &self.scaling {
            RotaryScaling::None => base,
            RotaryScaling::Linear { factor } => base.iter().map(|f| f / factor).collect(),
            RotaryScaling::Dynamic { factor, original_max_seq_len } => {
                let original = *original_max_seq_len as f64;
                if len <= *original_max_seq_len {
                    base
                } else {
                    let stretch = factor * len as f64 / original - (factor - 1.0);
                    plain(self.theta * stretch.powf(size as f64 / (size as f64 - 2.0)))
                }
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
                let original = *original_max_seq_len as f64;
                let (low, high) = (*low_freq_factor, *high_freq_factor);
                base.iter()
                    .map(|f| {
                        let wavelength = std::f64::consts::TAU / f;
                        // Position on the ramp: 0 at low frequencies, 1 at high ones.
                        let kept = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                        (1.0 - kept) * f / factor + kept * f
                    })
                    .collect()
            }
            RotaryScaling::Yarn {
                factor,
                original_max_seq_len,
                beta_fast,
                beta_slow,
                attention_factor: given,
                mscale,
                mscale_all_dim,
                truncate,
            } => {
                let magnitude = |m: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
                attention_factor = match (given, mscale, mscale_all_dim) {
                    (Some(given), _, _) => *given,
                    (None, Some(m), Some(all)) if *m != 0.0 && *all != 0.0 => magnitude(*m) / magnitude(*all),
                    _ => magnitude(1.0),
                };
                // The feature whose wave turns `turns` times within the training context.
                let feature = |turns: f64| {
                    let original = *original_max_seq_len as f64;
                    size as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (feature(*beta_fast), feature(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(size as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                base.iter()
                    .enumerate()
                    .map(|(i, f)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        f / factor * divided + f * (1.0 - divided)
                    })
                    .collect()
            }
            RotaryScaling::Longrope {
                short_factor,
                long_factor,
                original_max_seq_len,
                max_seq_len,
                factor,
                attention_factor: given,
            } => {
                let original = *original_max_seq_len as f64;
                let stretch = factor.unwrap_or(*max_seq_len as f64 / original);
                attention_factor =
                    given.unwrap_or(if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() });
                let divisors = if len > *original_max_seq_len { long_factor } else { short_factor };
                base.iter().zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
        };
        RotaryFrequencies { inverse, attention_factor }
    }

    /// Cosines and sines for the given absolute `positions`, one row per sequence of the batch (or a single row for
    /// all of them).
    ///
    /// Angles are products of 32-bit numbers, as in the reference implementations, whatever the type of the model.
    ///
    /// # Panics
    ///
    /// When the rows of `positions` have unequal lengths.
    pub fn angles(&self, d_head: usize, positions: &[Vec<usize>], device: &Device) -> RotaryAngles {
        let rows = positions.len();
        let seq = positions.first().map_or(0, Vec::len);
        assert!(positions.iter().all(|row| row.len() == seq), "rows of positions have unequal lengths");
        let len = positions.iter().flatten().max().map_or(0, |last| last + 1);
        let RotaryFrequencies { inverse, attention_factor } = self.frequencies(d_head, len);
        let inverse: Vec<f32> = inverse.iter().map(|f| *f as f32).collect();
        let angles = positions.iter().flatten().flat_map(|p| inverse.iter().map(move |f| (*p as f32 * f) as f64));
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| ((angle.cos() * attention_factor) as f32, (angle.sin() * attention_factor) as f32))
            .unzip();
        let upload = |values: Vec<f32>| {
            let data = TensorData::new(values, [rows, 1, seq, inverse.len()]);
            Tensor::<4>::from_data(data, (device, DType::F32))
        };
        RotaryAngles { cos: upload(cos), sin: upload(sin), style: self.style }
    }
}

/// Cosines and sines of one call, shared by all layers that turn alike.
#[derive(Clone, Debug)]
pub struct RotaryAngles {
    cos: Tensor<4>,
    sin: Tensor<4>,
    style: RotaryStyle,
}

impl RotaryAngles {
    /// Turns queries or keys.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, heads, seq, d_head]`
    /// - output: as x
    ///
    /// # Panics
    ///
    /// When `seq` is not the number of positions the angles were made for.
    pub fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads, seq, d_head] = x.dims();
        let [_, _, positions, pairs] = self.cos.dims();
        assert_eq!(seq, positions, "rotary angles are for {positions} positions, got {seq}");
        let dtype = x.dtype();
        let size = 2 * pairs;
        let x = widen(x);
        let (cos, sin) = (narrow(self.cos.clone(), x.dtype()), narrow(self.sin.clone(), x.dtype()));
        if let Some(y) = kernel::rotation(&x, &cos, &sin, self.style == RotaryStyle::Interleaved) {
            return narrow(y, dtype);
        }
        let rest = (size < d_head).then(|| x.clone().slice_dim(3, size..d_head));
        let turning = if size < d_head { x.slice_dim(3, 0..size) } else { x };
        let turned = match self.style {
            RotaryStyle::Half => {
                let u = turning.clone().slice_dim(3, 0..pairs);
                let v = turning.slice_dim(3, pairs..size);
                let (u, v) = rotate(u, v, cos, sin);
                Tensor::cat(vec![u, v], 3)
            }
            RotaryStyle::Interleaved => {
                let in_pairs = turning.reshape([batch, heads, seq, pairs, 2]);
                let part = |i: usize| in_pairs.clone().slice_dim(4, i..i + 1).reshape([batch, heads, seq, pairs]);
                let (u, v) = rotate(part(0), part(1), cos, sin);
                Tensor::stack::<5>(vec![u, v], 4).reshape([batch, heads, seq, size])
            }
        };
        let y = match rest {
            Some(rest) => Tensor::cat(vec![turned, rest], 3),
            None => turned,
        };
        narrow(y, dtype)
    }
}

/// The pairs `(u, v)`, turned.
fn rotate(u: Tensor<4>, v: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let turned = u.clone() * cos.clone() - v.clone() * sin.clone();
    (turned, v * cos + u * sin)
}
