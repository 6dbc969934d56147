//! `burnformer plot`

use std::path::{Path, PathBuf};

use burnformer::Error;
use burnformer::head_roles::{HeadId, HeadRole, HeadScores, attention_patterns, head_scores};
use burnformer::model::{AttentionPart, ModelConfig, Transformer};
use burnformer::plot::{
    AttentionPanel, HeatMap, LARGEST_SIDE, Picture, RoleMap, attention, check_target, positions, save, score_map,
};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::arguments::{Compute, Row, Show, positive};
use crate::model_argument::ModelArgument;
use crate::progress::LoadingBar;
use crate::text_input::{LabelledTokens, TextSource};
use crate::{Outcome, output};

/// Draw positions, attention or head roles as PNG or SVG.
#[derive(Args)]
#[command(after_help = "\
Examples:
  burnformer plot positions --out positions.png
  burnformer plot attention path/to/checkpoint --text \"The cat sat on the mat.\" --layers 0,5 --heads 1,2 --out attention.svg
  burnformer plot heads model.gguf --text \"The cat sat on the mat.\" --out heads.png")]
pub struct Arguments {
    #[command(subcommand)]
    picture: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Positions(PositionArguments),
    Attention(Box<AttentionArguments>),
    Heads(Box<HeadArguments>),
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

/// Draw the attention weights of heads on a text.
#[derive(Args)]
#[command(after_help = "\
Without --layers and --heads, the clearest head of each role that `burnformer heads` finds is drawn. --heads takes numbers, \
which are drawn for each of --layers, or single heads as LAYER.HEAD (with encoder. or cross. before it in a model of encoder \
and decoder).

Examples:
  burnformer plot attention path/to/checkpoint --text \"The cat sat on the mat.\" --out attention.png
  burnformer plot attention model.gguf --text \"The cat sat on the mat.\" --layers 0,5 --heads 1,2 --out attention.svg
  burnformer plot attention model.gguf --text \"The cat sat on the mat.\" --heads 3.1,5.0 --out attention.svg")]
struct AttentionArguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    #[command(flatten)]
    text: TextSource,
    /// Layers, separated by commas [default with --heads: all].
    #[arg(long, value_name = "NUMBERS")]
    layers: Option<Row<usize>>,
    /// Heads, separated by commas [default with --layers: all].
    #[arg(long, value_name = "HEADS")]
    heads: Option<String>,
    /// Seed of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    compute: Compute,
}

/// Draw what each head does, or one of its scores.
#[derive(Args)]
struct HeadArguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    #[command(flatten)]
    text: TextSource,
    /// Draw this score in place of the role: `previous_token`, `next_token`, `first_token`, `induction`, `duplicate_token`,
    /// `self` or `entropy`.
    #[arg(long, value_name = "NAME", value_parser = score)]
    score: Option<HeadRole>,
    /// Seed of the repeated tokens, of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    compute: Compute,
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

fn score(text: &str) -> Result<HeadRole, String> {
    let named = [
        ("previous_token", HeadRole::PreviousToken),
        ("next_token", HeadRole::NextToken),
        ("first_token", HeadRole::FirstToken),
        ("induction", HeadRole::Induction),
        ("duplicate_token", HeadRole::DuplicateToken),
        ("self", HeadRole::OwnToken),
        ("entropy", HeadRole::Uniform),
    ];
    let names = named.map(|(name, _)| name).join(", ");
    let found = named.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, role)| role).ok_or_else(|| format!("there are the scores {names}"))
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    match arguments.picture {
        Kind::Positions(arguments) => draw_positions(&arguments),
        Kind::Attention(arguments) => draw_attention(*arguments),
        Kind::Heads(arguments) => draw_heads(*arguments),
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

    /// The name of the model, for a title.
    fn name(&self, given: &str) -> String {
        Path::new(given).file_stem().map_or_else(|| given.to_owned(), |name| name.to_string_lossy().into_owned())
    }

    fn scores(&self, seed: u64) -> Result<Vec<HeadScores>, Error> {
        head_scores(&self.model, &self.tokens.head_input(&self.argument, seed))
    }
}

