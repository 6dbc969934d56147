//! The command line `burnformer`: a table of commands, each of which calls the library.
//!
//! Exit codes: 0 done, 1 a check did not hold, 2 wrong usage or bad input (one line on stderr says what).

mod arguments;
mod backends;
mod bench;
mod classify;
mod config;
mod convert;
mod cost;
mod cost_text;
mod embed;
mod fill_mask;
mod generate;
mod heads;
mod inspect;
mod last_resort;
mod logits;
mod model_argument;
mod output;
mod parity;
mod plot;
mod progress;
mod quantity;
mod random;
mod run;
#[cfg(feature = "remote")]
mod serve_device;
mod text_input;
mod train;
mod verify;

use std::process::ExitCode;

use burnformer::Error;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Transformer models that give the same numbers on every backend.
#[derive(Parser)]
#[command(
    name = "burnformer",
    version,
    arg_required_else_help = false,
    after_help = "\
A MODEL is the name of a preset (see `burnformer config list`), a configuration file (.toml or .json, also a config.json \
of the Hugging Face hub) or a folder with a checkpoint (config.json, weights, tokenizer). A folder that is called like a preset is `./NAME`.

Exit codes: 0 done; 1 a check did not hold; 2 wrong usage or bad input, said in one line on stderr.

Examples:
  burnformer backends
  burnformer run gpt2 --backend wgpu
  burnformer generate path/to/checkpoint --prompt \"The capital of France is\"
  burnformer verify path/to/checkpoint --golden golden.safetensors
  burnformer parity"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Backends(backends::Arguments),
    Run(run::Arguments),
    Logits(logits::Arguments),
    Verify(verify::Arguments),
    Parity(parity::Arguments),
    Embed(embed::Arguments),
    Classify(classify::Arguments),
    FillMask(fill_mask::Arguments),
    Generate(Box<generate::Arguments>),
    Heads(heads::Arguments),
    Plot(plot::Arguments),
    Train(Box<train::Arguments>),
    Bench(bench::Arguments),
    Cost(cost::Arguments),
    Config(config::Arguments),
    Inspect(inspect::Arguments),
    Convert(convert::Arguments),
    #[cfg(feature = "remote")]
    ServeDevice(serve_device::Arguments),
}

/// How a command ended that did what it was asked.
enum Outcome {
    Done,
    /// A comparison lies outside its tolerance.
    CheckFailed,
}

impl Outcome {
    fn of_check(ok: bool) -> Self {
        if ok { Self::Done } else { Self::CheckFailed }
    }
}

impl Command {
    fn run(self) -> Result<Outcome, Error> {
        match self {
            Self::Backends(arguments) => backends::run(arguments),
            Self::Run(arguments) => run::run(arguments),
            Self::Logits(arguments) => logits::run(arguments),
            Self::Verify(arguments) => verify::run(arguments),
            Self::Parity(arguments) => parity::run(arguments),
            Self::Embed(arguments) => embed::run(arguments),
            Self::Classify(arguments) => classify::run(arguments),
            Self::FillMask(arguments) => fill_mask::run(arguments),
            Self::Generate(arguments) => generate::run(*arguments),
            Self::Heads(arguments) => heads::run(arguments),
            Self::Plot(arguments) => plot::run(arguments),
            Self::Train(arguments) => train::run(*arguments),
            Self::Bench(arguments) => bench::run(arguments),
            Self::Cost(arguments) => cost::run(arguments),
            Self::Config(arguments) => config::run(arguments),
            Self::Inspect(arguments) => inspect::run(arguments),
            Self::Convert(arguments) => convert::run(arguments),
            #[cfg(feature = "remote")]
            Self::ServeDevice(arguments) => serve_device::run(arguments),
        }
    }
}

fn main() -> ExitCode {
    keep_wayland_quiet();
    let ended = last_resort::catch(|| match Cli::try_parse() {
        Ok(cli) => cli.command.run().map_err(|error| error.to_string()),
        Err(error) => answer(&error),
    });
    match ended {
        Ok(Ok(Outcome::Done)) => ExitCode::SUCCESS,
        Ok(Ok(Outcome::CheckFailed)) => ExitCode::from(1),
        Ok(Err(problem)) => fail(&problem),
        Err(panic) => fail(&explained(&panic)),
    }
}

/// What a panic most likely means: with remote devices that one of their servers is gone, otherwise a mistake.
fn explained(panic: &str) -> String {
    #[cfg(feature = "remote")]
    {
        let devices = burnformer::backend::open_remote_devices();
        let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
        if !names.is_empty() {
            return Error::backend(
                names.join(", "),
                format!("does not answer as it should ({panic}); does its server run?"),
            )
            .to_string();
        }
    }
    format!("internal error: {panic}; please report")
}

/// Vulkan drivers look for a Wayland display, whose library complains on stderr where this variable is not set.
fn keep_wayland_quiet() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: this is the first thing that the program does; no other thread reads the environment yet.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
}

/// Prints help and version, and turns a fault in the usage into an error of one line.
fn answer(error: &clap::Error) -> Result<Outcome, String> {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return output::print(text.trim_end()).map(|()| Outcome::Done).map_err(|error| error.to_string());
    }
    // The first paragraphs say what is wrong and what was probably meant.
    let is_said = |paragraph: &&str| !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more information");
    let said: Vec<&str> = text.split("\n\n").map(str::trim).filter(is_said).collect();
    Err(format!("{} (see `--help`)", said.join("; ").trim_start_matches("error: ")))
}

/// `text` without line breaks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fail(problem: &str) -> ExitCode {
    output::to_stderr(&format!("burnformer: error: {}", one_line(problem)));
    ExitCode::from(2)
}
