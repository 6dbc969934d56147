//! Products counted in the real forward, which a recording device runs without computing it: what the formulas are held
//! to.
//!
//! Weights are drawn on that device too, which is to say never: models of any size can be counted. One thing of a forward
//! depends on values: to which experts a mixture sends a token. Mixtures are therefore taken out of the blocks while the
//! model is recorded, and recorded one by one beside it, with tokens sent to experts in turn. The products are the same
//! whatever the choice: each token passes through as many experts.

use burn::tensor::{Device, Tensor};
use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr, TensorIr};

use crate::attention::AttentionKernel;
use crate::error::Error;
use crate::mixture_of_experts::{MixtureOfExperts, Routes};
use crate::model::{ForwardOptions, Logits, ModelConfig, ModelInput, ModelKind, Transformer};
use crate::transformer_block::TransformerBlock;

/// What the products of a recorded forward add up to, a multiplication with its addition counted as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedFlops {
    /// Products with weights.
    pub weights: u64,
    /// Products of one activation with another: the scores of attention.
    pub scores: u64,
    /// How many products there were.
    pub products: usize,
}

/// Records a forward of the model that `config` describes over `batch` sequences, fed in calls of these lengths (with a
/// cache where there are several), and counts its products. An encoder reads `source` tokens. Attention is
/// [composed](AttentionKernel::Composed), so that every pair of query and key is computed.
///
/// # Errors
///
/// When the model cannot take such an input, or an operation holds products that are not counted here.
///
/// # Panics
///
/// When the configuration is not valid.
pub fn counted_flops(
    config: &ModelConfig,
    batch: usize,
    calls: &[usize],
    source: usize,
    logits: Logits,
) -> Result<CountedFlops, Error> {
    let config = composed(config);
    let device = Device::capture();
    let mut outcome = Ok(());
    let recorded = device.capture_scope(|scope| {
        let mut model = config.init(&device);
        let mixtures = take_mixtures(&mut model.layers);
        let encoder = model.encoder.as_mut().map_or_else(Vec::new, |encoder| take_mixtures(&mut encoder.layers));
        outcome = feed(&model, batch, calls, source, logits);
        for (mixtures, seq) in calls.iter().map(|seq| (&mixtures, *seq)).chain([(&encoder, source)]) {
            for mixture in mixtures {
                pass(mixture, [batch, seq, config.d_model], &device);
            }
        }
        scope.complete([], [])
    });
    outcome?;
    let recorded = recorded.map_err(|error| Error::Input(format!("the forward cannot be recorded: {error}")))?;
    let mut counted = CountedFlops::default();
    for operation in &recorded.graph.operations {
        counted.add(operation)?;
    }
    Ok(counted)
}

/// `config` with attention from plain products.
fn composed(config: &ModelConfig) -> ModelConfig {
    let mut config = config.clone();
    config.attention.kernel = AttentionKernel::Composed;
    config.cross_attention.iter_mut().for_each(|cross| cross.kernel = AttentionKernel::Composed);
    config.encoder.iter_mut().for_each(|encoder| **encoder = composed(encoder));
    config
}

fn take_mixtures(layers: &mut [TransformerBlock]) -> Vec<MixtureOfExperts> {
    layers.iter_mut().filter_map(|layer| layer.mixture.take()).collect()
}

fn feed(model: &Transformer, batch: usize, calls: &[usize], source: usize, logits: Logits) -> Result<(), Error> {
    let config = model.config();
    let device = model.device();
    let is_cached = calls.len() > 1 && config.kind == ModelKind::Decoder;
    let mut cache = is_cached.then(|| model.new_cache());
    for (call, seq) in calls.iter().enumerate() {
        let mut input = match (&config.embedding, config.patches) {
            (Some(_), _) => ModelInput::tokens(&vec![vec![0i64; *seq]; batch]),
            (None, Some(patches)) => {
                let [channels, height, width] = patches.image_shape();
                ModelInput::pixels(Tensor::zeros([batch, channels, height, width], &device))
            }
            (None, None) => ModelInput::hidden(Tensor::zeros([batch, *seq, config.d_model], &device)),
        };
        if config.encoder.is_some() && (call == 0 || !is_cached) {
            input = input.with_source(ModelInput::tokens(&vec![vec![0i64; source]; batch]));
        }
        model.forward(&input, cache.as_mut(), ForwardOptions { logits, weights: false })?;
    }
    Ok(())
}

/// Records a mixture over as many tokens as a call has.
fn pass(mixture: &MixtureOfExperts, shape: [usize; 3], device: &Device) {
    let [batch, seq, _] = shape;
    let (n_experts, n_active) = (mixture.experts.len(), mixture.n_active());
    let routes = Routes::in_turn(batch * seq, n_experts, n_active);
    mixture.forward_along(Tensor::zeros(shape, device), |_| routes);
}

impl CountedFlops {
    /// All products.
    pub fn total(&self) -> u64 {
        self.weights + self.scores
    }

    fn add(&mut self, operation: &OperationIr) -> Result<(), Error> {
        match operation {
            OperationIr::Float(_, FloatOperationIr::Matmul(product)) => {
                let flops = flops(&product.lhs, &product.out);
                // Weights are matrices, and stand on one side of each product with two or three axes.
                match product.out.shape.num_dims() {
                    4 => self.scores += flops,
                    _ => self.weights += flops,
                }
                self.products += 1;
            }
            OperationIr::Module(ModuleOperationIr::Linear(product)) => {
                self.weights += flops(&product.x, &product.out);
                self.products += 1;
            }
            OperationIr::Module(ModuleOperationIr::LayerNorm(_) | ModuleOperationIr::Embedding(_)) => {}
            OperationIr::Module(other) => {
                return Err(Error::Input(format!("this operation is not counted: {other:?}")));
            }
            OperationIr::Custom(other) => {
                return Err(Error::Input(format!("this operation is not counted: {other:?}")));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Operations of the product that gives `out` from `left` and something else.
fn flops(left: &TensorIr, out: &TensorIr) -> u64 {
    let inner = left.shape[left.shape.num_dims() - 1];
    2 * out.shape.num_elements() as u64 * inner as u64
}
