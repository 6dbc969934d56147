//! `burnformer generate`

use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;

use burnformer::Error;
use burnformer::generation::{
    Decoding, EncodedPrompt, GenerationOptions, Message, Prompt, Sampling, StopReason, TextGenerator, Timing,
    check_generation, check_prompts, encode_prompt,
};
use burnformer::model::Transformer;
use burnformer::tokenizer::TokenizerParts;
use clap::Args;
use serde::Serialize;

use crate::arguments::{Compute, Row};
use crate::model_argument::ModelArgument;
use crate::progress::LoadingBar;
use crate::{Outcome, output};

/// Continue a text, or answer it.
#[derive(Args)]
#[command(after_help = "\
Text goes to stdout as it comes; with several prompts, which run as one batch, when all are done. Generation is greedy \
unless sampling is asked for: a --temperature above 0, or --top-k, --top-p or --min-p, with which the temperature is 1. \
What generation_config.json says about sampling is not read. A text ends with a token that generation_config.json, \
config.json or the tokenizer names, with a --stop string, after --max-new-tokens, or where the model's learned positions \
end. Prompts must fit the model's context.

Examples:
  burnformer generate path/to/checkpoint --prompt \"The capital of France is\" --max-new-tokens 24
  burnformer generate path/to/checkpoint --chat --system \"Be brief.\" --prompt \"Why is the sky blue?\"
  burnformer generate path/to/checkpoint --prompt \"Once\" --temperature 0.8 --top-p 0.95 --seed 7 --stop \".\"
  burnformer generate path/to/checkpoint --prompt One --prompt \"One, two\" --json
  burnformer generate path/to/checkpoint --tokens 1,5,9 --backend wgpu --json
  burnformer generate path/to/checkpoint --adapter path/to/adapters --prompt \"Once\"
  git log -3 | burnformer generate path/to/checkpoint --prompt -")]
pub struct Arguments {
    /// Checkpoint folder or GGUF file; or a preset or configuration file with --tokens, whose weights are random.
    model: String,
    /// A folder with adapters that were trained for the model, of this program or of PEFT.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// A text to continue, or with --chat to answer; `-` is what stdin holds. May be given several times.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["tokens", "prompt_file"])]
    prompt: Vec<String>,
    /// A file with a prompt. May be given several times.
    #[arg(long, value_name = "FILE")]
    prompt_file: Vec<PathBuf>,
    /// A prompt as token ids, separated by commas. May be given several times.
    #[arg(long, value_name = "IDS", allow_hyphen_values = true, conflicts_with_all = ["prompt", "prompt_file", "chat"])]
    tokens: Vec<Row<u32>>,
    /// Put each prompt as the user's message into the model's chat template.
    #[arg(long)]
    chat: bool,
    /// What the model is told to be, before the user's message.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Tokens per prompt at most.
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_new_tokens: usize,
    /// Divides logits; 0 takes the most probable token always [default: 0].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw among this many of the most probable tokens.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Draw among the fewest of the most probable tokens that have this share of the probability together.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Draw among tokens that are at least this share as probable as the most probable one.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Make tokens that occurred before less likely, above 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// Seed of the draws, and of random weights; the same tokens on every backend.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// End a text before this string. May be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after tokens that end a text.
    #[arg(long)]
    ignore_eos: bool,
    /// Read prompts in pieces of this many tokens.
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<usize>,
    #[command(flatten)]
    compute: Compute,
}

/// One continued prompt.
#[derive(Serialize)]
struct Output {
    /// `null` where there is no tokenizer.
    text: Option<String>,
    tokens: Vec<u32>,
    /// How many.
    prompt_tokens: usize,
    tokens_per_second: f64,
    stop_reason: StopReason,
}

