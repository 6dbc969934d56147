//! From tokens that come one at a time to text.

use tokenizers::Tokenizer;

use crate::error::Error;
use crate::tokenizer::decode;

/// Stands for bytes that are no text, such as the first half of a character.
const REPLACEMENT: char = '\u{fffd}';

/// Turns tokens into text as they come, whole characters only: the bytes of an emoji may be spread over four tokens.
///
/// Joined, the pieces are the text of all tokens at once. Special tokens have no text.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens before those held back. Decoders look at them: the first word of a text has no space before it.
    context: Vec<u32>,
    context_text: String,
    /// Tokens whose text has not been given.
    held: Vec<u32>,
    /// Whether the last of them that has text stands for one byte, as `<0xC3>` does. Decoders turn a run of these into
    /// text as a whole, and what they make of its beginning may change until it ends.
    is_in_bytes: bool,
}

impl<'a> TextStream<'a> {
    /// A stream that begins a text.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, context: Vec::new(), context_text: String::new(), held: Vec::new(), is_in_bytes: false }
    }

    /// A stream that continues the text of `tokens`, so that a space between the two is kept.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot decode.
    pub fn after(tokenizer: &'a Tokenizer, tokens: &[u32]) -> Result<Self, Error> {
        let text = decode(tokenizer, tokens)?;
        // Half a character is completed by what comes.
        let context_text = text.trim_end_matches(REPLACEMENT).to_owned();
        Ok(Self { context: tokens.to_vec(), context_text, ..Self::new(tokenizer) })
    }

    /// Takes a token and gives the text that is complete with it, which may be empty.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot decode.
    pub fn push(&mut self, token: u32) -> Result<String, Error> {
        self.held.push(token);
        if let Some(name) = self.tokenizer.id_to_token(token)
            && !self.tokenizer.get_added_vocabulary().is_special_token(&name)
        {
            self.is_in_bytes = name.len() == 6 && name.starts_with("<0x") && name.ends_with('>');
        }
        let text = self.text()?;
        if text.ends_with(REPLACEMENT) || self.is_in_bytes {
            return Ok(String::new());
        }
        self.give(&text)
    }

    /// The text of what was held back, once no more tokens come.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot decode.
    pub fn finish(&mut self) -> Result<String, Error> {
        let text = self.text()?;
        self.give(&text)
    }

    fn text(&self) -> Result<String, Error> {
        decode(self.tokenizer, &[&self.context[..], &self.held].concat())
    }

    /// What `text` has more than the context, which then moves on.
    fn give(&mut self, text: &str) -> Result<String, Error> {
        let new = match text.strip_prefix(&self.context_text) {
            Some(new) => new.to_owned(),
            // A decoder that goes back over what it gave.
            None => decode(self.tokenizer, &self.held)?,
        };
        if !new.is_empty() {
            self.context = std::mem::take(&mut self.held);
            self.context_text = decode(self.tokenizer, &self.context)?;
        }
        Ok(new)
    }
}
