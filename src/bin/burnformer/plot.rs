//! `burnformer plot`

mod attention;
mod cost;
mod gradients;
mod heads;

use std::path::{Path, PathBuf};

use burnformer::Error;
use burnformer::head_roles::{HeadScores, head_scores};
use burnformer::model::Transformer;
use burnformer::plot::{HeatMap, LARGEST_SIDE, Picture, check_target, positions, save};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::arguments::{Compute, Show, positive};
use crate::model_argument::ModelArgument;
use crate::progress::LoadingBar;
use crate::text_input::{LabelledTokens, TextSource};
use crate::{Outcome, output};

/// Draw positions, attention, head roles, gradients or cost as PNG or SVG.
#[derive(Args)]
#[command(after_help = "\
Examples:
  burnformer plot positions --out positions.png
  burnformer plot attention path/to/checkpoint --text \"The cat sat on the mat.\" --layers 0,5 --heads 1,2 --out attention.svg
  burnformer plot heads model.gguf --text \"The cat sat on the mat.\" --out heads.png
  burnformer plot cost llama-2-7b --out cost.png
  burnformer plot gradients gpt2 --seq 32 --out gradients.png")]
pub struct Arguments {
    #[command(subcommand)]
    picture: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Positions(PositionArguments),
    Attention(Box<attention::Arguments>),
    Heads(Box<heads::Arguments>),
    Cost(cost::Arguments),
    Gradients(Box<gradients::Arguments>),
}

/// Draw the table of sinusoidal positions.
#[derive(Args)]
struct PositionArguments {
    /// Number of positions.
    #[arg(long, value_name = "N", default_value = "50", value_parser = positive)]
    positions: usize,
    /// Number of dimensions.
    #[arg(long, value_name = "N", default_value = "64", value_parser = positive)]
    d_model: usize,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    show: Show,
}

/// Where a picture goes.
#[derive(Args)]
struct Target {
    /// The file, ending with .png or .svg; it is replaced.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What stands above the picture.
    #[arg(long)]
    title: Option<String>,
    /// Width in pixels [default: what looks well].
    #[arg(long, value_name = "PIXELS", value_parser = side)]
    width: Option<u32>,
    /// Height in pixels [default: what looks well].
    #[arg(long, value_name = "PIXELS", value_parser = side)]
    height: Option<u32>,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    width: u32,
    height: u32,
}

impl Target {
    fn title(&self, usual: impl FnOnce() -> String) -> String {
        self.title.clone().unwrap_or_else(usual)
    }

    fn write(&self, picture: Picture, show: &Show) -> Result<Outcome, Error> {
        let [width, height] = picture.size();
        let [width, height] = [self.width.unwrap_or(width), self.height.unwrap_or(height)];
        save(picture, &self.out, Some([width, height]))?;
        match show.json {
            true => output::print_json(&Report { file: &self.out, width, height })?,
            false => show.note(format!("{}: {width} × {height}", self.out.display())),
        }
        Ok(Outcome::Done)
    }
}

/// The smallest side in which titles and labels leave room for anything else.
const SMALLEST_SIDE: u32 = 200;

fn side(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(side) if (SMALLEST_SIDE..=LARGEST_SIDE).contains(&side) => Ok(side),
        _ => Err(format!("must be a whole number from {SMALLEST_SIDE} to {LARGEST_SIDE}")),
    }
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    match arguments.picture {
        Kind::Positions(arguments) => draw_positions(&arguments),
        Kind::Attention(arguments) => attention::run(*arguments),
        Kind::Heads(arguments) => heads::run(*arguments),
        Kind::Cost(arguments) => cost::run(arguments),
        Kind::Gradients(arguments) => gradients::run(*arguments),
    }
}

fn draw_positions(arguments: &PositionArguments) -> Result<Outcome, Error> {
    let PositionArguments { positions: n_positions, d_model, target, show } = arguments;
    check_target(&target.out)?;
    if n_positions.saturating_mul(*d_model) > MOST_CELLS {
        return Err(Error::Input(format!("{n_positions} × {d_model} numbers are more than a picture can show")));
    }
    let picture = positions(*n_positions, *d_model);
    let title = target.title(|| picture.title.clone());
    target.write(HeatMap { title, ..picture }.into(), show)
}

/// A picture of the largest size has fewer pixels.
const MOST_CELLS: usize = 1 << 26;

/// What a model is and reads.
struct Reading {
    argument: ModelArgument,
    tokens: LabelledTokens,
    model: Transformer,
}

impl Reading {
    fn open(model: &str, text: TextSource, seed: u64, compute: &Compute) -> Result<Self, Error> {
        let argument = ModelArgument::resolve(model)?;
        let device = compute.open()?;
        let tokens = text.read(&argument, seed)?;
        argument.check_weights(tokens.ids.len())?;
        let bar = LoadingBar::new(&compute.show);
        let model = argument.build_with(&device, seed, &mut |progress| bar.show(progress))?;
        Ok(Self { argument, tokens, model })
    }

    fn scores(&self, seed: u64) -> Result<Vec<HeadScores>, Error> {
        head_scores(&self.model, &self.tokens.head_input(&self.argument, seed))
    }
}

/// What a model is called in a title.
fn title_of(model: &str) -> String {
    let path = Path::new(model);
    // Only files have an ending; names of presets and folders have dots in them.
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    name.map_or_else(|| model.to_owned(), |name| name.to_string_lossy().into_owned())
}
