//! `burnformer convert`

use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnformer::Error;
use burnformer::pretrained::{ConvertOptions, Existing, Format};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::arguments::Show;
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Write a checkpoint in another form.
#[derive(Args)]
#[command(after_help = "\
The forms: `hub` is config.json and model.safetensors with the names that the family has on the Hugging Face hub, so that \
transformers loads it; `native` is this program's own configuration and names in model.safetensors; `pack` is the same in \
Burn's own model.bpk. Files of the tokenizer go along. Numbers keep the type that they are stored in unless --dtype says \
otherwise, and become f32 where they are packed (GGUF). --adapter merges adapters that were trained for the model into \
its weights, and writes `native` or `pack`.

The folder appears when everything is in it. --force replaces one that holds a model.

Examples:
  burnformer convert path/to/pytorch-checkpoint --out safetensors-checkpoint
  burnformer convert path/to/checkpoint --out small --dtype bf16
  burnformer convert path/to/checkpoint --out packed --to pack --json
  burnformer convert path/to/checkpoint --adapter path/to/adapters --out merged")]
pub struct Arguments {
    /// Checkpoint folder or GGUF file.
    model: String,
    /// The folder to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The form to write [default: hub, or native where the checkpoint is or adapters are merged].
    #[arg(long, value_name = "FORM")]
    to: Option<Form>,
    /// Number type of the weights [default: as they are stored].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// A folder with adapters to merge into the weights, of this program or of PEFT.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Replace the folder if it holds a model.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    show: Show,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Hub,
    Native,
    Pack,
}

#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    F16,
    Bf16,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    format: &'static str,
    dtype: String,
    tensors: usize,
    bytes: u64,
    files: Vec<String>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, out, to, dtype, adapter, force, show } = arguments;
    let ModelArgument::Checkpoint(_, checkpoint) = ModelArgument::resolve(&model)? else {
        return Err(Error::Input(format!("`{model}` has no weights to convert; name a checkpoint folder")));
    };
    let options = ConvertOptions {
        format: to.map(|to| match to {
            Form::Hub => Format::Hub,
            Form::Native => Format::Native,
            Form::Pack => Format::Pack,
        }),
        dtype: dtype.map(|dtype| match dtype {
            Precision::F32 => FloatDType::F32,
            Precision::F16 => FloatDType::F16,
            Precision::Bf16 => FloatDType::BF16,
        }),
        adapters: adapter,
        existing: if force { Existing::Replace } else { Existing::Keep },
    };
    let bar = bar(&show);
    let shown = bar.clone();
    let converted = checkpoint.convert(&out, &options, move |progress| {
        shown.set_length(progress.total as u64);
        shown.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    let converted = converted?;
    for name in &converted.not_finite {
        show.note(format!("warning: tensor `{name}` holds numbers that are NaN or infinite as {}", converted.dtype));
    }
    let report = Report {
        out,
        format: converted.format.name(),
        dtype: converted.dtype,
        tensors: converted.tensors,
        bytes: converted.bytes,
        files: converted.files,
    };
    match show.json {
        true => output::print_json(&report)?,
        false => output::print(&text(&report))?,
    }
    Ok(Outcome::Done)
}

/// A bar on stderr, where stderr is a terminal.
fn bar(show: &Show) -> ProgressBar {
    let target = if show.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("writing {bar:30} {pos}/{len} tensors");
    ProgressBar::with_draw_target(None, target).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn text(report: &Report) -> String {
    let Report { out, format, dtype, tensors, bytes, files } = report;
    let (size, unit) = if *bytes < 1_000_000 { (*bytes as f64 / 1e3, "kB") } else { (*bytes as f64 / 1e6, "MB") };
    format!("{}: {format}, {tensors} tensors, {dtype}, {size:.1} {unit}\n{}", out.display(), files.join("\n"))
}
