//! Normalisation over the last axis: LayerNorm and RMSNorm in the forms that published models use.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{DType, Device, Tensor, assert_shape, module::layer_norm};
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, Faults};
use crate::kernel::{self, Normalization};
use crate::precision::{narrow, widen};

/// Which normalisation, and which parameters it has.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// LayerNorm with weight and bias ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
    #[default]
    Layer,
    /// LayerNorm with a weight and no bias (MPT, Cohere).
    LayerNoBias,
    /// LayerNorm without any parameter (OLMo 1).
    LayerNoAffine,
    /// LayerNorm that multiplies by `1 + weight`, with a bias (Nemotron).
    LayerPlusOne,
    /// RMSNorm ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)).
    Rms,
    /// RMSNorm that multiplies by `1 + weight` (Gemma).
    RmsPlusOne,
}

impl NormKind {
    /// Whether the mean is subtracted.
    pub fn is_centered(self) -> bool {
        !matches!(self, Self::Rms | Self::RmsPlusOne)
    }

    /// Whether there is a weight.
    pub fn has_weight(self) -> bool {
        self != Self::LayerNoAffine
    }

    /// Whether there is a bias.
    pub fn has_bias(self) -> bool {
        matches!(self, Self::Layer | Self::LayerPlusOne)
    }

    /// Whether the stored weight is an offset from one.
    pub fn is_plus_one(self) -> bool {
        matches!(self, Self::LayerPlusOne | Self::RmsPlusOne)
    }
}

/// Configuration of a [`Norm`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NormConfig {
    /// Which normalisation. Default: `layer`.
    #[serde(default)]
    pub kind: NormKind,
    /// Added to the variance (or mean square), inside the root. Default: 1e-5.
    #[serde(default = "default_eps")]
    pub eps: f64,
}

fn default_eps() -> f64 {
    1e-5
}

impl Default for NormConfig {
    fn default() -> Self {
        Self { kind: NormKind::default(), eps: default_eps() }
    }
}

impl burn::config::Config for NormConfig {}

impl NormConfig {
    /// A norm of `kind` with the default `eps`.
    pub fn new(kind: NormKind) -> Self {
        Self { kind, ..Self::default() }
    }

    setters! { with_eps => eps: f64 }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// When `eps` is negative or not a number.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.require(self.eps.is_finite() && self.eps >= 0.0, "eps", || {
            format!("must be a number that is not negative, got {}", self.eps)
        });
    }

    /// How many parameters a norm over `width` features has.
    pub fn n_parameters(&self, width: usize) -> u64 {
        let per_feature = usize::from(self.kind.has_weight()) + usize::from(self.kind.has_bias());
        (per_feature * width) as u64
    }

    /// Builds the norm over `width` features.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    pub fn init(&self, width: usize, device: &Device) -> Norm {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let start = if self.kind.is_plus_one() { Initializer::Zeros } else { Initializer::Ones };
        Norm {
            weight: self.kind.has_weight().then(|| start.init([width], device)),
            bias: self.kind.has_bias().then(|| Initializer::Zeros.init([width], device)),
            kind: self.kind,
            eps: self.eps,
        }
    }
}

/// Normalises over the last axis, in 32 bits or more whatever the type of the input.
///
/// LayerNorm is `(x − mean) / √(var + eps) · weight + bias` with the biased variance, taken after the mean was
/// subtracted; RMSNorm is `x / √(mean(x²) + eps) · weight`.
#[derive(Module, Debug)]
pub struct Norm {
    /// The weight, `[width]`; absent where the kind has none.
    pub weight: Option<Param<Tensor<1>>>,
    /// The bias, `[width]`; absent where the kind has none.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    kind: NormKind,
    eps: f64,
}

impl Norm {
    /// Normalises the last axis.
    ///
    /// # Shapes
    ///
    /// - x: `[.., width]`
    /// - output: `[.., width]`
    ///
    /// # Panics
    ///
    /// When the last axis of `x` is not `width`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if let Some(weight) = &self.weight {
            let [width] = weight.shape().dims();
            assert_shape!(x, [.., width]);
        }
        if x.shape().num_elements() == 0 {
            return x;
        }
        let dtype = x.dtype();
        let x = widen(x);
        let y = match self.by_kernel(&x) {
            Some(y) => y,
            None => self.composed(x),
        };
        narrow(y, dtype)
    }

    fn by_kernel<const D: usize>(&self, x: &Tensor<D>) -> Option<Tensor<D>> {
        let [weight, bias] = [&self.weight, &self.bias].map(|param| param.as_ref().map(|param| widen(param.val())));
        let normalization = Normalization {
            is_centered: self.kind.is_centered(),
            eps: self.eps,
            weight_offset: if self.kind.is_plus_one() { 1.0 } else { 0.0 },
        };
        kernel::norm(x, weight.as_ref(), bias.as_ref(), normalization)
    }

    /// The norm from plain tensor operations.
    pub(crate) fn composed<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.scale(x.dtype());
        match (self.kind.is_centered(), weight) {
            // One fused pass where the backend has it; D13: all of them subtract the mean first and keep eps inside
            // the root.
            (true, Some(weight)) => {
                let bias = self.bias.as_ref().map(|bias| widen(bias.val()));
                layer_norm(x, weight, bias, self.eps)
            }
            (true, None) => self.normalize(x),
            (false, weight) => {
                let normal = self.normalize(x);
                match weight {
                    Some(weight) => normal * weight.unsqueeze(),
                    None => normal,
                }
            }
        }
    }

    /// Normalises each head on its own; the weight holds one row of `d_head` numbers per head.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, n_heads, seq, d_head]`, the weight being `[n_heads · d_head]`
    /// - output: as x
    ///
    /// # Panics
    ///
    /// When the weight does not hold `n_heads · d_head` numbers.
    pub fn forward_per_head(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, n_heads, _, d_head] = x.dims();
        let dtype = x.dtype();
        let mut y = self.normalize(widen(x));
        if let Some(weight) = self.scale(y.dtype()) {
            assert_shape!(weight, [n_heads * d_head]);
            y = y * weight.reshape([1, n_heads, 1, d_head]);
        }
        if let Some(bias) = &self.bias {
            y = y + widen(bias.val()).reshape([1, n_heads, 1, d_head]);
        }
        narrow(y, dtype)
    }

    /// The part without parameters.
    fn normalize<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = if self.kind.is_centered() {
            let mean = x.clone().mean_dim(D - 1);
            x - mean
        } else {
            x
        };
        let mean_square = x.clone().square().mean_dim(D - 1);
        x / mean_square.add_scalar(self.eps).sqrt()
    }

    /// The factor of each feature.
    fn scale(&self, dtype: DType) -> Option<Tensor<1>> {
        let weight = widen(self.weight.as_ref()?.val());
        debug_assert_eq!(weight.dtype(), dtype, "norm and input have different types");
        Some(if self.kind.is_plus_one() { weight.add_scalar(1.0) } else { weight })
    }
}
