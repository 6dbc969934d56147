//! `burnformer train`

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use burn::train::Interrupter;
use burnformer::Error;
use burnformer::adapters::{LoraConfig, Projection};
use burnformer::backend::DeviceName;
use burnformer::training::{
    ModelSource, Parallelism, SampleReport, Start, StepReport, TrainingConfig, TrainingEvent, TrainingRun,
    TrainingSummary, ValidationReport, dashboard,
};
use clap::{Args, ValueEnum};

use crate::arguments::{Show, default_backend, open_working, positive};
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Train a language model on a text.
#[derive(Args)]
#[command(after_help = "\
CONFIG is a TOML or JSON file (config/training holds some). Its `model` is a table as in `burnformer config show`, or the \
name of a preset, of a configuration file, or of a checkpoint whose weights training starts from. Paths in it are those \
from here. Flags come before what it says.

DIR then is the folder of a model, for `generate` and all other commands, with the log of the run in metrics.jsonl. \
DIR/checkpoints holds the newest states, each a model's folder too. A run that was stopped, by Ctrl-C or by force, goes \
on with --resume from the newest one, with the losses that it would have had. It ends with exit code 2 when a loss or \
gradient is not finite or something cannot be written; the checkpoints before stay.

On a terminal, burn-train's dashboard is shown, unless --plain, --json or --quiet is given; `q` in it stops the run. \
Several devices share the windows of a batch (--backend NAME,NAME --parallel multi).

Examples:
  burnformer train config/training/tiny.toml --data book.txt --out book-model
  burnformer train config/training/tiny.toml --data book.txt --out longer --steps 5000 --lr 5e-4 --quiet --json
  burnformer train config/training/tiny.toml --data book.txt --out book-model --resume
  burnformer train config/training/tiny.toml --from path/to/checkpoint --data notes.txt --out tuned --lr 1e-5
  burnformer train config/training/tiny.toml --from path/to/checkpoint --data notes.txt --out taught --lora 8
  burnformer generate book-model --prompt \"It was\" --temperature 0.8")]
pub struct Arguments {
    /// Configuration file of the run.
    config: PathBuf,
    /// The text, a UTF-8 file.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// The folder to write; it must not be there yet, or be empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on with the run in the folder from its newest checkpoint.
    #[arg(long)]
    resume: bool,
    /// Checkpoint that training starts from, in place of the configuration's model.
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
    /// Optimizer steps.
    #[arg(long, value_name = "N", value_parser = positive)]
    steps: Option<usize>,
    /// Windows that are computed at once.
    #[arg(long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Tokens of a window.
    #[arg(long, value_name = "N", value_parser = positive)]
    seq: Option<usize>,
    /// Batches whose gradients are averaged for one step.
    #[arg(long, value_name = "N", value_parser = positive)]
    accumulation: Option<usize>,
    /// The highest learning rate.
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Seed of weights, of the order of windows and of dropout.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Train adapters of this rank (LoRA) in place of all weights; they are saved alone and merged.
    #[arg(long, value_name = "RANK", value_parser = positive)]
    lora: Option<usize>,
    /// What the adapters learn is multiplied by ALPHA / RANK [default: 16]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    lora_alpha: Option<f64>,
    /// Projections with adapters: query, key, value, output, gate, up, down [default: query,value]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    lora_projections: Option<Vec<Projection>>,
    /// Steps between two checkpoints.
    #[arg(long, value_name = "N", value_parser = positive)]
    checkpoint_every: Option<usize>,
    /// Steps between two measurements on text that is not trained on.
    #[arg(long, value_name = "N", value_parser = positive)]
    validate_every: Option<usize>,
    /// Steps between two samples; 0 for none.
    #[arg(long, value_name = "N")]
    sample_every: Option<usize>,
    /// Text that samples continue.
    #[arg(long, value_name = "TEXT")]
    sample_prompt: Option<String>,
    /// Backend, with a device where it has several; several, separated by commas, with --parallel [default: flex]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    backend: Vec<String>,
    /// How several devices work together.
    #[arg(long, value_name = "HOW")]
    parallel: Option<Parallel>,
    /// Show plain lines, on a terminal too.
    #[arg(long)]
    plain: bool,
    /// Steps between two lines.
    #[arg(long, value_name = "N", default_value = "10", value_parser = positive)]
    line_every: usize,
    #[command(flatten)]
    show: Show,
}

#[derive(Clone, Copy, ValueEnum)]
enum Parallel {
    /// Gradients on all devices, the update on the first one.
    Multi,
    /// Gradients on all devices, the update of each parameter on one of them.
    Sharded,
    /// A model on each device, gradients reduced between them.
    Ddp,
}

impl From<Parallel> for Parallelism {
    fn from(parallel: Parallel) -> Self {
        match parallel {
            Parallel::Multi => Self::MultiDevice,
            Parallel::Sharded => Self::MultiDeviceSharded,
            Parallel::Ddp => Self::DistributedDataParallel,
        }
    }
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let config = arguments.config()?;
    let start = start(&arguments, &config)?;
    let run = TrainingRun::new(config.clone(), start, &arguments.data, &arguments.out)?;
    let (devices, parallelism) = arguments.devices()?;
    let run = run.on_devices(devices, parallelism).resuming(arguments.resume);
    stop_on_signal(&run.interrupter())?;
    let Arguments { plain, line_every, show, .. } = arguments;
    let is_shown = !plain && !show.json && !show.quiet && std::io::stdout().is_terminal();
    let run = if is_shown {
        let board = dashboard(run.interrupter());
        run.shown_by(board)
    } else if show.quiet {
        run
    } else {
        let steps = config.steps;
        run.observed_by(move |event| tell(event, steps, line_every))
    };
    let summary = run.run()?;
    if !summary.complete {
        show.note(format!("stopped after step {}; go on with --resume", summary.steps));
    }
    match show.json {
        true => output::print_json(&summary)?,
        false => output::print(&text(&summary))?,
    }
    Ok(Outcome::Done)
}

