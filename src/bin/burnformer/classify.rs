//! `burnformer classify`

use std::path::PathBuf;

use burnformer::Error;
use burnformer::images::Images;
use burnformer::pretrained::TaskKind;
use burnformer::tasks::{Answer, Classifier, LabelScore, TextInput, TokenLabel};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Compute, positive};
use crate::model_argument::{ModelArgument, warn_of};
use crate::{Outcome, output};

/// Label texts, their tokens or images, or answer questions.
#[derive(Args)]
#[command(after_help = "\
What is done follows from the checkpoint: labels of whole texts or of images, labels of tokens, or answers. Labels have \
the names that config.json gives them. Images are a tensor `pixel_values` of [batch, channels, height, width], prepared \
as the model expects them.

Examples:
  burnformer classify path/to/distilbert-sst2 --text \"A very good film.\" --text \"I fell asleep.\"
  burnformer classify path/to/bert-mnli --text \"Anna lives in Rome.\" --pair \"Anna lives in Italy.\" --top-k 1 --json
  burnformer classify path/to/bert-ner --text \"Anna lives in Rome.\"
  burnformer classify path/to/bert-squad --question \"Where does Anna live?\" --context \"Anna lives in Rome.\"
  burnformer classify path/to/vit --pixels images.safetensors")]
pub struct Arguments {
    /// Checkpoint folder.
    model: String,
    /// A text, or several.
    #[arg(long, value_name = "TEXT", num_args = 1.., required_unless_present_any = ["question", "pixels"])]
    text: Vec<String>,
    /// The second text of a pair; once for each text.
    #[arg(long, value_name = "TEXT", num_args = 1.., requires = "text")]
    pair: Vec<String>,
    /// A question about a context.
    #[arg(long, requires = "context", conflicts_with_all = ["text", "pixels"])]
    question: Option<String>,
    /// The text that answers are cut out of.
    #[arg(long, requires = "question")]
    context: Option<String>,
    /// How many tokens an answer has at most.
    #[arg(long, value_name = "N", default_value = "15", value_parser = positive)]
    longest_answer: usize,
    /// A safetensors file with images.
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pixels: Option<PathBuf>,
    /// How many labels are given for each text or image.
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    top_k: usize,
    #[command(flatten)]
    compute: Compute,
}

/// What is asked for.
enum Request {
    Texts(Vec<TextInput>),
    Question { question: String, context: String },
    Images(Images),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Texts(Vec<LabelledText>),
    Tokens(Vec<LabelledTokens>),
    Images(Vec<LabelledImage>),
    Answer(Answered),
}

#[derive(Serialize)]
struct LabelledText {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<String>,
    labels: Vec<LabelScore>,
}

#[derive(Serialize)]
struct LabelledTokens {
    text: String,
    tokens: Vec<TokenLabel>,
}

#[derive(Serialize)]
struct LabelledImage {
    image: usize,
    labels: Vec<LabelScore>,
}

#[derive(Serialize)]
struct Answered {
    question: String,
    #[serde(flatten)]
    answer: Answer,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text, pair, question, context, longest_answer, pixels, top_k, compute } = arguments;
    let argument = ModelArgument::resolve(&model)?;
    let checkpoint = argument.trained()?;
    let request = match (question.zip(context), pixels) {
        (Some((question, context)), _) => Request::Question { question, context },
        (None, Some(pixels)) => Request::Images(Images::open(&pixels)?),
        (None, None) => Request::Texts(pairs(text, pair)?),
    };
    let target = compute.open()?;
    let classifier = Classifier::new(checkpoint, &target.device, target.dtype)?;
    warn_of(classifier.not_finite(), target.quiet);
    let report = match request {
        Request::Question { question, context } => {
            let answer = classifier.answer(&question, &context, longest_answer)?;
            Report::Answer(Answered { question, answer })
        }
        Request::Images(images) => {
            let labels = classifier.classify_images(&images)?.into_iter().enumerate();
            Report::Images(
                labels.map(|(image, labels)| LabelledImage { image, labels: first(labels, top_k) }).collect(),
            )
        }
        Request::Texts(texts) => label(&classifier, texts, top_k)?,
    };
    match compute.show.json {
        true => output::print_json(&report)?,
        false => output::print(&shown(&report))?,
    }
    Ok(Outcome::Done)
}

fn pairs(texts: Vec<String>, pairs: Vec<String>) -> Result<Vec<TextInput>, Error> {
    if pairs.is_empty() {
        return Ok(texts.into_iter().map(TextInput::from).collect());
    }
    if pairs.len() != texts.len() {
        let (texts, pairs) = (texts.len(), pairs.len());
        return Err(Error::Input(format!(
            "there are {texts} texts and {pairs} second texts of pairs; give one for each"
        )));
    }
    Ok(texts.into_iter().zip(pairs).map(|(text, pair)| TextInput::pair(text, pair)).collect())
}

fn label(classifier: &Classifier, texts: Vec<TextInput>, top_k: usize) -> Result<Report, Error> {
    if classifier.task().kind == TaskKind::Tokens {
        if texts.iter().any(|text| text.pair.is_some()) {
            return Err(Error::Input("the model labels tokens and reads no pairs; leave out --pair".into()));
        }
        let texts: Vec<String> = texts.into_iter().map(|text| text.text).collect();
        let tokens = classifier.label_tokens(&texts)?;
        let labelled = texts.into_iter().zip(tokens).map(|(text, tokens)| LabelledTokens { text, tokens });
        return Ok(Report::Tokens(labelled.collect()));
    }
    let labels = classifier.classify(&texts)?;
    let labelled = texts.into_iter().zip(labels).map(|(TextInput { text, pair }, labels)| LabelledText {
        text,
        pair,
        labels: first(labels, top_k),
    });
    Ok(Report::Texts(labelled.collect()))
}

fn first(mut labels: Vec<LabelScore>, top_k: usize) -> Vec<LabelScore> {
    labels.truncate(top_k);
    labels
}

fn shown(report: &Report) -> String {
    let table = |labels: &[LabelScore]| {
        let row = |label: &LabelScore| [format!("{:.4}", label.score), label.label.clone()];
        output::table(["score", "label"], &labels.iter().map(row).collect::<Vec<_>>())
    };
    let blocks: Vec<String> = match report {
        Report::Texts(texts) => {
            let title = |text: &LabelledText| text.pair.iter().fold(text.text.clone(), |a, b| format!("{a} | {b}"));
            texts.iter().map(|text| format!("{}\n{}", title(text), table(&text.labels))).collect()
        }
        Report::Images(images) => {
            images.iter().map(|image| format!("image {}\n{}", image.image, table(&image.labels))).collect()
        }
        Report::Tokens(texts) => {
            let row = |token: &TokenLabel| [format!("{:.4}", token.score), token.label.clone(), token.token.clone()];
            let rows = |tokens: &[TokenLabel]| tokens.iter().map(row).collect::<Vec<_>>();
            let block = |text: &LabelledTokens| {
                format!("{}\n{}", text.text, output::table(["score", "label", "token"], &rows(&text.tokens)))
            };
            texts.iter().map(block).collect()
        }
        Report::Answer(Answered { answer, .. }) => {
            vec![format!("{}\nscore {:.4}, characters {} to {}", answer.answer, answer.score, answer.start, answer.end)]
        }
    };
    blocks.join("\n")
}
