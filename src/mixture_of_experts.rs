//! A mixture of experts: many feed-forward networks, of which each token passes through a few
//! ([Shazeer et al. 2017](https://arxiv.org/abs/1701.06538)).

use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData, assert_shape};
use serde::{Deserialize, Serialize};

use crate::attention::is_zero;
use crate::error::{ConfigError, Faults};
use crate::feed_forward::{FeedForward, FeedForwardConfig};
use crate::kernel::sigmoid;
use crate::precision::{narrow, widen};
use crate::projection::Projection;

/// Configuration of a [`MixtureOfExperts`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MixtureOfExpertsConfig {
    /// Width of input and output. In a model file it may be left out: it is the model's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub d_model: usize,
    /// Number of experts.
    pub n_experts: usize,
    /// How many experts each token passes through.
    pub n_active: usize,
    /// One expert; its `d_model` is that of the mixture.
    pub expert: FeedForwardConfig,
    /// Whether the weights of a token's experts are divided by their sum. Default: yes.
    #[serde(default = "yes")]
    pub renormalize: bool,
    /// An expert beside the others that every token passes through (Qwen 2 MoE). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedExpertConfig>,
}

/// Configuration of the expert that every token passes through.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SharedExpertConfig {
    /// The network; its `d_model` is that of the mixture.
    pub expert: FeedForwardConfig,
    /// Whether a sigmoid of the token, one number, multiplies its output. Default: yes.
    #[serde(default = "yes")]
    pub gated: bool,
}

fn yes() -> bool {
    true
}

impl burn::config::Config for MixtureOfExpertsConfig {}

impl MixtureOfExpertsConfig {
    /// `n_experts` networks like `expert`, of which each token passes through `n_active`.
    pub fn new(expert: FeedForwardConfig, n_experts: usize, n_active: usize) -> Self {
        Self { d_model: expert.d_model, n_experts, n_active, expert, renormalize: true, shared: None }
    }

    setters! {
        with_renormalize => renormalize: bool,
        with_shared => shared: SharedExpertConfig,
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// All sizes that are zero or do not fit together, and the faults of the networks.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.d_model, "d_model");
        faults.positive(self.n_experts, "n_experts");
        faults.require((1..=self.n_experts.max(1)).contains(&self.n_active), "n_active", || {
            format!("must be from 1 to n_experts = {}, got {}", self.n_experts, self.n_active)
        });
        let widths = [("expert", Some(&self.expert)), ("shared.expert", self.shared.as_ref().map(|s| &s.expert))];
        for (section, network) in widths {
            let Some(network) = network else { continue };
            faults.section(section, |faults| self.sized(network).check(faults));
            faults.require(network.d_model == 0 || network.d_model == self.d_model, section, || {
                format!("has d_model = {}, the mixture {}; leave it out", network.d_model, self.d_model)
            });
        }
    }

    /// `network` with the width of the mixture.
    fn sized(&self, network: &FeedForwardConfig) -> FeedForwardConfig {
        FeedForwardConfig { d_model: self.d_model, ..network.clone() }
    }

    /// How many parameters the module has.
    pub fn n_parameters(&self) -> u64 {
        let router = (self.d_model * self.n_experts) as u64;
        let experts = self.sized(&self.expert).n_parameters().saturating_mul(self.n_experts as u64);
        let shared = self.shared.as_ref().map_or(0, |shared| {
            let gate = if shared.gated { self.d_model as u64 } else { 0 };
            self.sized(&shared.expert).n_parameters() + gate
        });
        router + experts.saturating_add(shared)
    }

    /// Builds the module; weights are drawn when they are first used.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    pub fn init(&self, device: &Device) -> MixtureOfExperts {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let projection = |width| Projection::new(self.d_model, width, false, device);
        let shared = self.shared.as_ref();
        MixtureOfExperts {
            router: projection(self.n_experts),
            experts: (0..self.n_experts).map(|_| self.sized(&self.expert).init(device)).collect(),
            shared: shared.map(|shared| self.sized(&shared.expert).init(device)),
            shared_gate: shared.filter(|shared| shared.gated).map(|_| projection(1)),
            n_active: self.n_active,
            renormalize: self.renormalize,
        }
    }
}

/// `Σ pᵢ · expertᵢ(x)` over the `n_active` experts with the highest `p = softmax(router(x))`, and what the shared expert
/// adds. The softmax is over all experts; which of them a token takes is decided on the host, ties going to the first.
#[derive(Module, Debug)]
pub struct MixtureOfExperts {
    /// Scores the experts, `d_model → n_experts`.
    pub router: Projection,
    /// The experts.
    pub experts: Vec<FeedForward>,
    /// The expert that every token passes through.
    pub shared: Option<FeedForward>,
    /// The factor on its output before the sigmoid, `d_model → 1`.
    pub shared_gate: Option<Projection>,
    n_active: usize,
    renormalize: bool,
}

