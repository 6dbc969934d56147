//! `burnformer plot gradients`

use burnformer::Error;
use burnformer::gradient_norms::{BlockPart, GradientNorms};
use burnformer::plot::{AxisScale, Series, check_target, gradient_norms};
use clap::Args;

use super::{Target, title_of};
use crate::Outcome;
use crate::arguments::Compute;
use crate::model_argument::ModelArgument;
use crate::text_input::TextSource;

/// Draw the norm of the gradient of the next-token loss in each layer.
#[derive(Args)]
#[command(after_help = "\
One line for each model and part. Parts of a block are block, attention, cross-attention, feed-forward, norms, query, key, \
value, output, gate, up and down. Weights are random unless a MODEL is a checkpoint.

Examples:
  burnformer plot gradients gpt2 --seq 32 --out gradients.png
  burnformer plot gradients pre-norm.toml post-norm.toml --seq 64 --parts down --log --out gradients.svg")]
pub struct Arguments {
    /// Presets, configuration files, checkpoint folders or GGUF files.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    #[command(flatten)]
    text: TextSource,
    /// Parts of blocks, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "block")]
    parts: Vec<String>,
    /// Draw norms on a logarithmic axis.
    #[arg(long)]
    log: bool,
    /// Seed of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    compute: Compute,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { models, text, parts, log, seed, target, compute } = arguments;
    check_target(&target.out)?;
    let parts = parts.iter().map(|part| part.parse()).collect::<Result<Vec<BlockPart>, _>>()?;
    let plain = compute.open()?;
    let recording = crate::arguments::Target { device: plain.device.clone().autodiff(), ..plain };
    let arguments = models.iter().map(|model| ModelArgument::resolve(model)).collect::<Result<Vec<_>, _>>()?;
    let mut series = Vec::new();
    for (model, argument) in models.iter().zip(&arguments) {
        let tokens = text.read(argument, seed)?.ids;
        let norms = GradientNorms::of_next_tokens(&argument.build(&recording, seed)?, &[tokens])?;
        for part in &parts {
            if !norms.has(*part) {
                return Err(Error::Input(format!("the blocks of `{model}` have no {part}")));
            }
            let name = match (models.len(), parts.len()) {
                (1, _) => part.to_string(),
                (_, 1) => title_of(model),
                _ => format!("{}: {part}", title_of(model)),
            };
            series.push(Series::counted(name, &norms.by_layer(*part)));
        }
    }
    arguments.iter().for_each(|argument| argument.note_weights(seed, &compute.show));
    let title = target.title(|| match &models[..] {
        [model] => format!("Gradient norms of {}", title_of(model)),
        _ => "Gradient norms by layer".into(),
    });
    let scale = if log { AxisScale::Log } else { AxisScale::Linear };
    target.write(gradient_norms(title, series, scale).into(), &compute.show)
}
