//! The tokens that a command looks at, and how they are called.

use burnformer::Error;
use burnformer::head_roles::{HeadInput, RepeatedTokens};
use burnformer::model::AttentionPart;
use burnformer::tokenizer::TokenizerParts;
use clap::Args;

use crate::arguments::{Row, positive};
use crate::model_argument::ModelArgument;
use crate::random::Random;

/// What a model is to read.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct TextSource {
    /// Text, for a checkpoint with a tokenizer.
    #[arg(long)]
    text: Option<String>,
    /// Token ids, separated by commas.
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    tokens: Option<Row<i64>>,
    /// This many random tokens.
    #[arg(long, value_name = "N", value_parser = positive)]
    seq: Option<usize>,
}

/// Tokens and how they are called.
pub struct LabelledTokens {
    pub ids: Vec<i64>,
    labels: Vec<String>,
    /// The token that begins every text, where these begin with it.
    prefix: Vec<i64>,
    /// The token that the decoder of a model with an encoder begins with.
    start: Option<i64>,
    start_label: Option<String>,
}

impl TextSource {
    /// Reads what is given.
    pub fn read(&self, argument: &ModelArgument, seed: u64) -> Result<LabelledTokens, Error> {
        let tokenizer = tokenizer_of(argument);
        let (ids, tokenizer) = match (&self.text, &self.tokens) {
            (Some(text), _) => {
                let tokenizer = tokenizer?;
                (encode_with(tokenizer.as_ref(), text)?, tokenizer)
            }
            // A tokenizer only serves to call these by their names.
            (None, Some(row)) => (row.0.clone(), tokenizer.unwrap_or_default()),
            (None, None) => {
                let mut random = Random::new(seed);
                let (count, vocab_size) = (self.seq.unwrap_or_default(), argument.config().vocab_size());
                ((0..count).map(|_| random.below(vocab_size)).collect(), tokenizer.unwrap_or_default())
            }
        };
        let bos = tokenizer.as_ref().and_then(|parts| parts.tokenizer.token_to_id(parts.bos.as_deref()?));
        let start = match argument.config().encoder {
            Some(_) => argument.checkpoint().map_or(Ok(None), |checkpoint| checkpoint.start_id())?,
            None => None,
        };
        Ok(LabelledTokens {
            prefix: bos.map(i64::from).filter(|bos| ids.first() == Some(bos)).into_iter().collect(),
            labels: ids.iter().map(|id| label(tokenizer.as_ref(), *id)).collect(),
            start: start.map(i64::from),
            start_label: start.map(|id| label(tokenizer.as_ref(), id.into())),
            ids,
        })
    }
}

impl LabelledTokens {
    /// These tokens with random ones said twice. The decoder of a model with an encoder reads them after the token that it
    /// begins with, the encoder as they are.
    pub fn head_input(&self, argument: &ModelArgument, seed: u64) -> HeadInput {
        let (prefix, source) = match argument.config().encoder {
            Some(_) => (self.start.into_iter().collect(), Some(self.ids.clone())),
            None => (self.prefix.clone(), None),
        };
        let tokens = self.start.into_iter().chain(self.ids.iter().copied()).collect();
        let repeated = RepeatedTokens::for_model(prefix, argument.config(), seed);
        HeadInput::new(tokens).with_source(source).with_repeated(repeated)
    }

    /// What the queries and the keys of a part are called.
    pub fn labels(&self, part: AttentionPart) -> [Vec<String>; 2] {
        let read = || self.labels.clone();
        let written = || self.start_label.iter().chain(&self.labels).cloned().collect();
        match part {
            AttentionPart::Encoder => [read(), read()],
            AttentionPart::Decoder => [written(), written()],
            AttentionPart::Cross => [written(), read()],
        }
    }
}

/// The token ids of a text.
pub fn encode(argument: &ModelArgument, text: &str) -> Result<Vec<i64>, Error> {
    encode_with(tokenizer_of(argument)?.as_ref(), text)
}

fn tokenizer_of(argument: &ModelArgument) -> Result<Option<TokenizerParts>, Error> {
    argument.checkpoint().map_or(Ok(None), |checkpoint| checkpoint.tokenizer())
}

fn encode_with(tokenizer: Option<&TokenizerParts>, text: &str) -> Result<Vec<i64>, Error> {
    let tokenizer = tokenizer.ok_or_else(|| {
        Error::Input("--text needs a tokenizer, and this model comes without one; use --tokens".into())
    })?;
    Ok(tokenizer.encode(text)?.into_iter().map(i64::from).collect())
}

/// The text of a token, or its name in the tokenizer where it stands for none, or its number.
fn label(tokenizer: Option<&TokenizerParts>, id: i64) -> String {
    let named = tokenizer.and_then(|parts| {
        let id = u32::try_from(id).ok()?;
        let name = parts.tokenizer.id_to_token(id)?;
        let text = parts.decode(&[id]).ok().filter(|text| !text.trim().is_empty() && !text.contains('\u{fffd}'));
        Some(text.map_or(name, |text| text.trim().to_owned()))
    });
    named.unwrap_or_else(|| id.to_string())
}
