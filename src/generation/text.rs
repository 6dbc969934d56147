//! Generation from text to text.

use std::ops::ControlFlow;

use super::chat::{ChatTemplate, Message};
use super::decoding::{Decoding, GenerationOptions, NewToken, Timing, check_prompts};
use super::stopping::{StopReason, StopStrings};
use super::streaming::TextStream;
use crate::error::Error;
use crate::model::{ModelConfig, Transformer};
use crate::tokenizer::TokenizerParts;

/// What a model is to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// A conversation, which the model answers.
    Chat(Vec<Message>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A prompt as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// The token ids.
    pub ids: Vec<u32>,
    /// Whether what is generated begins a text of its own, as an answer does, and does not continue that of the prompt.
    is_answered: bool,
}

impl From<Vec<u32>> for EncodedPrompt {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, is_answered: false }
    }
}

/// The text that continues a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedText {
    /// The text, without special tokens and without what ended it.
    pub text: String,
    /// The tokens; a token that ends the text is the last of them.
    pub tokens: Vec<u32>,
    /// How many tokens the prompt had.
    pub prompt_tokens: usize,
    /// Why the text ends.
    pub stop_reason: StopReason,
}

/// All texts of a batch of prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// One text per prompt.
    pub outputs: Vec<GeneratedText>,
    /// How long it took.
    pub timing: Timing,
}

/// A model with its tokenizer.
///
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use burn::tensor::{Device, FloatDType};
/// use burnformer::generation::{GenerationOptions, Prompt, TextGenerator};
/// use burnformer::pretrained::Checkpoint;
///
/// # fn main() -> Result<(), burnformer::Error> {
/// let checkpoint = Checkpoint::open("models/smollm2-135m")?;
/// let tokenizer = checkpoint.tokenizer()?.expect("the folder has a tokenizer");
/// let (model, _) = checkpoint.load(&Device::default(), FloatDType::F32)?;
/// let generator = TextGenerator::new(&model, &tokenizer)?;
/// let options = GenerationOptions::new(24).with_stop_ids(tokenizer.stop_ids.clone());
/// let prompts = [generator.encode(&Prompt::from("The capital of France is"))?];
/// generator.generate(&prompts, &options, &mut |_, piece| {
///     print!("{piece}");
///     ControlFlow::Continue(())
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TextGenerator<'a> {
    model: &'a Transformer,
    tokenizer: &'a TokenizerParts,
}

impl<'a> TextGenerator<'a> {
    /// A model with its tokenizer.
    ///
    /// # Errors
    ///
    /// When the tokenizer has tokens that the model has no embedding for.
    pub fn new(model: &'a Transformer, tokenizer: &'a TokenizerParts) -> Result<Self, Error> {
        check_tokenizer(model.config(), tokenizer)?;
        Ok(Self { model, tokenizer })
    }

    /// The prompt as the model reads it.
    ///
    /// # Errors
    ///
    /// When there is no chat template for a conversation, it refuses the messages, or the text cannot be tokenized.
    pub fn encode(&self, prompt: &Prompt) -> Result<EncodedPrompt, Error> {
        encode_prompt(self.tokenizer, prompt)
    }

