//! AdamW ([Loshchilov and Hutter 2017](https://arxiv.org/abs/1711.05101)) with weight decay on matrices alone.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{
    AdamW, AdamWConfig, AdamWState, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::backend::host_device;
use crate::error::Faults;

/// Configuration of the optimizer.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Decay of the mean of gradients. Default: 0.9.
    pub beta_1: f64,
    /// Decay of the mean of squared gradients. Default: 0.95.
    pub beta_2: f64,
    /// Added to the root of the mean of squares. Default: 1e-8.
    pub eps: f64,
    /// Decay of matrices, times the learning rate. Default: 0.1.
    pub weight_decay: f64,
    /// Gradients whose norm over all parameters is larger are scaled down to it; 0 for no such limit. Default: 1.
    pub clip_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { beta_1: 0.9, beta_2: 0.95, eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 }
    }
}

impl OptimizerConfig {
    /// An optimizer for the parameters of `module`.
    ///
    /// Weights of projections, of the head's own matrix and of experts decay. Biases and norms do not. Neither do tables
    /// of embeddings, a tied head's included: a row has a gradient only where its token occurs and would shrink in every
    /// other step, the more the rarer the token.
    pub fn init<M: Module>(&self, module: &M) -> ModuleOptimizer {
        let of_decay = |decay: f64| DecoupledAdamW {
            inner: AdamWConfig::new()
                .with_beta_1(self.beta_1 as f32)
                .with_beta_2(self.beta_2 as f32)
                .with_epsilon(self.eps as f32)
                .with_weight_decay(decay as f32)
                .build(),
        };
        let matrices = ParamGroup::from_ids(decayed_parameters(module).into_iter().map(|(id, _)| id).collect());
        ModuleOptimizer::from(of_decay(0.0)).with_group(matrices, of_decay(self.weight_decay), None)
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        faults.probability(self.beta_1, "beta_1");
        faults.probability(self.beta_2, "beta_2");
        faults.positive_number(self.eps, "eps");
        for (value, key) in [(self.weight_decay, "weight_decay"), (self.clip_norm, "clip_norm")] {
            faults.require(value.is_finite() && value >= 0.0, key, || {
                format!("must be a number of at least 0, got {value}")
            });
        }
    }
}

/// The parameters that weight decay acts on, with their paths.
pub fn decayed_parameters<M: Module>(module: &M) -> Vec<(ParamId, String)> {
    struct Matrices {
        path: Vec<String>,
        found: Vec<(ParamId, String)>,
    }
    impl ModuleVisitor for Matrices {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.path.last().map_or("", String::as_str);
            let is_projection = D >= 2 && !["tokens", "positions", "types", "table", "bias"].contains(&name);
            if is_projection {
                self.found.push((param.id, self.path.join(".")));
            }
        }
    }
    let mut matrices = Matrices { path: Vec::new(), found: Vec::new() };
    module.visit(&mut matrices);
    matrices.found
}

/// Burn's AdamW, whose state is read back on the host.
#[derive(Clone)]
struct DecoupledAdamW {
    inner: AdamW,
}

impl Optimizer for DecoupledAdamW {
    type State<const D: usize> = HostState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<HostState<D>>,
    ) -> (Tensor<D>, Option<HostState<D>>) {
        let (tensor, state) = self.inner.step(rate, tensor, gradient, state.map(|state| state.0));
        (tensor, state.map(HostState))
    }

    fn to_device<const D: usize>(state: HostState<D>, device: &Device) -> HostState<D> {
        HostState(AdamW::to_device(state.0, device))
    }
}

/// The state of one parameter. Burn makes the tensors of a record on its default device, which with several backends
/// compiled in may be one that is not there; the first step moves them to where the parameter is.
#[derive(Clone)]
struct HostState<const D: usize>(AdamWState<D>);

impl<const D: usize> RecordState for HostState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.0.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, _default: &Device) -> Option<Self> {
        AdamWState::state_unflatten(prefix, source, &host_device()).map(Self)
    }
}
