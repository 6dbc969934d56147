//! A run from its configuration and a text to a trained model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use burn::train::renderer::MetricsRenderer;
use burn::train::{Interrupter, Learner, SupervisedTraining, TrainingStrategy};
use serde::Serialize;

use super::checkpoint::{CheckpointStore, SavedState, TextStamp, read_optimizer, read_state};
use super::config::TrainingConfig;
use super::dashboard::with_gauges;
use super::events::{Observer, StepReport, TrainingEvent, ValidationReport};
use super::folder::{check_is_free, write_model};
use super::learner::{LanguageModel, trainable, window_loss};
use super::loader::{StepLoader, ValidationLoader};
use super::metrics_log::MetricsLog;
use super::parallelism::Parallelism;
use super::session::{Outcome, Plan, Session};
use super::silence::Silence;
use super::text::TextCoder;
use super::tokens::{read_tokens, split};
use super::windows::Windows;
use crate::backend::{device_label, has_distributed_parameters, host_device};
use crate::error::Error;
use crate::model::{ModelConfig, Transformer};
use crate::pretrained::{Checkpoint, load_adapters, write_json};

/// The folder of checkpoints in the folder of a run.
const CHECKPOINTS: &str = "checkpoints";

/// The log in the folder of a run.
const METRICS: &str = "metrics.jsonl";

/// The configuration in the folder of a run.
const CONFIG: &str = "training.json";

/// What training starts from.
#[derive(Clone, Debug)]
pub enum Start {
    /// Weights that are drawn.
    Drawn(Box<ModelConfig>),
    /// The weights of a checkpoint.
    Checkpoint(Arc<Checkpoint>),
}

impl Start {
    fn config(&self) -> &ModelConfig {
        match self {
            Self::Drawn(config) => config,
            Self::Checkpoint(checkpoint) => checkpoint.config(),
        }
    }
}

/// How a run ended.
#[derive(Serialize, Clone, Debug)]
pub struct TrainingSummary {
    /// The folder of the run, which is that of the trained model once it is complete.
    pub out: PathBuf,
    /// Whether all steps are done; otherwise the run was asked to stop.
    pub complete: bool,
    /// Steps that are done, those of the runs that this one went on with included.
    pub steps: usize,
    /// Parameters of the model.
    pub parameters: usize,
    /// The loss of the last step of this run.
    pub loss: Option<f64>,
    /// The last measurement of this run.
    pub validation_loss: Option<f64>,
    /// The exponential of it.
    pub perplexity: Option<f64>,
    /// Seconds that this run took.
    pub seconds: f64,
    /// Tokens read per second, lately.
    pub tokens_per_second: Option<f64>,
    /// The newest checkpoint of this run.
    pub checkpoint: Option<PathBuf>,
}

/// A run that is ready to start. Nothing is written before it does.
///
/// ```no_run
/// use std::path::Path;
///
/// use burn::tensor::Device;
/// use burnformer::model::ModelConfig;
/// use burnformer::training::{Start, TrainingConfig, TrainingRun};
///
/// # fn main() -> Result<(), burnformer::Error> {
/// let model = ModelConfig::load_file("model.toml")?;
/// let config = TrainingConfig { steps: 200, ..TrainingConfig::default() };
/// let summary = TrainingRun::new(config, Start::Drawn(Box::new(model)), Path::new("book.txt"), Path::new("book-model"))?
///     .on_device(Device::default())
///     .run()?;
/// println!("perplexity {:?}", summary.perplexity);
/// # Ok(())
/// # }
/// ```
pub struct TrainingRun {
    config: TrainingConfig,
    start: Start,
    out: PathBuf,
    coder: TextCoder,
    text: TextStamp,
    windows: Arc<Windows>,
    validation: Option<Arc<Windows>>,
    devices: Vec<Device>,
    parallelism: Parallelism,
    resumes: bool,
    requested: Interrupter,
    renderer: Option<Box<dyn MetricsRenderer>>,
    observer: Observer,
}