impl Arguments {
    /// What the file says, with what the flags say in its place.
    fn config(&self) -> Result<TrainingConfig, Error> {
        let mut config = TrainingConfig::load_file(&self.config)?;
        let set = |value: Option<usize>, of_file: &mut usize| *of_file = value.unwrap_or(*of_file);
        set(self.steps, &mut config.steps);
        set(self.batch, &mut config.batch);
        set(self.seq, &mut config.seq);
        set(self.accumulation, &mut config.accumulation);
        set(self.checkpoint_every, &mut config.checkpoints.every);
        set(self.validate_every, &mut config.validation.every);
        set(self.sample_every, &mut config.samples.every);
        config.seed = self.seed.unwrap_or(config.seed);
        if let Some(rate) = self.lr {
            config.schedule.learning_rate = rate;
        }
        if let Some(prompt) = &self.sample_prompt {
            config.samples.prompt.clone_from(prompt);
        }
        if let Some(rank) = self.lora {
            let of_file = config.lora.take().unwrap_or_default();
            config.lora = Some(LoraConfig {
                rank,
                alpha: self.lora_alpha.unwrap_or(of_file.alpha),
                projections: self.lora_projections.clone().unwrap_or(of_file.projections),
                ..of_file
            });
        }
        if let Some(from) = &self.from {
            config.model = Some(ModelSource::Named(from.clone()));
        }
        config.validate().map_err(|error| error.at(self.config.display()))?;
        Ok(config)
    }

    fn devices(&self) -> Result<(Vec<Device>, Parallelism), Error> {
        let names: Vec<DeviceName> = match self.backend.as_slice() {
            [] => vec![default_backend(None)?],
            names => names.iter().map(|name| name.parse()).collect::<Result<_, Error>>()?,
        };
        if names.len() > 1 && self.parallel.is_none() {
            return Err(Error::Input("several devices are named; say how they work together with `--parallel`".into()));
        }
        let devices = names.iter().map(open_working).collect::<Result<_, Error>>()?;
        Ok((devices, self.parallel.map_or(Parallelism::Single, Into::into)))
    }
}

/// What training starts from: what the configuration or `--from` names.
fn start(arguments: &Arguments, config: &TrainingConfig) -> Result<Start, Error> {
    let named = match &config.model {
        Some(ModelSource::Config(model)) => return Ok(Start::Drawn(model.clone())),
        Some(ModelSource::Named(name)) => ModelArgument::resolve(name)?,
        None => {
            let problem = "has no `model`: a table, or the name of a preset, file or checkpoint";
            return Err(Error::file(&arguments.config, problem));
        }
    };
    match named {
        ModelArgument::Checkpoint(_, checkpoint) => Ok(Start::Checkpoint(Arc::from(checkpoint))),
        ModelArgument::Config(_) if arguments.from.is_some() => {
            Err(Error::Input("`--from` names a model without weights; name a checkpoint folder".into()))
        }
        ModelArgument::Config(model) => Ok(Start::Drawn(model)),
    }
}

/// Ends the run with a checkpoint on Ctrl-C, and at once on the second one.
fn stop_on_signal(interrupter: &Interrupter) -> Result<(), Error> {
    let (interrupter, is_asked) = (interrupter.clone(), AtomicBool::new(false));
    let handler = move || {
        if is_asked.swap(true, Ordering::SeqCst) {
            std::process::exit(2);
        }
        interrupter.stop(Some("Ctrl-C"));
        output::to_stderr("stopping after this step; again to stop at once");
    };
    ctrlc::set_handler(handler).map_err(|error| Error::Training(format!("Ctrl-C cannot be handled: {error}")))
}

/// Prints what happened as a line on stderr.
fn tell(event: &TrainingEvent, steps: usize, line_every: usize) {
    match event {
        TrainingEvent::Step(report) => {
            let StepReport { step, loss, learning_rate, gradient_norm, tokens_per_second, seconds_left } = report;
            if *step == 1 || *step == steps || step.is_multiple_of(line_every) {
                output::to_stderr(&format!(
                    "step {step}/{steps}  loss {loss:.4}  lr {learning_rate:.2e}  gradient {gradient_norm:.3}  \
                     {tokens_per_second:.0} tokens/s  {} left",
                    duration(*seconds_left)
                ));
            }
        }
        TrainingEvent::Validation(ValidationReport { step, validation_loss, perplexity }) => {
            output::to_stderr(&format!(
                "step {step}/{steps}  validation loss {validation_loss:.4}  perplexity {perplexity:.3}"
            ));
        }
        TrainingEvent::Sample(SampleReport { step, sample }) => {
            output::to_stderr(&format!("step {step}/{steps}  sample: {}", sample.escape_debug()));
        }
        TrainingEvent::Checkpoint(_) => (),
    }
}

/// Seconds for people.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole % 3600 / 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

fn text(summary: &TrainingSummary) -> String {
    let mut parts =
        vec![format!("{}: {} steps, {} parameters", summary.out.display(), summary.steps, summary.parameters)];
    parts.extend(summary.loss.map(|loss| format!("loss {loss:.4}")));
    parts.extend(summary.validation_loss.map(|loss| format!("validation loss {loss:.4}")));
    parts.extend(summary.perplexity.map(|perplexity| format!("perplexity {perplexity:.3}")));
    parts.push(duration(summary.seconds));
    parts.join(", ")
}
