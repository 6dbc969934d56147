//! The affine map of every learned projection.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, assert_shape};

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
}

impl Projection {
    /// A projection whose weights are drawn uniformly from `±1/√d_input` when they are first used.
    pub fn new(d_input: usize, d_output: usize, has_bias: bool, device: &Device) -> Self {
        let Linear { weight, bias } = LinearConfig::new(d_input, d_output).with_bias(has_bias).init(device);
        Self { weight, bias }
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
        let (weight, bias) = self.parameters();
        let [d_input, _] = weight.dims();
        assert_shape!(x, [.., d_input]);
        kernel::linear(x, weight, bias)
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
        let parameters = projections.map(Self::parameters);
        for (weight, _) in &parameters {
            let [d_input, _] = weight.dims();
            assert_shape!(x, [.., d_input]);
        }
        kernel::linears(x, parameters)
    }

    fn parameters(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}
