//! Low-rank adapters ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)): a trained model is taught something new by
//! small matrices beside its weights, which alone are trained and saved.
//!
//! An adapted weight is `W + alpha / rank · A · B`, with `A` of shape `[d_in, rank]` and `B` of shape `[rank, d_out]`. `B`
//! starts at zero, so that a model computes the same after it was adapted as before.
//!
//! ```no_run
//! use burn::tensor::{Device, FloatDType};
//! use burnformer::adapters::{LoraConfig, merge_adapters};
//! use burnformer::pretrained::{Checkpoint, Existing, load_adapters, save_adapters};
//!
//! # fn main() -> Result<(), burnformer::Error> {
//! let checkpoint = Checkpoint::open("models/smollm2-135m")?;
//! let device = Device::default().autodiff();
//! let lora = LoraConfig::new(8, 16.0);
//! let model = lora.apply(checkpoint.load(&device, FloatDType::F32)?.0)?;
//! // Any training loop: only the adapters have gradients.
//! save_adapters(&model, &lora, "my-adapters", Existing::Keep)?;
//!
//! let (base, _) = checkpoint.load(&Device::default(), FloatDType::F32)?;
//! let model = merge_adapters(load_adapters(base, "my-adapters")?);
//! # Ok(())
//! # }
//! ```

mod dropout;

use std::fmt;
use std::str::FromStr;

use burn::module::{Lora, Module, ParamGroup};
use serde::{Deserialize, Serialize};

use self::dropout::LoraWithDropout;
use crate::error::{ConfigError, Error, Fault, Faults, advice};
use crate::model::Transformer;

/// A projection that can have an adapter, in every block of a model, cross-attention, experts and encoder included.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Projection {
    /// Queries of attention.
    Query,
    /// Keys of attention.
    Key,
    /// Values of attention.
    Value,
    /// Output of attention.
    Output,
    /// Gate of the feed-forward network.
    Gate,
    /// Inner projection of the feed-forward network.
    Up,
    /// Output of the feed-forward network.
    Down,
}

impl Projection {
    /// Every projection.
    pub const ALL: [Self; 7] = [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    /// The projection's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::Output => "output",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Whether the parameter `path` is the weight of this projection (`layers.0.attention.query.weight`).
    fn is_weight_of(self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('.').collect();
        let is_in_block = path.starts_with("layers.") || path.starts_with("encoder.layers.");
        is_in_block && parts.ends_with(&[self.name(), "weight"])
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Projection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|projection| projection.name() == text).ok_or_else(|| {
            let advice = advice(text, Self::ALL.map(Self::name));
            Error::Input(format!("there is no projection `{text}`; {advice}"))
        })
    }
}

/// Which adapters a model gets.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank of what is learned for each weight. Default: 8.
    #[serde(default = "default_rank")]
    pub rank: usize,
    /// What is learned is multiplied by `alpha / rank`. Default: 16.
    #[serde(default = "default_alpha")]
    pub alpha: f64,
    /// Share of its input features that an adapter does not see in a step of training; the others count for more. As an
    /// adapter acts on a weight, these are the same features for all tokens of the step. Default: 0.
    #[serde(default)]
    pub dropout: f64,
    /// Which projections have adapters. Default: queries and values.
    #[serde(default = "default_projections")]
    pub projections: Vec<Projection>,
}

fn default_rank() -> usize {
    8
}

fn default_alpha() -> f64 {
    16.0
}

fn default_projections() -> Vec<Projection> {
    vec![Projection::Query, Projection::Value]
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self::new(default_rank(), default_alpha())
    }
}

impl burn::config::Config for LoraConfig {}

impl LoraConfig {
    /// Adapters of rank `rank`, multiplied by `alpha / rank`, for queries and values.
    pub fn new(rank: usize, alpha: f64) -> Self {
        Self { rank, alpha, dropout: 0.0, projections: default_projections() }
    }

    setters! {
        with_dropout => dropout: f64,
        with_projections => projections: Vec<Projection>,
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// With every fault of it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.rank, "rank");
        faults.positive_number(self.alpha, "alpha");
        faults.probability(self.dropout, "dropout");
        faults.require(!self.projections.is_empty(), "projections", || "is empty; name at least one".into());
        let twice = (1..self.projections.len()).find(|at| self.projections[..*at].contains(&self.projections[*at]));
        if let Some(at) = twice {
            faults.add("projections", format!("names `{}` twice", self.projections[at]));
        }
    }

