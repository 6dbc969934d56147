//! The tokens of a run: those that are trained on, and those that are measured on.

use std::path::Path;

use super::config::TrainingConfig;
use super::text::TextCoder;
use crate::error::Error;

/// Reads the tokens of a file, which must all lie in the model's vocabulary.
pub(super) fn read_tokens(coder: &TextCoder, path: &Path, vocab_size: usize) -> Result<Vec<u32>, Error> {
    let tokens = coder.read(path)?;
    match tokens.iter().find(|token| **token as usize >= vocab_size) {
        Some(token) => {
            let problem = format!("holds the token {token}, and the model's vocabulary {vocab_size}");
            Err(Error::file(path, problem))
        }
        None => Ok(tokens),
    }
}

/// The tokens that are trained on, and those that are measured on.
pub(super) fn split(
    config: &TrainingConfig,
    coder: &TextCoder,
    data: &Path,
    mut tokens: Vec<u32>,
    vocab_size: usize,
) -> Result<(Vec<u32>, Option<Vec<u32>>), Error> {
    let shortest = config.seq + 1;
    let too_short = |path: &Path, what: &str, count: usize, advice: &str| {
        let problem = format!("{what}{count} tokens, and a window needs {shortest} (`seq` and one more); {advice}");
        Err(Error::file(path, problem))
    };
    if tokens.len() < shortest {
        return too_short(data, "has ", tokens.len(), "give a longer text or a smaller `seq`");
    }
    let validation = match &config.validation.file {
        Some(file) => {
            let tokens = read_tokens(coder, file, vocab_size)?;
            if tokens.len() < shortest {
                return too_short(file, "has ", tokens.len(), "give a longer text or a smaller `seq`");
            }
            Some(tokens)
        }
        None if config.validation.share == 0.0 => None,
        None => {
            let held_out = (tokens.len() as f64 * config.validation.share).round() as usize;
            let rest = tokens.len() - held_out;
            let advice = "change `validation.share` (0 for none), give a longer text or a smaller `seq`";
            if held_out < shortest {
                return too_short(data, "leaves for validation ", held_out, advice);
            }
            if rest < shortest {
                return too_short(data, "leaves for training ", rest, advice);
            }
            Some(tokens.split_off(rest))
        }
    };
    Ok((tokens, validation))
}
