//! The affine map of every learned projection.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, assert_shape};

use crate::activation::Activation;
use crate::blocks::Blocks;
use crate::kernel;

/// `x · weight + bias` over the last axis.
///
/// Parameters have the names, layout and first values of [`burn::nn::Linear`]'s.
#[derive(Module, Debug)]
pub struct Projection {
    /// The weight, `[d_input, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// The bias, `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl Projection {
    /// A projection whose weights are drawn uniformly from `±1/√d_input` when they are first used.
    pub fn new(d_input: usize, d_output: usize, has_bias: bool, device: &Device) -> Self {
        let Linear { weight, bias } = LinearConfig::new(d_input, d_output).with_bias(has_bias).init(device);
        Self { weight, bias, blocks: Blocks::default() }
    }

    /// Projects the last axis.
    ///
    /// # Shapes
    ///
    /// - x: `[.., d_input]`
    /// - output: `[.., d_output]`
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_input`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [y] = Self::forward_each([self], x);
        y
    }

    /// What each of `projections` makes of the same `x`.
    ///
    /// # Shapes
    ///
    /// - x: `[.., d_input]`
    /// - outputs: `[.., d_output]` of each
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_input`.
    pub fn forward_each<const D: usize, const N: usize>(projections: [&Self; N], x: Tensor<D>) -> [Tensor<D>; N] {
        let biases = projections.map(|projection| projection.bias.as_ref().map(Param::val));
        Self::products(projections, x, biases)
    }

    /// The activation of what it makes of `x`, with the bias added on the way where that saves a pass.
    pub(crate) fn forward_activated<const D: usize>(&self, x: Tensor<D>, activation: Activation) -> Tensor<D> {
        match &self.bias {
            Some(bias) if kernel::is_in_place(&x) => {
                let [y] = Self::products([self], x, [None]);
                activation.forward_biased(y, bias.val())
            }
            _ => activation.forward(self.forward(x)),
        }
    }

    fn products<const D: usize, const N: usize>(
        projections: [&Self; N],
        x: Tensor<D>,
        biases: [Option<Tensor<1>>; N],
    ) -> [Tensor<D>; N] {
        for projection in projections {
            let [d_input, _] = projection.weight.lazy_shape().dims();
            assert_shape!(x, [.., d_input]);
        }
        let blocks = projections.map(|projection| projection.blocks.beside(&projection.weight, &x));
        if blocks.iter().all(Option::is_some) {
            return kernel::quantised_linears(x, blocks.map(|blocks| blocks.expect("all are there")), biases);
        }
        let mut biases = biases.into_iter();
        let mut bias = || biases.next().flatten();
        if blocks.iter().any(Option::is_some) {
            return projections.map(|projection| {
                let [y] = Self::products([projection], x.clone(), [bias()]);
                y
            });
        }
        kernel::linears(x, projections.map(|projection| (projection.weight.val(), bias())))
    }

    /// The type of the weight's numbers.
    pub(crate) fn dtype(&self) -> DType {
        self.blocks.dtype(&self.weight)
    }
}
