//! Text in and out of a model.

use std::path::Path;

use tokenizers::Tokenizer;

use crate::error::Error;

/// What a checkpoint says about text, wherever it says it: in `tokenizer.json` and the files beside it, or in the header
/// of a GGUF file.
#[derive(Clone, Debug)]
pub struct TokenizerParts {
    /// From text to ids and back, special tokens included.
    pub tokenizer: Tokenizer,
    /// The token that begins a text, as text; chat templates write it.
    pub bos: Option<String>,
    /// The token that ends a text, as text; chat templates write it.
    pub eos: Option<String>,
    /// Ids that end generation.
    pub stop_ids: Vec<u32>,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
}

impl TokenizerParts {
    /// The ids of `text`, with the special tokens that the tokenizer adds. Where the text begins with the token that
    /// begins a text, none is added before it.
    ///
    /// # Errors
    ///
    /// When the text cannot be tokenized.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut ids = encode(&self.tokenizer, text, true)?;
        let bos = self.bos.as_deref().filter(|bos| text.starts_with(bos));
        if let Some(bos) = bos.and_then(|bos| self.tokenizer.token_to_id(bos))
            && ids.starts_with(&[bos, bos])
        {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The ids of a text that already holds all its special tokens, as one made by a chat template does.
    ///
    /// # Errors
    ///
    /// When the text cannot be tokenized.
    pub fn encode_as_it_is(&self, text: &str) -> Result<Vec<u32>, Error> {
        encode(&self.tokenizer, text, false)
    }

    /// The text of `ids`, without special tokens.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot decode.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        decode(&self.tokenizer, ids)
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Error> {
    match tokenizer.encode_fast(text, add_special_tokens) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => Err(Error::Input(format!("the text cannot be tokenized: {error}"))),
    }
}

/// The text of `ids`, without special tokens.
pub(crate) fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, Error> {
    tokenizer.decode(ids, true).map_err(|error| Error::Input(format!("tokens {ids:?} cannot be decoded: {error}")))
}

/// Reads `tokenizer.json` of a checkpoint folder. Padding and truncation that it may ask for are turned off: texts of a
/// batch are padded where they are used, and cut where the model needs it.
///
/// # Errors
///
/// When the file is missing or broken.
pub fn read_tokenizer(folder: impl AsRef<Path>) -> Result<Tokenizer, Error> {
    let path = folder.as_ref().join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|error| Error::file(&path, error))?;
    let mut tokenizer = Tokenizer::from_bytes(bytes)
        .map_err(|error| Error::file(&path, format!("is not a tokenizer that can be read: {error}")))?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| Error::file(&path, error))?;
    Ok(tokenizer)
}
