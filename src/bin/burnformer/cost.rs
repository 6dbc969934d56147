//! `burnformer cost`

use burnformer::Error;
use burnformer::backend::{float_dtype, float_dtype_named};
use burnformer::cost::{CostOptions, CostReport, Machine};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Show, default_backend, open_working, positive};
use crate::cost_text::{comparison, document};
use crate::model_argument::ModelArgument;
use crate::quantity::Quantity;
use crate::{Outcome, output};

/// Say what a model costs: parameters, operations, memory, training, time.
#[derive(Args)]
#[command(after_help = "\
Everything comes from the configuration; no weights are made or read. Operations are those of matrix products, a \
multiplication with its addition counted as two. `full` counts every pair of query and key, as plain implementations \
compute; `visible` only those that causality and windows leave visible.

Numbers may be written as 2e12, 300B, 10T or 400G. With --json, one MODEL gives an object, several give a list of them.

Examples:
  burnformer cost llama-2-7b --seq 4096
  burnformer cost llama-2-7b --seq 32768 --train-tokens 2T --parameters 7B --json
  burnformer cost gpt2 llama-2-7b llama-2-70b mistral-7b
  burnformer cost qwen3-30b-a3b --dtype bf16 --batch 8 --peak-flops 1e15 --bandwidth 3.3T
  burnformer cost smollm2-135m --measure --backend flex")]
pub struct Arguments {
    /// Presets, configuration files, checkpoint folders or GGUF files; several are compared.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Sequences.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    batch: usize,
    /// Tokens of each sequence [default: 2048, or the longest the model was made for].
    #[arg(long, value_name = "N", value_parser = positive)]
    seq: Option<usize>,
    /// Tokens that the encoder of an encoder-decoder reads [default: as --seq].
    #[arg(long, value_name = "N", value_parser = positive)]
    source_seq: Option<usize>,
    /// Number type of weights, activations and cache: f32, f64, f16 or bf16.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: String,
    /// Tokens of a training run [default: 20 per parameter].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    train_tokens: Option<Quantity>,
    /// The N of the rule 6·N·D [default: the parameters that a token passes through].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    parameters: Option<Quantity>,
    /// Floating-point operations per second of a machine, for times.
    #[arg(long, value_name = "N", requires = "bandwidth", allow_hyphen_values = true)]
    peak_flops: Option<Quantity>,
    /// Bytes per second that its memory moves.
    #[arg(long, value_name = "N", requires = "peak_flops", allow_hyphen_values = true)]
    bandwidth: Option<Quantity>,
    /// Measure both on this machine.
    #[arg(long, conflicts_with = "peak_flops")]
    measure: bool,
    /// Backend to measure [default: flex].
    #[arg(long, value_name = "NAME", requires = "measure")]
    backend: Option<String>,
    #[command(flatten)]
    show: Show,
}

/// The cost of the model that was called so.
#[derive(Serialize)]
struct Named<'a> {
    model: &'a str,
    #[serde(flatten)]
    cost: &'a CostReport,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let machine = machine(&arguments)?;
    let Arguments { models, batch, seq, source_seq, dtype, train_tokens, parameters, show, .. } = arguments;
    let options = CostOptions {
        batch,
        seq,
        source: source_seq,
        dtype: float_dtype_named(&dtype)?,
        train_tokens: train_tokens.map(|tokens| tokens.0),
        parameters: parameters.map(|parameters| parameters.0),
        machine,
    };
    let mut costs = Vec::with_capacity(models.len());
    for model in models {
        let report =
            CostReport::new(ModelArgument::resolve(&model)?.config(), &options).map_err(|error| match error {
                Error::Input(problem) => Error::Input(format!("`{model}`: {problem}")),
                error => error,
            })?;
        costs.push((model, report));
    }
    match (&costs[..], show.json) {
        ([(model, cost)], true) => output::print_json(&Named { model, cost })?,
        (costs, true) => {
            output::print_json(&costs.iter().map(|(model, cost)| Named { model, cost }).collect::<Vec<_>>())?;
        }
        ([(model, cost)], false) => output::print(&document(model, cost))?,
        (costs, false) => output::print(&comparison(costs))?,
    }
    Ok(Outcome::Done)
}

/// The machine that is described or to be measured.
fn machine(arguments: &Arguments) -> Result<Option<Machine>, Error> {
    if let (Some(peak_flops), Some(bandwidth)) = (arguments.peak_flops, arguments.bandwidth) {
        return Machine::new(peak_flops.0, bandwidth.0).map(Some);
    }
    if !arguments.measure {
        return Ok(None);
    }
    let name = default_backend(arguments.backend.as_deref())?;
    let device = open_working(&name)?;
    let dtype = float_dtype(&arguments.dtype, &name, &device)?;
    let machine = Machine::measure(&device, dtype)?;
    arguments.show.note(format!("measured {name} in {}", arguments.dtype));
    Ok(Some(machine))
}