#[derive(Serialize)]
struct Batch {
    outputs: Vec<Output>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let argument = ModelArgument::resolve(&arguments.model)?;
    let checkpoint = argument.checkpoint();
    let tokenizer = checkpoint.map_or(Ok(None), |checkpoint| checkpoint.tokenizer())?;
    let stop_ids = match (&tokenizer, checkpoint) {
        _ if arguments.ignore_eos => Vec::new(),
        (Some(tokenizer), _) => tokenizer.stop_ids.clone(),
        (None, Some(checkpoint)) => checkpoint.stop_ids()?,
        (None, None) => Vec::new(),
    };
    let start_id = checkpoint.map_or(Ok(None), |checkpoint| checkpoint.start_id())?;
    let options = GenerationOptions { start_id, ..arguments.options(stop_ids) };
    let prompts = arguments.prompts(tokenizer.as_ref())?;
    match &tokenizer {
        Some(tokenizer) => check_generation(argument.config(), tokenizer, &prompts, &options)?,
        None => {
            options.validate()?;
            check_prompts(argument.config(), &ids(&prompts))?;
        }
    }

    let (show, seed) = (&arguments.compute.show, arguments.seed);
    let target = arguments.compute.open()?;
    let bar = LoadingBar::new(show);
    let model = argument.build_with(&target, seed, &mut |progress| bar.show(progress))?;
    let model = argument.with_adapters(model, arguments.adapter.as_deref())?;
    drop(bar);

    let mut printer = Printer { is_on: prompts.len() == 1 && !show.json, ..Printer::default() };
    let (outputs, timing) = match &tokenizer {
        Some(tokenizer) => generate_text(&model, tokenizer, &prompts, &options, &mut printer)?,
        None => generate_tokens(&model, &ids(&prompts), &options, &mut printer)?,
    };
    printer.finish()?;
    if printer.is_left {
        return Ok(Outcome::Done);
    }
    argument.note_weights(seed, show);
    match (show.json, outputs.as_slice()) {
        (true, [only]) => output::print_json(only)?,
        (true, _) => output::print_json(&Batch { outputs })?,
        (false, [only]) => show.note(summary(&outputs, timing) + &format!(", ended by {}", reason(only.stop_reason))),
        (false, _) => {
            let texts: Vec<String> = outputs.iter().zip(1..).map(|(output, number)| numbered(number, output)).collect();
            output::print(&texts.join("\n"))?;
            show.note(summary(&outputs, timing));
        }
    }
    Ok(Outcome::Done)
}

impl Arguments {
    fn options(&self, stop_ids: Vec<u32>) -> GenerationOptions {
        let is_sampled = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let greedy = Sampling::greedy();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(if is_sampled { 1.0 } else { 0.0 }),
            top_k: self.top_k.unwrap_or(greedy.top_k),
            top_p: self.top_p.unwrap_or(greedy.top_p),
            min_p: self.min_p.unwrap_or(greedy.min_p),
            repetition_penalty: self.repetition_penalty,
        };
        GenerationOptions {
            max_new_tokens: self.max_new_tokens,
            sampling,
            seed: self.seed,
            stop_ids,
            stop_strings: self.stop.clone(),
            start_id: None,
            prefill_chunk: self.prefill_chunk,
        }
    }

    /// The prompts in the order of the flags: ids, or texts and then files.
    fn prompts(&self, tokenizer: Option<&TokenizerParts>) -> Result<Vec<EncodedPrompt>, Error> {
        let tokens = self.tokens.iter().map(|row| EncodedPrompt::from(row.0.clone()));
        let mut prompts: Vec<EncodedPrompt> = tokens.collect();
        let mut texts = self.prompt.iter().map(|text| text_or_stdin(text)).collect::<Result<Vec<_>, Error>>()?;
        for path in &self.prompt_file {
            texts.push(std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?);
        }
        for text in texts {
            let tokenizer = tokenizer.ok_or_else(|| {
                Error::Input(format!("`{}` has no tokenizer to read a prompt with; use --tokens", self.model))
            })?;
            let prompt = match self.chat {
                false => Prompt::Text(text),
                true => Prompt::Chat(self.system.iter().map(Message::system).chain([Message::user(text)]).collect()),
            };
            prompts.push(encode_prompt(tokenizer, &prompt)?);
        }
        Ok(prompts)
    }
}

fn text_or_stdin(text: &str) -> Result<String, Error> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| Error::file("stdin", error))?;
    Ok(text)
}

