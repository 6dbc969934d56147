//! Gradients as one vector: their norm over all parameters, and scaling them down to a limit
//! ([Pascanu et al. 2012](https://arxiv.org/abs/1211.5063)). Burn's own clipping looks at each parameter alone.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, MultiGradientsParams};
use burn::tensor::{Device, Tensor};

/// Keeps a norm of zero from dividing; PyTorch adds the same.
const EPS: f64 = 1e-6;

/// Gradients of one device or of several.
pub(super) trait Gradients: Sized {
    /// The gradient of a parameter.
    fn take<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<(Tensor<D>, Device)>;

    /// Puts a gradient back, on the device that it was taken from.
    fn put<const D: usize>(&mut self, param: &Param<Tensor<D>>, gradient: Tensor<D>, device: &Device);
}

impl Gradients for GradientsParams {
    fn take<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<(Tensor<D>, Device)> {
        let gradient = self.remove::<D>(param.id)?;
        let device = gradient.device();
        Some((gradient, device))
    }

    fn put<const D: usize>(&mut self, param: &Param<Tensor<D>>, gradient: Tensor<D>, _device: &Device) {
        self.register(param.id, gradient);
    }
}

impl Gradients for MultiGradientsParams {
    fn take<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Option<(Tensor<D>, Device)> {
        // Adds up the gradients of all devices, on the one that updates this parameter.
        self.remove::<D>(param.id)
    }

    fn put<const D: usize>(&mut self, param: &Param<Tensor<D>>, gradient: Tensor<D>, device: &Device) {
        let of_device = self.grads.iter_mut().find(|(_, owner)| owner == device);
        let (gradients, _) = of_device.expect("the gradient was taken from one of these devices");
        gradients.register(param.id, gradient);
    }
}

/// Scales gradients down so that their norm is at most `limit`, where it is larger; 0 is no limit. Gives the norm before.
pub(super) fn clip_by_global_norm<M: Module, G: Gradients>(module: &M, gradients: &mut G, limit: f64) -> f64 {
    let mut squares = Squares { gradients, sums: Vec::new() };
    module.visit(&mut squares);
    let sums = squares.sums;
    if sums.is_empty() {
        return 0.0;
    }
    // One read for all parameters; the sum of sums in 64 bits does not depend on the backend.
    let norm = Tensor::cat(sums, 0).into_data().iter::<f64>().sum::<f64>().sqrt();
    let factor = limit / (norm + EPS);
    if limit > 0.0 && factor < 1.0 {
        module.visit(&mut Scaling { gradients, factor });
    }
    norm
}

struct Squares<'a, G> {
    gradients: &'a mut G,
    sums: Vec<Tensor<1>>,
}

impl<G: Gradients> ModuleVisitor for Squares<'_, G> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some((gradient, device)) = self.gradients.take(param) {
            let sum = gradient.clone().square().sum();
            self.sums.push(match self.sums.first() {
                Some(first) => sum.to_device(&first.device()),
                None => sum,
            });
            self.gradients.put(param, gradient, &device);
        }
    }
}

struct Scaling<'a, G> {
    gradients: &'a mut G,
    factor: f64,
}

impl<G: Gradients> ModuleVisitor for Scaling<'_, G> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some((gradient, device)) = self.gradients.take(param) {
            self.gradients.put(param, gradient * self.factor, &device);
        }
    }
}
