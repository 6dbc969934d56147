//! Text in and out of a model.

use tokenizers::Tokenizer;

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
