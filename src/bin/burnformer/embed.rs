//! `burnformer embed`

use std::path::PathBuf;

use burnformer::Error;
use burnformer::sentence::{SentenceEncoder, cosine_similarity};
use clap::Args;
use serde::Serialize;

use crate::arguments::Compute;
use crate::model_argument::{ModelArgument, warn_of};
use crate::{Outcome, output};

/// Embed sentences.
#[derive(Args)]
#[command(after_help = "\
The folder holds a model for sentence embeddings: config.json, safetensors, tokenizer.json and, where it has them, \
modules.json, the configuration of the pooling and sentence_bert_config.json.

Examples:
  burnformer embed path/to/all-MiniLM-L6-v2 --text \"A man plays guitar.\" --text \"Somebody makes music.\"
  burnformer embed path/to/all-MiniLM-L6-v2 --texts-file sentences.txt --json")]
pub struct Arguments {
    /// Checkpoint folder.
    model: String,
    /// A text, or several.
    #[arg(long, value_name = "TEXT", num_args = 1.., required_unless_present = "texts_file")]
    text: Vec<String>,
    /// A file with one text per line.
    #[arg(long, value_name = "FILE")]
    texts_file: Option<PathBuf>,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Serialize)]
struct Report {
    embeddings: Vec<Vec<f32>>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text: mut texts, texts_file, compute } = arguments;
    if let Some(path) = texts_file {
        let file = std::fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
        texts.extend(file.lines().map(str::to_owned));
    }
    let argument = ModelArgument::resolve(&model)?;
    let folder = argument.folder().ok_or_else(|| {
        Error::Input(format!("`{model}` has no weights and no tokenizer; name the folder of a sentence model"))
    })?;
    let target = compute.open()?;
    let encoder = SentenceEncoder::open(folder, &target.device, target.dtype)?;
    warn_of(encoder.not_finite(), target.quiet);
    let report = Report { embeddings: encoder.encode(&texts)? };
    if compute.show.json {
        output::print_json(&report)?;
    } else {
        output::print(&text(&texts, &report.embeddings))?;
    }
    Ok(Outcome::Done)
}

/// The start of each embedding, and how alike they are.
fn text(texts: &[String], embeddings: &[Vec<f32>]) -> String {
    let mut lines = Vec::new();
    for (index, (text, embedding)) in texts.iter().zip(embeddings).enumerate() {
        let start = output::numbers(embedding.iter().take(8).map(|value| f64::from(*value)));
        lines.push(format!("{index}: {text}\n   {start} ... ({} numbers)", embedding.len()));
    }
    lines.push("cosine similarity:".into());
    for (row, a) in embeddings.iter().enumerate() {
        let cells = embeddings.iter().map(|b| format!("{:8.4}", cosine_similarity(a, b)));
        lines.push(format!("{row:3} {}", cells.collect::<String>()));
    }
    lines.join("\n")
}