impl TrainingRun {
    /// Prepares a run that trains on the text in `data` and writes to the folder `out`.
    ///
    /// # Errors
    ///
    /// When the configuration does not fit the model, the tokenizer does not, or the text is missing, no text or too short.
    pub fn new(config: TrainingConfig, start: Start, data: &Path, out: &Path) -> Result<Self, Error> {
        config.validate_for(start.config())?;
        let coder = match (&config.tokenizer, &start) {
            (Some(name), _) => TextCoder::open(name)?,
            (None, Start::Checkpoint(checkpoint)) => TextCoder::of_checkpoint(checkpoint)?,
            (None, Start::Drawn(_)) => TextCoder::bytes(),
        };
        let (tokens, vocab_size) = (coder.vocab_size(), start.config().vocab_size());
        if tokens > vocab_size {
            return Err(Error::Input(format!(
                "the tokenizer has {tokens} tokens and the model's vocabulary {vocab_size}; set \
                 `model.embedding.vocab_size = {tokens}` or name another tokenizer"
            )));
        }
        let tokens = read_tokens(&coder, data, vocab_size)?;
        let text = TextStamp::of(&tokens);
        let (tokens, validation) = split(&config, &coder, data, tokens, vocab_size)?;
        let windows = |tokens: Vec<u32>| Arc::new(Windows::new(tokens.into(), config.seq, config.seed));
        Ok(Self {
            windows: windows(tokens),
            validation: validation.map(windows),
            config,
            start,
            out: out.to_owned(),
            coder,
            text,
            devices: vec![host_device()],
            parallelism: Parallelism::Single,
            resumes: false,
            requested: Interrupter::new(),
            renderer: None,
            observer: Box::new(|_| ()),
        })
    }

    /// The same run on a device. Default: the host's.
    #[must_use]
    pub fn on_device(self, device: Device) -> Self {
        self.on_devices(vec![device], Parallelism::Single)
    }

    /// The same run on several devices.
    #[must_use]
    pub fn on_devices(mut self, devices: Vec<Device>, parallelism: Parallelism) -> Self {
        (self.devices, self.parallelism) = (devices, parallelism);
        self
    }

    /// The same run, going on from its newest checkpoint where `resumes`. Default: it begins in a new folder.
    #[must_use]
    pub fn resuming(mut self, resumes: bool) -> Self {
        self.resumes = resumes;
        self
    }

    /// The same run, shown by a renderer of burn-train. Default: not shown.
    #[must_use]
    pub fn shown_by(mut self, renderer: Box<dyn MetricsRenderer>) -> Self {
        self.renderer = Some(renderer);
        self
    }

