//! `burnformer fill-mask`

use burnformer::Error;
use burnformer::tasks::{MaskFiller, MaskedToken};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Compute, positive};
use crate::model_argument::{ModelArgument, warn_of};
use crate::{Outcome, output};

/// Predict the words that masks stand for.
#[derive(Args)]
#[command(after_help = "\
The folder holds a masked language model (BERT, RoBERTa, DistilBERT) with its tokenizer.json. A text may have several \
masks; each is filled by itself. The mask is written as the tokenizer has it: [MASK] or <mask>.

Examples:
  burnformer fill-mask path/to/bert --text \"Paris is the [MASK] of France.\"
  burnformer fill-mask path/to/roberta --text \"Paris is the <mask> of <mask>.\" --top-k 3 --json")]
pub struct Arguments {
    /// Checkpoint folder.
    model: String,
    /// A text with masks, or several.
    #[arg(long, value_name = "TEXT", num_args = 1.., required = true)]
    text: Vec<String>,
    /// How many words are given for each mask.
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    top_k: usize,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Serialize)]
struct Filled {
    text: String,
    masks: Vec<MaskedToken>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text: texts, top_k, compute } = arguments;
    let argument = ModelArgument::resolve(&model)?;
    let checkpoint = argument.trained()?;
    let target = compute.open()?;
    let filler = MaskFiller::new(checkpoint, &target.device, target.dtype)?;
    warn_of(filler.not_finite(), target.quiet);
    let filled = filler.fill(&texts, top_k)?;
    let filled: Vec<Filled> = texts.into_iter().zip(filled).map(|(text, masks)| Filled { text, masks }).collect();
    match compute.show.json {
        true => output::print_json(&filled)?,
        false => output::print(&filled.iter().map(text).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(Outcome::Done)
}

fn text(filled: &Filled) -> String {
    let mut lines = vec![filled.text.clone()];
    for mask in &filled.masks {
        let row = |candidate: &burnformer::tasks::Candidate| {
            [format!("{:.4}", candidate.score), candidate.token.trim().to_owned(), candidate.sequence.clone()]
        };
        let rows: Vec<[String; 3]> = mask.candidates.iter().map(row).collect();
        lines.push(output::table(["score", "token", "text"], &rows));
    }
    lines.join("\n")
}
