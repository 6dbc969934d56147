//! Adapters with dropout, which Burn's own do not have.

use burn::module::{Lora, LoraAdapter, Module, Param, Reparameterization, Reparameterizer};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::Tensor;

/// Makes adapters as Burn's [`Lora`] does, and gives them dropout.
pub(super) struct LoraWithDropout {
    lora: Lora,
    dropout: f64,
}

impl LoraWithDropout {
    pub fn new(lora: Lora, dropout: f64) -> Self {
        Self { lora, dropout }
    }
}

impl Reparameterizer for LoraWithDropout {
    type Reparam = AdapterWithDropout;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<AdapterWithDropout>) {
        let (base, adapter) = self.lora.reparameterize(path, param);
        let dropout = DropoutConfig::new(self.dropout).init();
        let with_dropout = |LoraAdapter { a, b, scale }| AdapterWithDropout { a, b, dropout, scale };
        (base, adapter.map(with_dropout))
    }
}

/// Burn's [`LoraAdapter`], which in training does not see some of the input features.
#[derive(Module, Debug)]
pub(super) struct AdapterWithDropout {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
    dropout: Dropout,
    scale: f64,
}

impl Reparameterization for AdapterWithDropout {
    // That of Burn's, so that factors have the same paths with and without dropout.
    const NAME: &'static str = LoraAdapter::NAME;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let a = self.a.val();
        let [d_in, _] = a.dims();
        let seen = self.dropout.forward(Tensor::<2>::ones([d_in, 1], (&a.device(), a.dtype())));
        let learned = (a * seen).matmul(self.b.val()) * self.scale;
        let shape = base.shape();
        base + learned.reshape(shape)
    }
}