fn draw_attention(arguments: AttentionArguments) -> Result<Outcome, Error> {
    let AttentionArguments { model, text, layers, heads, seed, target, compute } = arguments;
    check_target(&target.out)?;
    let reading = Reading::open(&model, text, seed, &compute)?;
    let config = reading.argument.config();
    let chosen = match (layers, heads) {
        (None, None) => clearest(&reading.scores(seed)?),
        (layers, heads) => chosen_heads(config, layers.map(|row| row.0), heads.as_deref())?,
    };
    let ids: Vec<HeadId> = chosen.iter().map(|(id, _)| *id).collect();
    let [first, ..] = ids[..] else {
        return Err(Error::Input("no head has a clear role on this text; choose some with --layers or --heads".into()));
    };
    if let Some(other) = ids.iter().find(|id| (id.part == AttentionPart::Cross) != (first.part == AttentionPart::Cross))
    {
        let problem = format!("{first} and {other} look at different texts; draw them one by one");
        return Err(Error::Input(problem));
    }
    let input = reading.tokens.head_input(&reading.argument, seed);
    let patterns = attention_patterns(&reading.model, &input, &ids)?;
    let panel = |((id, title), pattern): (&(HeadId, String), _)| AttentionPanel {
        title: title.clone(),
        pattern,
        is_causal: id.part == AttentionPart::Decoder,
    };
    let panels: Vec<AttentionPanel> = chosen.iter().zip(patterns).map(panel).collect();
    let title = target.title(|| format!("Attention of {}", reading.name(&model)));
    let [queries, keys] = reading.tokens.labels(first.part);
    reading.argument.note_weights(seed, &compute.show);
    target.write(attention(title, &panels, queries, keys).into(), &compute.show)
}

/// The clearest head of each role, of the part that has the most of them.
fn clearest(scores: &[HeadScores]) -> Vec<(HeadId, String)> {
    let own: Vec<&HeadScores> = scores.iter().filter(|head| head.part != AttentionPart::Cross).collect();
    let last = own.iter().map(|head| head.part).max();
    let of_role = |role: HeadRole| {
        let heads = own.iter().filter(|head| head.role == role && Some(head.part) == last);
        let best = heads.max_by(|a, b| role.score(a).unwrap_or(0.0).total_cmp(&role.score(b).unwrap_or(0.0)));
        best.map(|head| (head.id(), format!("{} (layer {}, head {})", role.label(), head.layer, head.head)))
    };
    HeadRole::ALL.into_iter().filter(|role| *role != HeadRole::Mixed).filter_map(of_role).collect()
}

/// The heads that the flags name, with what stands above them.
fn chosen_heads(
    config: &ModelConfig,
    layers: Option<Vec<usize>>,
    heads: Option<&str>,
) -> Result<Vec<(HeadId, String)>, Error> {
    let main = config.attention_part();
    let title = |id: HeadId| {
        let part = if id.part == main { String::new() } else { format!("{} ", id.part) };
        (id, format!("{part}layer {}, head {}", id.layer, id.head))
    };
    if let Some(list) = heads.filter(|list| list.contains('.')) {
        if layers.is_some() {
            let problem = "--heads names layers already; leave out --layers, or give plain numbers of heads";
            return Err(Error::Input(problem.into()));
        }
        let parse = |text| HeadId::parse(text, main).map_err(Error::Input);
        return list.split(',').map(|text| parse(text).map(title)).collect();
    }
    let numbers = match heads {
        Some(list) => list.parse::<Row<usize>>().map_err(|problem| Error::Input(format!("--heads: {problem}")))?.0,
        None => (0..config.attention.n_heads).collect(),
    };
    let layers = layers.unwrap_or_else(|| (0..config.n_layers).collect());
    let of_layer = |layer: usize| numbers.iter().map(move |head| HeadId { part: main, layer, head: *head });
    Ok(layers.into_iter().flat_map(of_layer).map(title).collect())
}

fn draw_heads(arguments: HeadArguments) -> Result<Outcome, Error> {
    let HeadArguments { model, text, score, seed, target, compute } = arguments;
    check_target(&target.out)?;
    let reading = Reading::open(&model, text, seed, &compute)?;
    let heads = reading.scores(seed)?;
    let name = reading.name(&model);
    reading.argument.note_weights(seed, &compute.show);
    let picture = match score {
        None => RoleMap { title: target.title(|| format!("What the heads of {name} do")), heads }.into(),
        Some(role) => {
            let title = target.title(|| format!("{name}: {}", role.label()));
            score_map(title, &heads, role).into()
        }
    };
    target.write(picture, &compute.show)
}