impl MixtureOfExperts {
    /// Applies the mixture to each position.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - output: `[batch, seq, d_model]`
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_model`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.forward_along(x, |probabilities| Routes::to_highest(probabilities.to_data(), self.n_active))
    }

    /// As [`forward`](Self::forward), where `route` sends tokens to experts, given the probabilities,
    /// `[tokens, n_experts]`.
    pub(crate) fn forward_along(&self, x: Tensor<3>, route: impl FnOnce(&Tensor<2>) -> Routes) -> Tensor<3> {
        let [d_model, _] = self.router.weight.lazy_shape().dims();
        assert_shape!(x, [.., d_model]);
        let [batch, seq, _] = x.dims();
        if batch * seq == 0 {
            return x;
        }
        let x = x.reshape([batch * seq, d_model]);
        let mut y = self.routed(x.clone(), route);
        if let Some(shared) = &self.shared {
            let mut z = shared.forward(x.clone());
            if let Some(gate) = &self.shared_gate {
                z = z * sigmoid(gate.forward(x));
            }
            y = y + z;
        }
        y.reshape([batch, seq, d_model])
    }

    /// How many experts each token passes through.
    #[cfg(feature = "capture")]
    pub(crate) fn n_active(&self) -> usize {
        self.n_active
    }

    /// What the chosen experts give, `[tokens, d_model]`.
    fn routed(&self, x: Tensor<2>, route: impl FnOnce(&Tensor<2>) -> Routes) -> Tensor<2> {
        let [tokens, d_model] = x.dims();
        let (dtype, device, k) = (x.dtype(), x.device(), self.n_active);
        let probabilities = softmax(widen(self.router.forward(x.clone())), 1);
        let routes = route(&probabilities);
        let mut weights = probabilities.gather(1, indices(&routes.experts, &device).reshape([tokens, k]));
        if self.renormalize {
            weights = weights.clone() / weights.sum_dim(1);
        }
        // One call per expert, with all tokens that chose it; then the outputs of each token are put side by side.
        let mut outputs = Vec::new();
        let slots = routes.slots_by_expert(self.experts.len());
        for (expert, slots) in self.experts.iter().zip(&slots).filter(|(_, slots)| !slots.is_empty()) {
            let rows: Vec<usize> = slots.iter().map(|slot| slot / k).collect();
            outputs.push(expert.forward(x.clone().select(0, indices(&rows, &device))));
        }
        let places = indices(&places(&slots.concat()), &device);
        let outputs = Tensor::cat(outputs, 0).select(0, places).reshape([tokens, k, d_model]);
        (outputs * narrow(weights, dtype).reshape([tokens, k, 1])).sum_dim(1).reshape([tokens, d_model])
    }
}

fn indices(indices: &[usize], device: &Device) -> Tensor<1, Int> {
    let data: Vec<i64> = indices.iter().map(|index| *index as i64).collect();
    Tensor::from_data(TensorData::new(data, [indices.len()]), device)
}

/// Which experts each token passes through.
pub(crate) struct Routes {
    /// `k` per token, the likeliest first: entry `token · k + rank`, which is called a slot.
    experts: Vec<usize>,
}

impl Routes {
    /// Sends each row of `probabilities`, `[tokens, n_experts]`, to its `k` highest entries; of equal ones the first.
    fn to_highest(probabilities: TensorData, k: usize) -> Self {
        let n_experts = probabilities.shape()[1];
        let probabilities: Vec<f64> = probabilities.iter::<f64>().collect();
        let of_token = |row: &[f64]| {
            let mut order: Vec<usize> = (0..n_experts).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            order.truncate(k);
            order
        };
        Self { experts: probabilities.chunks(n_experts).flat_map(of_token).collect() }
    }

    /// Sends tokens to experts in turn, `k` each, whatever they are.
    #[cfg(feature = "capture")]
    pub(crate) fn in_turn(tokens: usize, n_experts: usize, k: usize) -> Self {
        Self { experts: (0..tokens * k).map(|slot| slot % n_experts).collect() }
    }

    /// For each expert the slots that it fills.
    fn slots_by_expert(&self, n_experts: usize) -> Vec<Vec<usize>> {
        let mut slots = vec![Vec::new(); n_experts];
        for (slot, expert) in self.experts.iter().enumerate() {
            slots[*expert].push(slot);
        }
        slots
    }
}

/// Where each slot stands in `order`, which holds every slot once.
fn places(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    for (place, slot) in order.iter().enumerate() {
        places[*slot] = place;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_the_likeliest_experts_and_back_to_their_places() {
        let probabilities = TensorData::new(vec![0.1, 0.2, 0.3, 0.4, 0.3, 0.3, 0.3, 0.1], [2, 4]);
        let routes = Routes::to_highest(probabilities, 2);
        assert_eq!(routes.experts, [3, 2, 0, 1], "the first of equal ones comes first");
        let slots = routes.slots_by_expert(4);
        assert_eq!(slots, [vec![2], vec![3], vec![1], vec![0]]);
        let order = slots.concat();
        let places = places(&order);
        assert!((0..4).all(|slot| order[places[slot]] == slot));
    }
}
