//! The module that burn-train trains: a model with its run.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, MultiGradientsParams};
use burn::tensor::{ExecutionError, GradientCheckpointingStrategy, Tensor};
use burn::train::metric::Adaptor;
use burn::train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};

use super::clipping::{Gradients, clip_by_global_norm};
use super::loader::{TrainingBatch, ValidationBatch};
use super::loss::next_token_loss;
use super::session::Session;
use crate::error::Error;
use crate::model::{ForwardOptions, ModelInput, Transformer};

/// A model in training. Every parameter that requires gradients is updated.
#[derive(Module, Debug)]
pub struct LanguageModel {
    /// The model.
    pub model: Transformer,
    #[module(skip)]
    session: Session,
}

/// What the dashboard is told of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchReport {
    /// The mean loss over the tokens of the batch, in nats.
    pub loss: f64,
    /// Windows of the batch.
    pub windows: usize,
    /// Tokens read per second, lately.
    pub tokens_per_second: f64,
}

impl ItemLazy for BatchReport {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<BatchReport> for BatchReport {
    fn adapt(&self) -> BatchReport {
        *self
    }
}

impl LanguageModel {
    pub(super) fn new(model: Transformer, session: Session) -> Self {
        Self { model, session }
    }

    /// Clips the gradients, updates the model by them unless they are not finite, and reports the step.
    fn update<G: Gradients>(
        self,
        rate: f64,
        mut gradients: G,
        optimizer: &mut ModuleOptimizer,
        step: impl FnOnce(&mut ModuleOptimizer, Self, G) -> Self,
    ) -> Self {
        let update = self.session.begin_update();
        let norm = clip_by_global_norm(&self, &mut gradients, self.session.clip_norm());
        if !self.session.may_update(update, norm) {
            return self;
        }
        let updated = step(optimizer, self, gradients);
        updated.session.finish_update(update, rate, norm, &updated.model, optimizer);
        updated
    }
}

/// The mean loss of a model on windows of `seq + 1` tokens.
///
/// # Errors
///
/// When the model cannot take the windows.
pub fn window_loss(model: &Transformer, windows: &[Vec<i64>]) -> Result<Tensor<1>, Error> {
    let inputs: Vec<Vec<i64>> = windows.iter().map(|window| window[..window.len() - 1].to_vec()).collect();
    let targets: Vec<Vec<i64>> = windows.iter().map(|window| window[1..].to_vec()).collect();
    let output = model.forward(&ModelInput::tokens(&inputs), None, ForwardOptions::default())?;
    let logits = output.logits.ok_or_else(|| Error::Input("the model has no head that gives logits".into()))?;
    Ok(next_token_loss(logits, &targets))
}

/// Of windows and a model that [`TrainingRun`](super::TrainingRun) has tried with each other.
fn tried_loss(model: &Transformer, windows: &[Vec<i64>]) -> Tensor<1> {
    window_loss(model, windows).unwrap_or_else(|error| panic!("{error}"))
}

impl TrainStep for LanguageModel {
    type Input = TrainingBatch;
    type Output = BatchReport;

    fn step(&self, batch: TrainingBatch) -> TrainOutput<BatchReport> {
        let device = self.model.device();
        device.seed(batch.seed);
        // The one place where a mean is made: burn-train, its accumulator and the exchange between devices add gradients
        // up, so each part of a step gives the gradient of its part of the mean loss.
        let parts = batch.rows.len() * batch.devices;
        let mut gradients = GradientsAccumulator::new();
        let mut loss_part = 0.0;
        for rows in &batch.rows {
            let loss = tried_loss(&self.model, rows) / parts as f64;
            loss_part += loss.clone().into_scalar::<f64>();
            gradients.accumulate(self, GradientsParams::from_grads(loss.backward(), self));
        }
        self.session.add_loss(batch.step, loss_part);
        let report = BatchReport {
            loss: loss_part * batch.devices as f64,
            windows: batch.rows.iter().map(Vec::len).sum(),
            tokens_per_second: self.session.tokens_per_second(),
        };
        let grads = self.session.reduce(self, batch.device, gradients.grads(), &device.inner());
        TrainOutput { grads, item: report }
    }

    fn optimize(self, optimizer: &mut ModuleOptimizer, rate: ModuleLearningRate, gradients: GradientsParams) -> Self {
        self.update(rate.base(), gradients, optimizer, |optimizer, model, gradients| {
            optimizer.step(rate, model, gradients)
        })
    }

    fn optimize_multi(
        self,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: MultiGradientsParams,
    ) -> Self {
        self.update(rate.base(), gradients, optimizer, |optimizer, model, gradients| {
            optimizer.step_multi(rate, model, gradients)
        })
    }
}

impl InferenceStep for LanguageModel {
    type Input = ValidationBatch;
    type Output = BatchReport;

    fn step(&self, batch: ValidationBatch) -> BatchReport {
        let windows = batch.rows.len();
        let loss: f64 = tried_loss(&self.model, &batch.rows).into_scalar();
        self.session.add_measured(loss, windows, batch.is_first, batch.is_last);
        BatchReport { loss, windows, tokens_per_second: f64::NAN }
    }
}

/// Makes a model ready for training: on its device's autodiff, with activations kept or computed again, and with
/// parameters that are numbered from 1 in their order, so that the state of an optimizer fits the model of another run.
pub(super) fn trainable(model: Transformer, recompute_activations: bool) -> Transformer {
    struct Numbering {
        last: u64,
        strategy: GradientCheckpointingStrategy,
    }
    impl ModuleMapper for Numbering {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.last += 1;
            let (_, tensor, mapper) = param.consume();
            let requires_gradient = tensor.is_require_grad();
            let tensor = tensor.detach().with_gradient_checkpointing_strategy(self.strategy);
            Param::from_mapped_value(ParamId::from(self.last), tensor.set_require_grad(requires_gradient), mapper)
        }
    }
    let strategy = match recompute_activations {
        true => GradientCheckpointingStrategy::Balanced,
        false => GradientCheckpointingStrategy::Disabled,
    };
    model.train().map(&mut Numbering { last: 0, strategy })
}
