//! The names of a model's parameters.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::transformer::Transformer;

impl Transformer {
    /// The path (`layers.0.attention.query.weight`) and shape of each parameter, in the order of the model. None is made to
    /// draw its numbers.
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let mut parameters = Parameters::default();
        self.visit(&mut parameters);
        parameters.found.into_iter().map(|(_, path, shape)| (path, shape)).collect()
    }

    /// The path of each parameter.
    pub(crate) fn paths(&self) -> HashMap<ParamId, String> {
        let mut parameters = Parameters::default();
        self.visit(&mut parameters);
        parameters.found.into_iter().map(|(id, path, _)| (id, path)).collect()
    }
}

#[derive(Default)]
struct Parameters {
    path: Vec<String>,
    found: Vec<(ParamId, String, Vec<usize>)>,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((param.id, self.path.join("."), param.lazy_shape().to_vec()));
    }
}
