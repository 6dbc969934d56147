//! Whether the parameters of a model are numbers.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The path of the first parameter that holds NaN or infinity.
pub(super) fn first_not_finite<M: Module>(module: &M) -> Option<String> {
    let mut sums = Sums { path: Vec::new(), names: Vec::new(), sums: Vec::new() };
    module.visit(&mut sums);
    if sums.sums.is_empty() {
        return None;
    }
    // NaN and infinity survive a sum of absolute values. One read for all.
    let values = Tensor::cat(sums.sums, 0).into_data();
    let faulty = values.iter::<f64>().position(|value| !value.is_finite())?;
    sums.names.into_iter().nth(faulty)
}

struct Sums {
    path: Vec<String>,
    names: Vec<String>,
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Sums {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let sum = param.val().abs().sum();
        self.sums.push(match self.sums.first() {
            Some(first) => sum.to_device(&first.device()),
            None => sum,
        });
        self.names.push(self.path.join("."));
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::tensor::TensorData;

    use super::*;
    use crate::backend::host_device;

    #[test]
    fn faulty_parameters_are_named() {
        let device = host_device();
        let mut linear = LinearConfig::new(3, 2).init(&device);
        assert_eq!(first_not_finite(&linear), None);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            linear.bias = Some(Param::from_data(TensorData::from([1.0, value]), &device));
            assert_eq!(first_not_finite(&linear).as_deref(), Some("bias"));
        }
    }
}
