//! How a run uses several devices.

use burn::tensor::Device;
use burn::tensor::distributed::{DistributedConfig, DistributedContext, ReduceOperation};
use burn::train::{ExecutionStrategy, MultiDeviceOptim};

/// How the windows of a step, its gradients and its update are spread over devices. The windows of a batch are dealt out
/// evenly, and gradients are added up, so that a step is the same as on one device, to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parallelism {
    /// One device.
    #[default]
    Single,
    /// Each device computes gradients; the first one updates the model and gives it to the others.
    MultiDevice,
    /// Each device computes gradients, and updates a part of the parameters.
    MultiDeviceSharded,
    /// Each device has a model of its own, and all of them make the same update by the sum of their gradients. Burn has
    /// this for devices of other processes and for GPUs.
    DistributedDataParallel,
}

impl Parallelism {
    /// burn-train's strategy for these devices.
    pub(super) fn strategy(self, devices: &[Device]) -> ExecutionStrategy {
        let devices: Vec<Device> = devices.iter().map(|device| device.clone().autodiff()).collect();
        match self {
            Self::Single => ExecutionStrategy::single(devices[0].clone()),
            Self::MultiDevice => ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimMainDevice),
            Self::MultiDeviceSharded => ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimSharded),
            Self::DistributedDataParallel => {
                // A context without devices: the gradients that this gives are reduced already.
                let config = DistributedConfig { all_reduce_op: ReduceOperation::Sum };
                ExecutionStrategy::DistributedDataParallel {
                    devices,
                    context: DistributedContext::init(vec![], config),
                }
            }
        }
    }

    /// How many copies of the model are updated, each by itself.
    pub(super) fn copies(self, devices: usize) -> usize {
        if self == Self::DistributedDataParallel { devices } else { 1 }
    }
}