    /// Continues a batch of prompts, each as it would be alone. `on_text` is called with the number of the prompt and the
    /// next piece of its text; when it breaks, generation ends.
    ///
    /// # Errors
    ///
    /// When options are out of range, a prompt is empty or too long, or the model fails.
    pub fn generate(
        &self,
        prompts: &[EncodedPrompt],
        options: &GenerationOptions,
        on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        options.validate()?;
        let ids: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.ids.clone()).collect();
        // Strings are looked for here; the loop knows tokens only.
        let token_options = GenerationOptions { stop_strings: Vec::new(), ..options.clone() };
        let mut decoding = Decoding::new(self.model, &ids, &token_options)?;
        // What a decoder with an encoder writes is a text of its own.
        let is_answer = |prompt: &EncodedPrompt| prompt.is_answered || self.model.config().encoder.is_some();
        let row = |prompt: &EncodedPrompt| {
            let before = if is_answer(prompt) { &[][..] } else { &prompt.ids };
            RowText::new(self.tokenizer, before, &options.stop_strings)
        };
        let mut rows = prompts.iter().map(row).collect::<Result<Vec<_>, Error>>()?;
        while !decoding.is_done() {
            for NewToken { row, token, stop } in decoding.step()? {
                let text = &mut rows[row];
                let mut piece = if stop == Some(StopReason::StopToken) { String::new() } else { text.push(token)? };
                if text.stop.is_found() {
                    decoding.stop(row, StopReason::StopString);
                } else if stop.is_some() {
                    piece += &text.finish()?;
                }
                text.given += &piece;
                if !piece.is_empty() && on_text(row, &piece).is_break() {
                    (0..rows.len()).for_each(|row| decoding.stop(row, StopReason::Cancelled));
                    break;
                }
            }
        }
        let timing = decoding.timing();
        let outputs = rows.into_iter().enumerate().map(|(row, text)| GeneratedText {
            stop_reason: text.stop_reason(decoding.stop_reason(row)),
            text: text.given,
            tokens: decoding.tokens(row).to_vec(),
            prompt_tokens: ids[row].len(),
        });
        Ok(Generated { outputs: outputs.collect(), timing })
    }
}

/// The prompt as a model reads it.
///
/// # Errors
///
/// When there is no chat template for a conversation, it refuses the messages, or the text cannot be tokenized.
pub fn encode_prompt(tokenizer: &TokenizerParts, prompt: &Prompt) -> Result<EncodedPrompt, Error> {
    let ids = match prompt {
        Prompt::Text(text) => tokenizer.encode(text)?,
        Prompt::Chat(messages) => {
            let text = ChatTemplate::of(tokenizer)?.render(messages, true)?;
            tokenizer.encode_as_it_is(&text)?
        }
    };
    Ok(EncodedPrompt { ids, is_answered: matches!(prompt, Prompt::Chat(_)) })
}

/// Fails where a tokenizer gives ids that a model has no embedding for. Tokens that were added to a tokenizer later may
/// lie outside, as those of fine-tuned models do; they are refused when they occur.
fn check_tokenizer(config: &ModelConfig, tokenizer: &TokenizerParts) -> Result<(), Error> {
    let (tokens, vocab_size) = (tokenizer.tokenizer.get_vocab_size(false), config.vocab_size());
    if tokens > vocab_size {
        return Err(Error::Input(format!(
            "the tokenizer has {tokens} tokens and the model's vocabulary {vocab_size}; they do not belong together"
        )));
    }
    Ok(())
}

/// Fails where [`TextGenerator`] would, before a model is there.
///
/// # Errors
///
/// When the tokenizer does not fit, options are out of range, or a prompt is empty or too long.
pub fn check_generation(
    config: &ModelConfig,
    tokenizer: &TokenizerParts,
    prompts: &[EncodedPrompt],
    options: &GenerationOptions,
) -> Result<(), Error> {
    options.validate()?;
    check_tokenizer(config, tokenizer)?;
    check_prompts(config, &prompts.iter().map(|prompt| prompt.ids.clone()).collect::<Vec<_>>())
}

/// The text of one row as it comes.
struct RowText<'a> {
    stream: TextStream<'a>,
    stop: StopStrings,
    given: String,
}

impl<'a> RowText<'a> {
    fn new(tokenizer: &'a TokenizerParts, before: &[u32], stop_strings: &[String]) -> Result<Self, Error> {
        let stream = TextStream::after(&tokenizer.tokenizer, before)?;
        Ok(Self { stream, stop: StopStrings::new(stop_strings.to_vec()), given: String::new() })
    }

    fn push(&mut self, token: u32) -> Result<String, Error> {
        Ok(self.stop.push(&self.stream.push(token)?))
    }

    /// What was held back.
    fn finish(&mut self) -> Result<String, Error> {
        let piece = self.stop.push(&self.stream.finish()?);
        Ok(if self.stop.is_found() { piece } else { piece + &self.stop.finish() })
    }

    /// A stop string that came with the very last token is why the text ends, whatever limit was reached with it.
    fn stop_reason(&self, reason: Option<StopReason>) -> StopReason {
        if self.stop.is_found() { StopReason::StopString } else { reason.unwrap_or(StopReason::Cancelled) }
    }
}
