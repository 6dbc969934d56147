//! Gradients added up between the copies of a model that are trained side by side.
//!
//! Burn reduces between CUDA devices of one process. This reduces between any devices, of other processes too, always in
//! the same order.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

/// A place where copies meet once in every step.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    round: Mutex<Round>,
    turned: Condvar,
}

/// The gradients of one step.
#[derive(Debug, Default)]
struct Round {
    /// What copies have brought, by their numbers.
    brought: BTreeMap<usize, (GradientsParams, Device)>,
    /// What copies have not taken yet.
    sums: BTreeMap<usize, GradientsParams>,
    /// Some copy will not come any more.
    is_closed: bool,
}

impl Exchange {
    /// Lets go of copies that wait, now and later.
    pub fn close(&self) {
        self.round.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.turned.notify_all();
    }

    /// Gives the sum of the gradients of all `copies`, on the device of copy `copy`, once all have brought theirs; none
    /// where one will not come any more.
    pub fn sum<M: Module>(
        &self,
        module: &M,
        copy: usize,
        copies: usize,
        gradients: GradientsParams,
        device: &Device,
    ) -> Option<GradientsParams> {
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.brought.insert(copy, (gradients, device.clone()));
        if round.brought.len() == copies {
            let brought = std::mem::take(&mut round.brought).into_values().collect();
            let mut adding = Adding { brought, sums: (0..copies).map(|_| GradientsParams::new()).collect() };
            module.visit(&mut adding);
            round.sums = adding.sums.into_iter().enumerate().collect();
            self.turned.notify_all();
        }
        loop {
            if let Some(sum) = round.sums.remove(&copy) {
                return Some(sum);
            }
            if round.is_closed {
                return None;
            }
            round = self.turned.wait(round).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Adding {
    brought: Vec<(GradientsParams, Device)>,
    sums: Vec<GradientsParams>,
}

impl ModuleVisitor for Adding {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let parts: Vec<Tensor<D>> = self.brought.iter_mut().filter_map(|(part, _)| part.remove(param.id)).collect();
        let Some(first) = parts.first().map(Tensor::device) else { return };
        let sum = parts.into_iter().map(|part| part.to_device(&first)).reduce(|sum, part| sum + part);
        if let Some(sum) = sum {
            for (of_copy, (_, device)) in self.sums.iter_mut().zip(&self.brought) {
                of_copy.register(param.id, sum.clone().to_device(device));
            }
        }
    }
}
