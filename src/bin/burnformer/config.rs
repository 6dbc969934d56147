//! `burnformer config`

use burnformer::Error;
use burnformer::model::{ModelConfig, preset_names, preset_text};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::arguments::Show;
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// List, show and check configurations.
#[derive(Args)]
#[command(
    arg_required_else_help = false,
    after_help = "\
Examples:
  burnformer config list
  burnformer config show gpt2 > mine.toml
  burnformer config check mine.toml"
)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the presets.
    List {
        #[command(flatten)]
        show: Show,
    },
    /// Print a configuration: a preset as it is written, a file or checkpoint with its defaults filled in.
    Show {
        /// Preset, configuration file, checkpoint folder or GGUF file.
        name: String,
        #[command(flatten)]
        show: Show,
    },
    /// Check a configuration; every fault is named.
    Check {
        /// Configuration file, preset, checkpoint folder or GGUF file.
        file: String,
        #[command(flatten)]
        show: Show,
    },
}

#[derive(Serialize)]
struct Preset {
    name: &'static str,
    parameters: u64,
    description: String,
}

#[derive(Serialize)]
struct Checked {
    ok: bool,
    parameters: u64,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    match arguments.action {
        Action::List { show } => list(&show),
        Action::Show { name, show } => print(&name, &show),
        Action::Check { file, show } => {
            let parameters = ModelArgument::resolve(&file)?.config().n_parameters();
            match show.json {
                true => output::print_json(&Checked { ok: true, parameters }),
                false => output::print(&format!("{file} is valid: {parameters} parameters")),
            }
        }
    }?;
    Ok(Outcome::Done)
}

fn list(show: &Show) -> Result<(), Error> {
    let mut presets = Vec::new();
    for name in preset_names() {
        let config = ModelConfig::preset(name)?;
        let (parameters, description) = (config.n_parameters(), config.description.unwrap_or_default());
        presets.push(Preset { name, parameters, description });
    }
    if show.json {
        return output::print_json(&presets);
    }
    let rows: Vec<_> = presets
        .into_iter()
        .map(|preset| [preset.name.to_owned(), preset.parameters.to_string(), preset.description])
        .collect();
    output::print(&output::table(["preset", "parameters", "what it is"], &rows))
}

fn print(name: &str, show: &Show) -> Result<(), Error> {
    let argument = ModelArgument::resolve(name)?;
    match preset_text(name) {
        _ if show.json => output::print_json(argument.config()),
        Ok(text) => output::print(text.trim_end()),
        Err(_) => output::print(argument.config().to_toml().trim_end()),
    }
}
