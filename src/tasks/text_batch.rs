//! Texts as batches of tokens.

use tokenizers::{Encoding, Tokenizer};

use crate::error::Error;
use crate::model::{ModelConfig, ModelInput};
use crate::positions::{LearnedPositions, Positions};

/// Texts that are run at a time.
pub(super) const BATCH: usize = 16;

/// A text, or a pair of texts that a model reads together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextInput {
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
}

impl<T: Into<String>> From<T> for TextInput {
    fn from(text: T) -> Self {
        Self { text: text.into(), pair: None }
    }
}

impl TextInput {
    /// Two texts that are read together.
    pub fn pair(text: impl Into<String>, pair: impl Into<String>) -> Self {
        Self { text: text.into(), pair: Some(pair.into()) }
    }
}

/// The tokens of a text, special ones included. Offsets count characters.
pub(super) fn encode(tokenizer: &Tokenizer, input: &TextInput) -> Result<Encoding, Error> {
    let encoding = match &input.pair {
        None => tokenizer.encode_char_offsets(input.text.as_str(), true),
        Some(pair) => tokenizer.encode_char_offsets((input.text.as_str(), pair.as_str()), true),
    };
    encoding.map_err(|error| Error::Input(format!("a text cannot be tokenized: {error}")))
}

/// One batch of texts for a model, shorter ones padded on the right and marked so.
///
/// # Errors
///
/// When a text has no tokens or more than the model can read.
pub(super) fn batch(encodings: &[Encoding], config: &ModelConfig) -> Result<ModelInput, Error> {
    let lengths: Vec<usize> = encodings.iter().map(|encoding| encoding.get_ids().len()).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if lengths.contains(&0) {
        return Err(Error::Input("a text has no tokens; give it at least one word".into()));
    }
    if let Some(limit) = config.position_limit().filter(|limit| longest > *limit) {
        return Err(Error::Input(format!(
            "a text has {longest} tokens, and the model reads at most {limit}; shorten it"
        )));
    }
    // Which id stands in padded places matters only where positions are counted by it.
    let padding_id = match config.positions {
        Positions::Learned(LearnedPositions { padding_id: Some(id), .. }) => i64::from(id),
        _ => 0,
    };
    let rows = |numbers: fn(&Encoding) -> &[u32], fill: i64| -> Vec<Vec<i64>> {
        let row = |encoding: &Encoding| {
            let padding = std::iter::repeat(fill);
            numbers(encoding).iter().map(|number| i64::from(*number)).chain(padding).take(longest).collect()
        };
        encodings.iter().map(row).collect()
    };
    let padding = lengths.iter().map(|length| (0..longest).map(|at| at >= *length).collect()).collect();
    let input = ModelInput::tokens(&rows(Encoding::get_ids, padding_id)).with_padding(padding);
    // With one type there is nothing to tell apart, and some tokenizers number the texts of a pair all the same.
    let has_types = config.embedding.as_ref().is_some_and(|embedding| embedding.n_types > 1);
    Ok(if has_types { input.with_types(&rows(Encoding::get_type_ids, 0)) } else { input })
}
