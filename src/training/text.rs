//! The text of a run: read, checked and cut into tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::Tokenizer;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::config::BYTES;
use crate::error::Error;
use crate::pretrained::Checkpoint;
use crate::tokenizer::{TokenizerParts, read_tokenizer};

/// Files that stand beside `tokenizer.json` and belong to it.
const BESIDE_TOKENIZER: [&str; 4] =
    ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json"];

/// From text to tokens, and what is written so that a trained model has the same tokenizer.
#[derive(Clone, Debug)]
pub struct TextCoder {
    parts: TokenizerParts,
    origin: Origin,
}

/// Where the files of a tokenizer come from.
#[derive(Clone, Debug)]
enum Origin {
    /// Made here: every byte is a token.
    Bytes,
    /// A folder with `tokenizer.json`.
    Folder(PathBuf),
    /// The checkpoint that training starts from.
    Checkpoint(Arc<Checkpoint>),
}

impl TextCoder {
    /// Every byte is a token, and its id is the byte.
    pub fn bytes() -> Self {
        Self { parts: bare(byte_tokenizer()), origin: Origin::Bytes }
    }

    /// The tokenizer of a checkpoint.
    ///
    /// # Errors
    ///
    /// When it has none, or one that cannot be read.
    pub fn of_checkpoint(checkpoint: &Arc<Checkpoint>) -> Result<Self, Error> {
        let parts = checkpoint.tokenizer()?.ok_or_else(|| {
            let problem = "the checkpoint has no tokenizer; name one in the configuration (`tokenizer`)";
            Error::Input(problem.into())
        })?;
        Ok(Self { parts, origin: Origin::Checkpoint(Arc::clone(checkpoint)) })
    }

    /// What `tokenizer` of a configuration names: `bytes`, a `tokenizer.json` or the folder it is in.
    ///
    /// # Errors
    ///
    /// When there is no such file, or it cannot be read.
    pub fn open(name: &str) -> Result<Self, Error> {
        if name == BYTES {
            return Ok(Self::bytes());
        }
        let path = Path::new(name);
        let folder = match path.file_name() {
            Some(file) if file == "tokenizer.json" => path.parent().unwrap_or(Path::new(".")),
            _ => path,
        };
        Ok(Self { parts: bare(read_tokenizer(folder)?), origin: Origin::Folder(folder.to_owned()) })
    }

    /// The tokenizer.
    pub fn parts(&self) -> &TokenizerParts {
        &self.parts
    }

    /// Number of ids.
    pub fn vocab_size(&self) -> usize {
        self.parts.tokenizer.get_vocab_size(false)
    }

    /// The ids of a text, without special tokens around it.
    ///
    /// # Errors
    ///
    /// When the text cannot be tokenized.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self.origin {
            Origin::Bytes => Ok(text.bytes().map(u32::from).collect()),
            _ => self.parts.encode_as_it_is(text),
        }
    }

    /// Reads a file and gives its tokens.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is empty or is not text.
    pub fn read(&self, path: &Path) -> Result<Vec<u32>, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
        if bytes.is_empty() {
            return Err(Error::file(path, "is empty; training needs text"));
        }
        // Bytes are held to the same: samples of a model of other data could not be shown.
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(at).copied().unwrap_or_default();
            Error::file(path, format!("is not text: byte {byte:#04x} at {at} is not UTF-8"))
        })?;
        if let Some(at) = text.bytes().position(|byte| byte == 0) {
            return Err(Error::file(path, format!("is not text: there is a zero byte at {at}")));
        }
        self.encode(&text)
    }

    /// Writes the files of the tokenizer into the folder of a model.
    ///
    /// # Errors
    ///
    /// When one cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let from = match &self.origin {
            Origin::Checkpoint(checkpoint) => return checkpoint.write_companions(folder),
            Origin::Folder(from) => Some(from),
            Origin::Bytes => None,
        };
        let path = folder.join("tokenizer.json");
        let unwritable =
            |path: &Path, error: &dyn std::fmt::Display| Error::file(path, format!("cannot be written: {error}"));
        let text = self.parts.tokenizer.to_string(true).map_err(|error| unwritable(&path, &error))?;
        std::fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
        for name in from.iter().flat_map(|from| BESIDE_TOKENIZER.map(|name| (from.join(name), folder.join(name)))) {
            let (source, target) = name;
            if source.is_file() {
                std::fs::copy(&source, &target).map_err(|error| unwritable(&target, &error))?;
            }
        }
        Ok(())
    }
}

fn bare(tokenizer: Tokenizer) -> TokenizerParts {
    TokenizerParts { tokenizer, bos: None, eos: None, stop_ids: Vec::new(), chat_template: None }
}

/// A tokenizer whose ids are the bytes of a text. In its vocabulary each byte is written as a character of its own, as
/// GPT-2 does ([Radford et al. 2019](https://openai.com/research/better-language-models)).
fn byte_tokenizer() -> Tokenizer {
    // Printable characters of Latin-1 stand for themselves, the others for characters from 256 on.
    let is_printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let hidden: Vec<u32> = (0..256).filter(|byte| !is_printable(*byte)).collect();
    let character = |byte: u32| match hidden.iter().position(|hidden| *hidden == byte) {
        Some(at) => char::from_u32(256 + at as u32),
        None => char::from_u32(byte),
    };
    let token = |byte| (character(byte).unwrap_or_default().to_string(), byte);
    let vocabulary: [(String, u32); 256] = std::array::from_fn(|byte| token(byte as u32));
    let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new()).build();
    let mut tokenizer = Tokenizer::new(model.expect("a vocabulary without merges is consistent"));
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));
    tokenizer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_tokens_in_both_directions() {
        let coder = TextCoder::bytes();
        assert_eq!(coder.vocab_size(), 256);
        let text = "a b\n\tÄ € 🙂 \u{1}\u{7f}\u{a0}\u{ad}";
        let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(coder.encode(text).expect("text"), bytes);
        assert_eq!(coder.parts().encode_as_it_is(text).expect("text"), bytes);
        assert_eq!(coder.parts().decode(&bytes).expect("text"), text);
    }

    #[test]
    fn a_written_tokenizer_reads_the_same() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        TextCoder::bytes().write(folder.path()).expect("it is written");
        for name in [folder.path().to_owned(), folder.path().join("tokenizer.json")] {
            let read = TextCoder::open(name.to_str().expect("UTF-8")).expect("it is read");
            assert_eq!(read.encode("é\n").expect("text"), [0xc3, 0xa9, 10]);
        }
    }
}
