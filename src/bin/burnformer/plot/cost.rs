//! `burnformer plot cost`

use burnformer::Error;
use burnformer::cost::{CostOptions, CostReport, LengthCost, over_lengths};
use burnformer::model::ModelConfig;
use burnformer::plot::{Series, check_target, costs};
use clap::Args;

use super::{Target, title_of};
use crate::Outcome;
use crate::arguments::{Row, Show, positive};
use crate::model_argument::ModelArgument;

/// Draw the operations of a forward over sequence length, by part.
#[derive(Args)]
#[command(after_help = "\
Scores count every pair of query and key; where a model has windows, another line counts the visible pairs. A dashed line \
marks the length from which the scores of a block take more than its products with weights.

Examples:
  burnformer plot cost llama-2-7b --out cost.png
  burnformer plot cost gpt2 --lengths 64,128,256,512,1024 --batch 8 --out cost.svg")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file; its weights are not read.
    model: String,
    /// Sequence lengths, separated by commas [default: 128 to 131,072 in steps of √2].
    #[arg(long, value_name = "NUMBERS")]
    lengths: Option<Row<usize>>,
    /// Number of sequences.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    batch: usize,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    show: Show,
}

/// The powers of two that the usual lengths begin and end with.
const SHORTEST: u32 = 7;
const LONGEST: u32 = 17;

/// Counts of longer sequences would not fit in 64 bits.
const MOST_TOKENS: usize = 1 << 28;

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, lengths, batch, target, show } = arguments;
    check_target(&target.out)?;
    let argument = ModelArgument::resolve(&model)?;
    let config = argument.config();
    if config.patches.is_some() {
        return Err(Error::Input(
            "the model reads images, whose size it sets, so its cost is that of one length".into(),
        ));
    }
    let mut lengths = lengths.map_or_else(usual_lengths, |row| row.0);
    lengths.sort_unstable();
    lengths.dedup();
    if lengths.is_empty() || lengths.iter().any(|len| *len == 0 || len.saturating_mul(batch) > MOST_TOKENS) {
        let problem = format!("--lengths must be numbers from 1 on, and a batch at most {MOST_TOKENS} tokens");
        return Err(Error::Input(problem));
    }
    let marks = crossover(config)?.map(|len| (len as f64, format!("scores overtake weights at {len}")));
    let series = lines(config, &over_lengths(config, batch, &lengths));
    let title = target.title(|| format!("Cost of {}", title_of(&model)));
    target.write(costs(title, series, marks.into_iter().collect()).into(), &show)
}

fn usual_lengths() -> Vec<usize> {
    (2 * SHORTEST..=2 * LONGEST).map(|half| 2f64.powf(f64::from(half) / 2.0).round() as usize).collect()
}

/// The length from which on the scores of a block without a window take more than its products with weights.
fn crossover(config: &ModelConfig) -> Result<Option<u64>, Error> {
    let report = CostReport::new(config, &CostOptions::default())?;
    let block = report.blocks.iter().find(|block| !block.in_encoder && block.window.is_none());
    Ok(block.and_then(|block| block.crossover.full))
}

/// One line for each part that the model has.
fn lines(config: &ModelConfig, costs: &[LengthCost]) -> Vec<Series> {
    type Part = (&'static str, fn(&LengthCost) -> u64);
    let parts: [Part; 5] = [
        ("projections", |cost| cost.projections),
        ("attention scores", |cost| cost.scores),
        ("feed-forward", |cost| cost.feed_forward),
        ("head", |cost| cost.head),
        ("scores of visible pairs", |cost| cost.visible_scores),
    ];
    let is_windowed = config.layers.iter().any(|layer| layer.window.is_some());
    let shown = parts.into_iter().take(if is_windowed { parts.len() } else { parts.len() - 1 });
    let lines = shown.map(|(name, part)| {
        let points = costs.iter().map(|cost| [cost.seq as f64, part(cost) as f64]).collect();
        Series { name: name.into(), points }
    });
    lines.filter(|line| line.points.iter().any(|[_, flop]| *flop > 0.0)).collect()
}
