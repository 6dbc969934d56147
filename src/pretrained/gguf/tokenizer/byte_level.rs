//! Tokenizers over bytes, as GPT-2 has: a text is cut into words, and the bytes of each word are merged.

use tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::Tokenizer;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::super::metadata::Metadata;
use super::{Kind, MERGES, PRE, Vocabulary};

/// How words are cut, and what goes with it.
struct Rules {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    words: Words,
    /// Whether a word that is a token stays whole, whatever the merges.
    keeps_whole_words: bool,
    adds_bos: bool,
    composes: bool,
}

#[derive(Clone, Copy)]
enum Words {
    /// As GPT-2.
    Plain,
    /// Each digit is a word; the rest as GPT-2.
    SingleDigits,
    /// What a regular expression matches.
    Pattern(&'static str),
}

const GPT2: Rules = Rules {
    names: &["gpt-2", "gpt2", "default", "phi-2", "mpt", "olmo", "jais"],
    words: Words::Plain,
    keeps_whole_words: false,
    adds_bos: false,
    composes: false,
};

const RULES: [Rules; 5] = [
    GPT2,
    Rules { names: &["smollm", "starcoder", "refact", "codeshell", "exaone"], words: Words::SingleDigits, ..GPT2 },
    Rules {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"],
        words: Words::Pattern(LLAMA3_WORDS),
        keeps_whole_words: true,
        adds_bos: true,
        ..GPT2
    },
    Rules { names: &["qwen2", "deepseek-r1-qwen"], words: Words::Pattern(QWEN2_WORDS), composes: true, ..GPT2 },
    Rules { names: &["stablelm2"], words: Words::Pattern(QWEN2_WORDS), ..GPT2 },
];

/// Contractions, words with the sign before them, up to three digits, signs with the line ends after them, white space.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(super) fn read<'a>(vocabulary: &Vocabulary<'a>, metadata: &Metadata<'a>) -> Option<Kind> {
    // Files from before there was such a key are GPT-2's and its kin's.
    let name = metadata.text(PRE).unwrap_or("gpt-2");
    let Some(rules) = RULES.iter().find(|rules| rules.names.contains(&name)) else {
        let known: Vec<&str> = RULES.iter().flat_map(|rules| rules.names).copied().collect();
        metadata.fault(PRE, format!("`{name}` is not known; known are {}", known.join(", ")));
        return None;
    };
    let Some(merges) = vocabulary.merges(metadata) else {
        metadata.missing_unless_there(MERGES);
        return None;
    };
    let model = vocabulary.bpe(metadata, merges, MERGES, |builder| builder.ignore_merges(rules.keeps_whole_words))?;
    let mut tokenizer = Tokenizer::new(model);
    if rules.composes {
        tokenizer.with_normalizer(Some(NFC));
    }
    let words = words(rules.words).map_err(|error| metadata.fault(PRE, format!("cannot be honoured: {error}"))).ok()?;
    tokenizer.with_pre_tokenizer(Some(words));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    Some(Kind { tokenizer, adds_bos: rules.adds_bos })
}

fn words(words: Words) -> tokenizers::Result<PreTokenizerWrapper> {
    let bytes = |cuts: bool| ByteLevel::new(false, true, cuts);
    Ok(match words {
        Words::Plain => bytes(true).into(),
        Words::SingleDigits => Sequence::new(vec![Digits::new(true).into(), bytes(true).into()]).into(),
        Words::Pattern(pattern) => {
            let split = Split::new(SplitPattern::Regex(pattern.to_owned()), Isolated, false)?;
            Sequence::new(vec![split.into(), bytes(false).into()]).into()
        }
    })
}
