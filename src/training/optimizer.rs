//! AdamW ([Loshchilov and Hutter 2017](https://arxiv.org/abs/1711.05101)) with weight decay on matrices alone.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{
    AdamW, AdamWConfig, AdamWState, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::backend::host_device;
use crate::error::Faults;
#[cfg(feature = "flex")]
use crate::kernel::{self, AdamWStep};

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
        let of_decay = |decay| DecoupledAdamW { config: *self, weight_decay: decay };
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

/// Burn's AdamW, whose state is read back on the host, and whose steps a kernel takes where there is one.
#[derive(Clone)]
struct DecoupledAdamW {
    config: OptimizerConfig,
    weight_decay: f64,
}

impl DecoupledAdamW {
    fn composed(&self) -> AdamW {
        let OptimizerConfig { beta_1, beta_2, eps, .. } = self.config;
        AdamWConfig::new()
            .with_beta_1(beta_1 as f32)
            .with_beta_2(beta_2 as f32)
            .with_epsilon(eps as f32)
            .with_weight_decay(self.weight_decay as f32)
            .build()
    }

    /// What step number `time`, from 1 on, does.
    #[cfg(feature = "flex")]
    fn kernel_step(&self, rate: LearningRate, time: usize) -> AdamWStep {
        let OptimizerConfig { beta_1, beta_2, eps, .. } = self.config;
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(time).unwrap_or(i32::MAX));
        let root = correction(beta_2).sqrt();
        AdamWStep {
            beta_1: beta_1 as f32,
            beta_2: beta_2 as f32,
            rate: (rate * root / correction(beta_1)) as f32,
            eps: (eps * root) as f32,
            keep: (1.0 - rate * self.weight_decay) as f32,
        }
    }
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
        let state = state.map(|state| state.0);
        // Burn makes the state in the first step.
        #[cfg(feature = "flex")]
        let state = match state {
            Some(mut state) if kernel::has_adamw(&tensor) => {
                state.momentum.time += 1;
                let step = self.kernel_step(rate, state.momentum.time);
                let [moment_1, moment_2] = [state.momentum.moment_1, state.momentum.moment_2];
                let [tensor, moment_1, moment_2] = kernel::adamw([tensor, moment_1, moment_2, gradient], step);
                (state.momentum.moment_1, state.momentum.moment_2) = (moment_1, moment_2);
                return (tensor, Some(HostState(state)));
            }
            state => state,
        };
        let (tensor, state) = self.composed().step(rate, tensor, gradient, state);
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

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Distribution, Tensor, Tolerance};

    use super::*;

    /// Parameters and steps are below 4 and have two roundings in each of five steps.
    const TOLERANCE: f32 = 5e-6;

    #[test]
    fn the_kernel_takes_the_steps_of_its_composed_twin() {
        let device = Device::flex();
        let random = || Tensor::<2>::random([37, 501], Distribution::Normal(0.0, 1.0), &device);
        let start = random();
        let gradients: Vec<_> = (0..5).map(|_| random()).collect();
        let config = OptimizerConfig { eps: 0.1, ..OptimizerConfig::default() };
        let run = |optimizer: DecoupledAdamW, is_composed: bool| {
            let steps = gradients.iter().cloned();
            let (end, _) = steps.fold((start.clone(), None), |(tensor, state), gradient| {
                if is_composed {
                    let state = state.map(|state: HostState<2>| state.0);
                    let (tensor, state) = optimizer.composed().step(0.1, tensor, gradient, state);
                    (tensor, state.map(HostState))
                } else {
                    optimizer.step(0.1, tensor, gradient, state)
                }
            });
            end.into_data()
        };
        let optimizer = DecoupledAdamW { config, weight_decay: 0.5 };
        let expected = run(optimizer.clone(), true);
        run(optimizer.clone(), false).assert_approx_eq::<f32>(&expected, Tolerance::absolute(TOLERANCE));
        // Each setting moves the result.
        for other in [
            DecoupledAdamW { weight_decay: 0.0, ..optimizer.clone() },
            DecoupledAdamW { config: OptimizerConfig { beta_1: 0.5, ..config }, ..optimizer.clone() },
            DecoupledAdamW { config: OptimizerConfig { beta_2: 0.5, ..config }, ..optimizer.clone() },
            DecoupledAdamW { config: OptimizerConfig { eps: 1e-8, ..config }, ..optimizer.clone() },
        ] {
            let found = run(other, false);
            let pairs = found.iter::<f32>().zip(expected.iter::<f32>());
            let moved = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
            assert!(moved > 100.0 * TOLERANCE, "a setting moves the result by {moved} alone");
        }
    }
}