fn ids(prompts: &[EncodedPrompt]) -> Vec<Vec<u32>> {
    prompts.iter().map(|prompt| prompt.ids.clone()).collect()
}

fn generate_text(
    model: &Transformer,
    tokenizer: &TokenizerParts,
    prompts: &[EncodedPrompt],
    options: &GenerationOptions,
    printer: &mut Printer,
) -> Result<(Vec<Output>, Timing), Error> {
    let generator = TextGenerator::new(model, tokenizer)?;
    let generated = generator.generate(prompts, options, &mut |_, piece| printer.print(piece))?;
    let timing = generated.timing;
    let outputs = generated.outputs.into_iter().map(|output| Output {
        text: Some(output.text),
        tokens_per_second: rate(output.tokens.len(), timing),
        tokens: output.tokens,
        prompt_tokens: output.prompt_tokens,
        stop_reason: output.stop_reason,
    });
    Ok((outputs.collect(), timing))
}

/// The ids alone, which are printed as they come.
fn generate_tokens(
    model: &Transformer,
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
    printer: &mut Printer,
) -> Result<(Vec<Output>, Timing), Error> {
    let mut decoding = Decoding::new(model, prompts, options)?;
    while !decoding.is_done() {
        for new in decoding.step()? {
            let comma = if decoding.tokens(new.row).len() > 1 { "," } else { "" };
            if printer.print(&format!("{comma}{}", new.token)).is_break() {
                decoding.stop(new.row, StopReason::Cancelled);
            }
        }
    }
    let timing = decoding.timing();
    let outputs = prompts.iter().enumerate().map(|(row, prompt)| {
        let tokens = decoding.tokens(row).to_vec();
        Output {
            text: None,
            tokens_per_second: rate(tokens.len(), timing),
            tokens,
            prompt_tokens: prompt.len(),
            stop_reason: decoding.stop_reason(row).unwrap_or(StopReason::Cancelled),
        }
    });
    Ok((outputs.collect(), timing))
}

/// Prints pieces of text, if it is on.
#[derive(Default)]
struct Printer {
    is_on: bool,
    /// Nobody reads any more.
    is_left: bool,
    failure: Option<Error>,
}

impl Printer {
    fn print(&mut self, piece: &str) -> ControlFlow<()> {
        if !self.is_on {
            return ControlFlow::Continue(());
        }
        match output::print_piece(piece) {
            Ok(is_read) => self.is_left = !is_read,
            Err(error) => self.failure = Some(error),
        }
        if self.is_left || self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends the line.
    fn finish(&mut self) -> Result<(), Error> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.is_on && !self.is_left => output::print(""),
            None => Ok(()),
        }
    }
}

/// Tokens per second after the first token, or with it where it is the only one.
fn rate(tokens: usize, timing: Timing) -> f64 {
    let (tokens, time) = match tokens {
        0 | 1 => (tokens, timing.prefill + timing.decode),
        _ => (tokens - 1, timing.decode),
    };
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE) }
}

fn summary(outputs: &[Output], timing: Timing) -> String {
    let prompt_tokens: usize = outputs.iter().map(|output| output.prompt_tokens).sum();
    let tokens: usize = outputs.iter().map(|output| output.tokens.len()).sum();
    let prefill = prompt_tokens as f64 / timing.prefill.as_secs_f64().max(f64::MIN_POSITIVE);
    let decode: f64 = outputs.iter().map(|output| output.tokens_per_second).sum();
    format!("prompt: {prompt_tokens} tokens, {prefill:.1} tokens/s; generated: {tokens} tokens, {decode:.1} tokens/s")
}

fn reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::StopToken => "a token that ends texts",
        StopReason::StopString => "a stop string",
        StopReason::Length => "the number of tokens asked for",
        StopReason::Context => "the end of the model's context",
        StopReason::Cancelled => "its reader",
    }
}

fn numbered(number: usize, output: &Output) -> String {
    let ids = || output.tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    format!("[{number}] {}", output.text.clone().unwrap_or_else(ids))
}
