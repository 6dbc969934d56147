//! The tokenizer that a header describes: a vocabulary with merges or scores, and the name of the rules that cut a text
//! into words.

mod byte_level;
mod pieces;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{AddedToken, Tokenizer};

use super::metadata::Metadata;
use crate::error::ConfigError;
use crate::tokenizer::TokenizerParts;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Keys of tokens that end an answer.
const STOPS: [&str; 3] = [EOS, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// What ends a turn in chats, for files that name only the token that ends a text.
const TURN_ENDS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"];

/// Types of tokens.
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

/// Reads the tokenizer; `None` where the header has none.
pub(super) fn read(metadata: Metadata<'_>) -> Result<Option<TokenizerParts>, ConfigError> {
    let parts = Vocabulary::read(&metadata).and_then(|vocabulary| vocabulary.parts(&metadata));
    metadata.check()?;
    Ok(parts)
}

/// The tokenizer in the files that a folder of the hub has for it, by name with their text.
pub(super) fn files(parts: &TokenizerParts) -> Vec<(&'static str, String)> {
    let tokenizer = parts.tokenizer.to_string(false).ok().map(|text| ("tokenizer.json", text));
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": parts.bos,
        "eos_token": parts.eos,
        "chat_template": parts.chat_template,
    });
    tokenizer.into_iter().chain([("tokenizer_config.json", format!("{config:#}\n"))]).collect()
}

/// What every kind of tokenizer is made of.
struct Vocabulary<'a> {
    model: &'a str,
    tokens: Vec<&'a str>,
    /// One for each token, or none at all.
    types: Vec<f64>,
}

/// What the kinds of tokenizers differ in.
struct Kind {
    tokenizer: Tokenizer,
    /// Whether a text begins with its token where the file does not say.
    adds_bos: bool,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>) -> Option<Self> {
        let model = metadata.text(MODEL).filter(|model| !["no_vocab", "none"].contains(model))?;
        let Some(tokens) = metadata.texts(TOKENS) else {
            metadata.missing_unless_there(TOKENS);
            return None;
        };
        let types = per_token(metadata, TOKEN_TYPES, tokens.len()).unwrap_or_default();
        Some(Self { model, tokens, types })
    }

    fn parts(&self, metadata: &Metadata<'a>) -> Option<TokenizerParts> {
        let kind = match self.model {
            "gpt2" => byte_level::read(self, metadata)?,
            "llama" => pieces::read(self, metadata)?,
            other => {
                metadata.fault(MODEL, format!("`{other}` is not supported; supported are gpt2 and llama"));
                return None;
            }
        };
        let Kind { mut tokenizer, adds_bos } = kind;
        let (control, user_defined) = (self.added(CONTROL, &tokenizer), self.added(USER_DEFINED, &tokenizer));
        tokenizer.add_special_tokens(&control);
        tokenizer.add_tokens(&user_defined);
        let (bos, eos) = (self.token(metadata, BOS), self.token(metadata, EOS));
        let adds_bos = metadata.flag(ADD_BOS).unwrap_or(adds_bos);
        let adds_eos = metadata.flag(ADD_EOS).unwrap_or(false);
        let (first, last) = (bos.filter(|_| adds_bos), eos.filter(|_| adds_eos));
        if first.is_some() || last.is_some() {
            match framed(first, last) {
                Ok(processor) => tokenizer.with_post_processor(Some(processor)),
                Err(error) => {
                    metadata.fault(ADD_BOS, format!("cannot be honoured: {error}"));
                    return None;
                }
            };
        }
        let text = |token: Option<(u32, &str)>| token.map(|(_, text)| text.to_owned());
        Some(TokenizerParts {
            tokenizer,
            bos: text(bos),
            eos: text(eos),
            stop_ids: self.stop_ids(metadata),
            chat_template: metadata.text("tokenizer.chat_template").map(str::to_owned),
        })
    }

    /// Tokens of a type, which are found in a text before it is cut. Those that the tokenizer spells in another way are
    /// not among them: they would get ids behind all others.
    fn added(&self, of_type: f64, tokenizer: &Tokenizer) -> Vec<AddedToken> {
        let chosen = self.tokens.iter().zip(&self.types).filter(|(_, token_type)| **token_type == of_type);
        chosen
            .filter(|(token, _)| !token.is_empty() && tokenizer.token_to_id(token).is_some())
            .map(|(token, _)| AddedToken::from(*token, of_type == CONTROL).normalized(false))
            .collect()
    }

    /// The token whose id stands under `key`.
    fn token(&self, metadata: &Metadata<'a>, key: &str) -> Option<(u32, &'a str)> {
        let id = metadata.token_id(key)?;
        let text = self.tokens.get(id as usize).copied();
        if text.is_none() {
            metadata.fault(key, format!("= {id}, and there are {} tokens", self.tokens.len()));
        }
        Some((id, text?))
    }

    fn stop_ids(&self, metadata: &Metadata<'a>) -> Vec<u32> {
        let named = STOPS.iter().filter_map(|key| self.token(metadata, key)).map(|(id, _)| id);
        let turn_ends = (0u32..).zip(&self.tokens).zip(&self.types);
        let turn_ends = turn_ends.filter(|((_, text), of_type)| **of_type == CONTROL && TURN_ENDS.contains(text));
        let mut ids: Vec<u32> = named.chain(turn_ends.map(|((id, _), _)| id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn vocab(&self) -> Vocab {
        self.tokens.iter().map(|token| (*token).to_owned()).zip(0..).collect()
    }

    /// A model of merges, set up further by `setup`; the merges stand under `key`, or follow from it.
    fn bpe(
        &self,
        metadata: &Metadata<'a>,
        merges: Merges,
        key: &str,
        setup: impl FnOnce(BpeBuilder) -> BpeBuilder,
    ) -> Option<BPE> {
        let model = setup(BPE::builder().vocab_and_merges(self.vocab(), merges)).build();
        model.map_err(|error| metadata.fault(key, format!("do not go with the tokens: {error}"))).ok()
    }

    /// The merges of the file, if it has any.
    fn merges(&self, metadata: &Metadata<'a>) -> Option<Merges> {
        let pair = |merge: &str| merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
        let texts = metadata.texts(MERGES)?;
        let merges: Option<Merges> = texts.iter().map(|merge| pair(merge)).collect();
        if merges.is_none() {
            metadata.fault(MERGES, "must hold pairs of tokens with a space between them");
        }
        merges
    }
}

/// The numbers under `key`, one for each token.
fn per_token(metadata: &Metadata<'_>, key: &str, n_tokens: usize) -> Option<Vec<f64>> {
    let numbers = metadata.numbers(key)?;
    if numbers.len() != n_tokens {
        metadata.fault(key, format!("must hold {n_tokens} numbers, one for each token, got {}", numbers.len()));
        return None;
    }
    Some(numbers)
}

/// Puts a token before or after each text.
fn framed(first: Option<(u32, &str)>, last: Option<(u32, &str)>) -> serde_json::Result<PostProcessorWrapper> {
    let special = |(_, text): (u32, &str)| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    let around = |sequence: Value| first.map(special).into_iter().chain([sequence]).chain(last.map(special));
    let single: Vec<Value> = around(sequence("A", 0)).collect();
    let pair: Vec<Value> = around(sequence("A", 0)).chain(around(sequence("B", 1))).collect();
    let tokens = first
        .into_iter()
        .chain(last)
        .map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})));
    let tokens: serde_json::Map<String, Value> = tokens.collect();
    serde_json::from_value(json!({
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens,
    }))
}