    /// The same run; `observer` is told of steps, measurements, samples and checkpoints.
    #[must_use]
    pub fn observed_by(mut self, observer: impl FnMut(&TrainingEvent) + Send + 'static) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// A handle that asks the run to stop: it ends the step it is in, writes a checkpoint and returns.
    pub fn interrupter(&self) -> Interrupter {
        self.requested.clone()
    }

    /// Trains.
    ///
    /// # Errors
    ///
    /// When the folder is not as it must be, there is nothing to go on from or it belongs to another run, a loss or
    /// gradient is not finite, something cannot be written, or the model cannot be run on the devices. What was written
    /// before stays.
    pub fn run(self) -> Result<TrainingSummary, Error> {
        let began = Instant::now();
        self.check_devices()?;
        let store = CheckpointStore::new(self.out.join(CHECKPOINTS), self.config.checkpoints.keep);
        let resumed = if self.resumes { Some(self.find_state(&store)?) } else { None };
        if resumed.is_none() {
            check_is_free(&self.out)?;
        }
        let done = resumed.as_ref().map_or(0, |(_, state)| state.step);
        let model = self.model(resumed.as_ref().map(|(folder, _)| folder.as_path()))?;
        let parameters = model.num_params();
        let mut optimizer = self.config.optimizer.init(&model);
        if let Some((folder, _)) = &resumed {
            optimizer = optimizer.load_record(read_optimizer(folder)?);
        }

        store.prepare()?;
        write_json(&self.out.join(CONFIG), &self.config)?;
        let log = MetricsLog::open(&self.out.join(METRICS), done)?;
        let Self { config, out, coder, text, windows, validation, devices, parallelism, requested, .. } = self;
        let interrupter = Interrupter::new();
        let count = validation.as_ref().map_or(0, |windows| windows.per_pass().min(config.validation.windows));
        let validation = ValidationLoader { windows: validation, count, batch: config.batch, stop: requested.clone() };
        let steps = StepLoader {
            windows,
            seed: config.seed,
            batch: config.batch,
            accumulation: config.accumulation,
            steps: config.steps,
            steps_per_epoch: config.validation.every,
            devices: devices.len(),
            device: 0,
            given: AtomicUsize::new(done),
        };
        let plan = Plan {
            config: config.clone(),
            coder: coder.clone(),
            store,
            text,
            done,
            copies: parallelism.copies(devices.len()),
            requested,
            interrupter: interrupter.clone(),
        };
        let session = Session::new(plan, log, self.observer);
        let learner = Learner::new(
            LanguageModel::new(model, session.clone()),
            optimizer,
            config.schedule.init(config.steps, done),
        );
        let mut training = SupervisedTraining::new(&out, Arc::new(steps), Arc::new(validation))
            .num_epochs(config.steps.div_ceil(config.validation.every))
            .checkpoint(done / config.validation.every)
            .with_training_strategy(TrainingStrategy::Default(parallelism.strategy(&devices)))
            .with_interrupter(interrupter)
            .with_application_logger(None)
            .with_metric_logger(Silence);
        if config.recompute_activations {
            training = training.gradient_checkpointing();
        }
        training = match self.renderer {
            Some(renderer) => with_gauges(training, &session).renderer(renderer),
            None => training.renderer(Box::new(Silence)),
        };
        let result = training.launch(learner);

        let Outcome { steps, last, validation, checkpoint, failure } = session.outcome();
        if let Some(failure) = failure {
            return Err(failure);
        }
        if let Some(error) = result.error {
            return Err(Error::Training(error.to_string()));
        }
        let complete = done + steps == config.steps;
        if complete {
            write_model(&result.model.model, config.lora.as_ref(), &coder, &out)?;
        }
        Ok(TrainingSummary {
            out,
            complete,
            steps: done + steps,
            parameters,
            loss: last.map(|StepReport { loss, .. }| loss),
            validation_loss: validation.map(|ValidationReport { validation_loss, .. }| validation_loss),
            perplexity: validation.map(|ValidationReport { perplexity, .. }| perplexity),
            seconds: began.elapsed().as_secs_f64(),
            tokens_per_second: last.map(|StepReport { tokens_per_second, .. }| tokens_per_second),
            checkpoint,
        })
    }

    fn check_devices(&self) -> Result<(), Error> {
        let (devices, batch) = (self.devices.len(), self.config.batch);
        if devices == 0 || (self.parallelism == Parallelism::Single && devices != 1) {
            return Err(Error::Training(format!("{:?} does not run on {devices} devices", self.parallelism)));
        }
        let is_distributed = self.parallelism == Parallelism::DistributedDataParallel;
        if is_distributed && let Some(device) = self.devices.iter().find(|device| !has_distributed_parameters(device)) {
            return Err(Error::Training(format!(
                "distributed data parallelism does not work on {}; share the batch in another way (`--parallel multi`), or \
                 serve the device (`burnformer serve-device`) and name it `remote:`",
                device_label(device)
            )));
        }
        if !batch.is_multiple_of(devices) {
            return Err(Error::Training(format!(
                "`batch` must be a multiple of the number of devices, which share it; got {batch} for {devices} devices"
            )));
        }
        Ok(())
    }

    /// The newest checkpoint of this run.
    fn find_state(&self, store: &CheckpointStore) -> Result<(PathBuf, SavedState), Error> {
        let folder = store.latest()?.ok_or_else(|| {
            let problem = "holds no checkpoint to go on from; leave out `--resume` to begin in a new folder";
            Error::file(&self.out, problem)
        })?;
        let state = read_state(&folder)?;
        let of_other = |what: String| {
            let problem = format!("is of another run: {what}; go on with what it began with, or begin in a new folder");
            Err(Error::file(&folder, problem))
        };
        if let Some(key) = self.config.first_difference(&state.config) {
            return of_other(format!("`{key}` differs"));
        }
        if self.text != state.text {
            let (is, was) = (self.text.tokens, state.text.tokens);
            return of_other(format!("the text differs ({is} tokens now, {was} tokens then)"));
        }
        Ok((folder, state))
    }

    /// The model as it starts, on the first device, after it has read a window once.
    fn model(&self, resumed: Option<&Path>) -> Result<Transformer, Error> {
        let (host, device) = (host_device(), &self.devices[0]);
        let load = |checkpoint: &Checkpoint| -> Result<Transformer, Error> {
            let (model, report) = checkpoint.load(&host, FloatDType::F32)?;
            match report.not_finite.first() {
                Some(name) => {
                    Err(Error::Training(format!("tensor `{name}` of the checkpoint holds NaN or infinite numbers")))
                }
                None => Ok(model),
            }
        };
        // Adapters are trained beside weights that stay what they were at the start.
        let whole = resumed.filter(|_| self.config.lora.is_none());
        host.seed(self.config.seed);
        let model = match (whole, &self.start) {
            (Some(folder), _) => load(&Checkpoint::open(folder)?)?,
            (None, Start::Checkpoint(checkpoint)) => load(checkpoint)?,
            (None, Start::Drawn(config)) => config.init(&host),
        };
        let model = match (&self.config.lora, resumed) {
            (None, _) => model,
            (Some(lora), None) => lora.apply(model)?,
            (Some(_), Some(folder)) => load_adapters(model, folder)?,
        };
        model.check_fits(device)?;
        let model = trainable(model, self.config.recompute_activations).fork(device);
        window_loss(&model, &[self.windows.in_order(0)])?;
        Ok(model)
    }
}
