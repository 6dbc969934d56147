//! What a checkpoint holds and what becomes of it, without reading its numbers.

use burn::tensor::Device;
use serde::Serialize;

use super::Checkpoint;
use super::load::{LoadReport, Plan};
use crate::model::ModelConfig;

/// A model, its parameters, and where they come from.
#[derive(Serialize, Clone, Debug)]
pub struct Inspection {
    /// The model, everything that its files leave to defaults filled in.
    pub config: ModelConfig,
    /// How many parameters it has.
    pub parameters: u64,
    /// Each parameter with the tensor that fills it, in the order of the model. One that several tensors make up comes up
    /// once for each.
    pub tensors: Vec<Placement>,
    /// Tensors that nothing is filled from.
    pub unused: Vec<String>,
    /// Tensors that are known to be no parameters of a model.
    pub ignored: Vec<String>,
    /// Parameters without a tensor.
    pub missing: Vec<String>,
    /// Why the checkpoint does not load: what is missing, and what does not fit.
    pub faults: Vec<String>,
}

/// A parameter and the tensor that fills it.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The parameter's path in the model.
    pub parameter: String,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// The tensor's name in the file; none where there is no such tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// The type of its numbers in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_dtype: Option<String>,
    /// Its shape in the file, where several parameters may be in one tensor and rows and columns may have other places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_shape: Option<Vec<usize>>,
}

impl Inspection {
    /// A model without weights.
    pub fn of_config(config: &ModelConfig) -> Self {
        let parameters = config.init(&Device::default()).parameters();
        let tensors = parameters.into_iter().map(|(parameter, shape)| Placement {
            parameter,
            shape,
            tensor: None,
            stored_dtype: None,
            stored_shape: None,
        });
        Self {
            config: config.clone(),
            parameters: config.n_parameters(),
            tensors: tensors.collect(),
            unused: Vec::new(),
            ignored: Vec::new(),
            missing: Vec::new(),
            faults: Vec::new(),
        }
    }
}

impl Checkpoint {
    /// What the checkpoint holds and what becomes of it, whether it can be loaded or not.
    pub fn inspect(&self) -> Inspection {
        let Plan { parameters, sources, report, missing: without, unfit } =
            self.sketch(&self.config.init(&Device::default()));
        let LoadReport { unused, ignored, .. } = report;
        let (mut tensors, mut missing) = (Vec::new(), Vec::new());
        for (parameter, shape) in parameters {
            let names = sources.get(&parameter).map(|source| source.tensors.clone()).unwrap_or_default();
            let is_whole = !names.is_empty() && names.iter().all(|name| self.weights.contains(name));
            if !is_whole {
                missing.push(parameter.clone());
            }
            let placement = |name: Option<&String>| {
                let stored = name.and_then(|name| self.weights.tensor(name));
                Placement {
                    parameter: parameter.clone(),
                    shape: shape.clone(),
                    tensor: stored.and(name).cloned(),
                    stored_dtype: stored.map(|tensor| tensor.type_name()),
                    stored_shape: stored.map(|tensor| tensor.shape.clone()),
                }
            };
            match names.as_slice() {
                [] => tensors.push(placement(None)),
                names => tensors.extend(names.iter().map(|name| placement(Some(name)))),
            }
        }
        let without = without.into_iter().map(|parameter| format!("there is no tensor for {parameter}"));
        Inspection {
            config: self.config.clone(),
            parameters: self.config.n_parameters(),
            tensors,
            unused,
            ignored,
            missing,
            faults: without.chain(unfit).collect(),
        }
    }
}