    /// Gives `model` adapters, and takes the gradients of all its other parameters away. What it computes stays the same
    /// until an adapter is trained. `A` is drawn from a normal distribution with the deviation `1 / rank`, by the device's
    /// own generator ([`Device::seed`](burn::tensor::Device::seed)).
    ///
    /// # Errors
    ///
    /// When the configuration is not valid, names a projection that the model does not have, or the model has adapters
    /// already.
    pub fn apply(&self, model: Transformer) -> Result<Transformer, Error> {
        self.validate()?;
        if has_adapters(&model) {
            return Err(Error::Input("the model has adapters already; merge them before it gets others".into()));
        }
        let parameters = model.parameters();
        let group = ParamGroup::from_paths(self.adapted(&parameters)?.into_iter().map(|(path, _)| path).collect());
        let lora = Lora::new(self.rank, self.alpha).set_param_group(group);
        Ok(match self.dropout {
            0.0 => model.apply_lora(lora),
            dropout => model.apply_reparameterization(LoraWithDropout::new(lora, dropout)),
        })
    }

    /// Of the parameters of a model, the weights that are to have adapters, and their shapes `[d_in, d_out]`.
    pub(crate) fn adapted<'a>(
        &self,
        parameters: &'a [(String, Vec<usize>)],
    ) -> Result<Vec<(&'a str, [usize; 2])>, ConfigError> {
        let mut faults = Faults::default();
        for projection in &self.projections {
            let is_there = parameters.iter().any(|(path, _)| projection.is_weight_of(path));
            faults.require(is_there, "projections", || format!("names `{projection}`, which the model does not have"));
        }
        faults.into_result()?;
        let adapted = parameters.iter().filter_map(|(path, shape)| {
            let is_adapted = self.projections.iter().any(|projection| projection.is_weight_of(path));
            let shape = <[usize; 2]>::try_from(shape.as_slice()).ok()?;
            is_adapted.then_some((path.as_str(), shape))
        });
        Ok(adapted.collect())
    }

    /// The factor on what is learned.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Reads a configuration from JSON text.
    ///
    /// # Errors
    ///
    /// When it is no such configuration, or with every fault of it.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let fault = |problem: String| ConfigError {
            origin: String::new(),
            faults: vec![Fault { key: String::new(), problem }],
        };
        let config: Self = serde_json::from_str(text)
            .map_err(|error| fault(format!("does not describe adapters of this program: {error}")))?;
        config.validate().map(|()| config)
    }
}

/// Adds what the adapters have learned to the weights, `W + alpha / rank · A · B`, and takes the adapters away. What the
/// model computes stays the same, to rounding; all its parameters can be trained again. A model without adapters stays as
/// it is.
pub fn merge_adapters(model: Transformer) -> Transformer {
    if !has_adapters(&model) {
        return model;
    }
    let records = model.device().is_autodiff();
    // As a model for inference, so that dropout leaves nothing out.
    let merged = model.valid().materialize().set_require_grad(true);
    if records { merged.train() } else { merged }
}

/// Whether a model has adapters.
pub fn has_adapters(model: &Transformer) -> bool {
    model.parameters().iter().any(|(path, _)| is_factor(path))
}

/// The end of the path of the factor `A`, behind that of its weight.
const FACTOR_A: &str = ".lora.a";
/// The end of the path of the factor `B`.
const FACTOR_B: &str = ".lora.b";

/// The paths of the factors `A` and `B` of the weight `path`.
pub(crate) fn factor_paths(path: &str) -> [String; 2] {
    [FACTOR_A, FACTOR_B].map(|factor| format!("{path}{factor}"))
}

/// Whether the parameter `path` belongs to an adapter.
pub(crate) fn is_factor(path: &str) -> bool {
    path.ends_with(FACTOR_A) || path.ends_with(FACTOR_B)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_are_those_of_blocks() {
        let of = |path: &str| Projection::ALL.into_iter().find(|projection| projection.is_weight_of(path));
        assert_eq!(of("layers.3.attention.query.weight"), Some(Projection::Query));
        assert_eq!(of("encoder.layers.0.feed_forward.down.weight"), Some(Projection::Down));
        assert_eq!(of("layers.0.mixture.experts.5.gate.weight"), Some(Projection::Gate));
        assert_eq!(of("layers.0.cross_attention.key.weight"), Some(Projection::Key));
        assert_eq!(of("layers.0.attention.query.bias"), None);
        assert_eq!(of("layers.0.attention.query_norm.weight"), None);
        assert_eq!(of("task.output.weight"), None);
    }

    #[test]
    fn every_fault_of_a_configuration_is_reported() {
        let faults = |text: &str| LoraConfig::from_json(text).unwrap_err().to_string();
        let all = faults(r#"{"rank": 0, "alpha": -1, "dropout": 1, "projections": ["key", "up", "key"]}"#);
        for part in ["`rank` must be at least 1", "`alpha` must be", "`dropout` must be", "`key` twice"] {
            assert!(all.contains(part), "{all}");
        }
        assert!(faults(r#"{"projections": []}"#).contains("`projections` is empty"));
        assert!(faults(r#"{"ranks": 4}"#).contains("unknown field `ranks`"));
        assert_eq!(LoraConfig::from_json("{}"), Ok(LoraConfig::default()));
    }
}
