//! One case of the comparison, and how exact its answer has to be.

use burn::tensor::Device;

use super::probe::{Probe, Run};
use crate::error::Error;

/// How much is computed, which decides how far 32 bits may lie from 64.
///
/// Bounds are relative to the largest number of the right answer where that is above 1. One rounding is 6e-8; each bound
/// is two to four times the largest error seen on flex, ndarray, libtorch and wgpu (on Mesa's llvmpipe), which
/// stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One function without matrices of weights. Seen: outputs 5e-7, gradients 7e-7.
    Function,
    /// One module: a few matrix products in a row. Seen: outputs 1.9e-6, gradients 1.8e-6.
    Module,
    /// A whole model of at most four layers. Seen: outputs 5e-6, gradients 2.5e-6.
    Model,
    /// A model of whatever depth; errors grow with it.
    AnyModel,
    /// Nothing: some size is zero.
    Empty,
}

impl Kind {
    /// Bound on outputs.
    fn tolerance(self) -> f64 {
        match self {
            Self::Function => 1e-6,
            Self::Module => 5e-6,
            Self::Model => 2e-5,
            Self::AnyModel => 1e-4,
            Self::Empty => 0.0,
        }
    }

    /// Bound on gradients, which are sums over the whole batch.
    fn gradient_tolerance(self) -> f64 {
        match self {
            Self::Function => 2e-6,
            Self::Module => 5e-6,
            Self::Model => 1e-5,
            Self::AnyModel => 1e-4,
            Self::Empty => 0.0,
        }
    }
}

/// A case of the comparison.
pub(super) struct Case {
    pub name: String,
    /// Bound on outputs.
    pub tolerance: f64,
    /// Bound on gradients.
    pub gradient_tolerance: f64,
    pub run: Run,
    /// Whether gradients are compared too.
    pub has_gradients: bool,
    /// The case with one of its options ignored, by that option: each must give another answer.
    pub without: Vec<(String, Run)>,
    /// On which devices the case can run, where not on all.
    pub runs_on: Option<DeviceFilter>,
}

/// Whether a case can run on a device.
pub type DeviceFilter = Box<dyn Fn(&Device) -> bool>;

impl Case {
    /// A case whose outputs and gradients are compared.
    pub fn new(kind: Kind, name: impl Into<String>, run: impl Fn(&mut Probe) -> Result<(), Error> + 'static) -> Self {
        Self {
            name: name.into(),
            tolerance: kind.tolerance(),
            gradient_tolerance: kind.gradient_tolerance(),
            run: Box::new(run),
            has_gradients: kind != Kind::Empty,
            without: Vec::new(),
            runs_on: None,
        }
    }

    /// Sets both bounds.
    pub fn with_tolerance(mut self, tolerance: f64) -> Self {
        (self.tolerance, self.gradient_tolerance) = (tolerance, tolerance);
        self
    }

    /// Adds the case with an option ignored.
    pub fn without(
        mut self,
        option: impl Into<String>,
        run: impl Fn(&mut Probe) -> Result<(), Error> + 'static,
    ) -> Self {
        self.without.push((option.into(), Box::new(run)));
        self
    }

    /// Compares outputs alone.
    pub fn forward_only(mut self) -> Self {
        self.has_gradients = false;
        self
    }

    /// Runs the case on some devices only.
    pub fn only_where(mut self, runs_on: impl Fn(&Device) -> bool + 'static) -> Self {
        self.runs_on = Some(Box::new(runs_on));
        self
    }
}
