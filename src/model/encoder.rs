//! The encoder of a model that has a decoder too.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::cache::{Cache, Step};
use super::config::ModelConfig;
use super::observer::AttentionObserver;
use super::stack::Stack;
use crate::attention::RelativeBias;
use crate::error::Error;
use crate::norm::Norm;
use crate::transformer_block::TransformerBlock;

/// Blocks whose queries see the whole sequence, and the norm that follows them.
#[derive(Module, Debug)]
pub struct Encoder {
    /// The learned biases of relative positions.
    pub relative_bias: Option<RelativeBias>,
    /// The blocks.
    pub layers: Vec<TransformerBlock>,
    /// The norm after the last block.
    pub final_norm: Option<Norm>,
    #[module(skip)]
    config: ModelConfig,
}

impl Encoder {
    pub(super) fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            relative_bias: config.relative_bias(device),
            layers: config.blocks(device),
            final_norm: config.final_norm.then(|| config.norm.init(config.d_model, device)),
            config: config.clone(),
        }
    }

    /// Encodes embedded tokens, `[batch, seq, d_model]`: those of `step`, which `read` has taken.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        step: &Step,
        read: &mut Cache,
        observer: &mut dyn AttentionObserver,
    ) -> Result<Tensor<3>, Error> {
        let stack = Stack {
            config: &self.config,
            layers: &self.layers,
            relative_bias: self.relative_bias.as_ref(),
            final_norm: self.final_norm.as_ref(),
        };
        stack.check_kernel(x.dims()[0], step, observer, &x.device())?;
        Ok(stack.run(x, read, None, observer))
    }
}
