//! Tokenizers over pieces of text, as SentencePiece has: the pieces have scores instead of merges, a space is a letter of
//! its own, and what no piece spells is spelled in bytes.

use std::collections::HashMap;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::Merges;
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{DecoderWrapper, Tokenizer};

use super::super::metadata::Metadata;
use super::{Kind, SCORES, UNKNOWN, Vocabulary, per_token};

/// What stands for a space.
const SPACE: &str = "▁";
const SPACE_LETTER: char = '▁';

/// Where a text gets the space that lets its first word look like any other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Never,
    /// Unless there is one.
    Once,
    /// In any case.
    Always,
}

pub(super) fn read<'a>(vocabulary: &Vocabulary<'a>, metadata: &Metadata<'a>) -> Option<Kind> {
    let architecture = metadata.text("general.architecture").unwrap_or_default();
    let is_gemma = architecture.starts_with("gemma");
    let is_prefixed = metadata.flag("tokenizer.ggml.add_space_prefix").unwrap_or(!is_gemma);
    let prefix = match (is_prefixed, architecture) {
        (false, _) => Prefix::Never,
        (true, "phi3") => Prefix::Always,
        (true, _) => Prefix::Once,
    };
    let respelled: Vocabulary<'_>;
    let blanks: Vec<String>;
    let vocabulary = if is_gemma {
        // Tokens of several spaces stand in its files as they look.
        blanks = vocabulary.tokens.iter().map(|token| blank(token)).collect();
        let tokens = blanks.iter().map(String::as_str).collect();
        respelled = Vocabulary { model: vocabulary.model, tokens, types: vocabulary.types.clone() };
        &respelled
    } else {
        vocabulary
    };
    let merges = match vocabulary.merges(metadata) {
        Some(merges) => merges,
        // Its scores do not follow the order of its merges; the order of its tokens does.
        None if is_gemma => implied_merges(&vocabulary.tokens, |index| -(index as f64)),
        None => {
            let Some(scores) = per_token(metadata, SCORES, vocabulary.tokens.len()) else {
                metadata.missing_unless_there(SCORES);
                return None;
            };
            implied_merges(&vocabulary.tokens, |index| scores[index])
        }
    };
    let unknown = vocabulary.token(metadata, UNKNOWN);
    let model = vocabulary.bpe(metadata, merges, SCORES, |builder| {
        let builder = builder.fuse_unk(true).byte_fallback(true);
        match unknown {
            Some((_, token)) => builder.unk_token(token.to_owned()),
            None => builder,
        }
    })?;
    let mut tokenizer = Tokenizer::new(model);
    set_spaces(&mut tokenizer, prefix, is_gemma)
        .map_err(|error| metadata.fault("tokenizer.ggml.add_space_prefix", format!("cannot be honoured: {error}")))
        .ok()?;
    Some(Kind { tokenizer, adds_bos: true })
}

fn set_spaces(tokenizer: &mut Tokenizer, prefix: Prefix, is_gemma: bool) -> tokenizers::Result<()> {
    let spaces = Replace::new(" ", SPACE)?;
    match prefix {
        Prefix::Always => {
            let prepend = Prepend::new(SPACE.to_owned());
            tokenizer.with_normalizer(Some(Sequence::new(vec![prepend.into(), spaces.into()])));
        }
        _ if is_gemma => {
            tokenizer.with_normalizer(Some(spaces));
        }
        Prefix::Once => {
            tokenizer.with_pre_tokenizer(Some(Metaspace::new(SPACE_LETTER, PrependScheme::First, false)));
        }
        Prefix::Never => {
            tokenizer.with_pre_tokenizer(Some(Metaspace::new(SPACE_LETTER, PrependScheme::Never, false)));
        }
    }
    let mut decoders: Vec<DecoderWrapper> =
        vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix != Prefix::Never {
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(())
}

fn blank(token: &str) -> String {
    match token.trim().is_empty() && token.contains(' ') {
        true => SPACE.repeat(token.chars().count()),
        false => token.to_owned(),
    }
}

/// The merges that pieces imply: every way to put a piece together from two others, the pieces of the highest score
/// first; of one score, those with the longer left part first.
fn implied_merges(tokens: &[&str], score: impl Fn(usize) -> f64) -> Merges {
    let ids: HashMap<&str, usize> = tokens.iter().copied().zip(0..).collect();
    let mut merges = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let parts = token.char_indices().skip(1).map(|(end, _)| token.split_at(end));
        let mut known: Vec<_> =
            parts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right))).collect();
        known.sort_by_key(|(left, right, ..)| (*left, *right));
        merges.extend(known.into_iter().map(|(.., left, right)| (score(index), left, right)));
    }
    let lengths = |left: &str, right: &str| (left.chars().count(), right.chars().count());
    merges.sort_by(|(a, a_left, a_right), (b, b_left, b_right)| {
        b.total_cmp(a).then_with(|| lengths(b_left, b_right).cmp(&lengths(a_left, a_right)))
    });
    merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_the_scores() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc"];
        let scores = [-1.0, -1.0, -1.0, -3.0, -2.0, -4.0];
        let merges = implied_merges(&tokens, |index| scores[index]);
        let expected = [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")];
        assert_eq!(merges, expected.map(|(left, right)| (left.to_owned(), right.to_owned())));
    }
}
