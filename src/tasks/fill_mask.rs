//! Words in the place of masks.

use std::path::Path;

use burn::tensor::{Device, FloatDType};
use serde::Serialize;
use serde_json::Value;
use tokenizers::{Encoding, Tokenizer};

use super::text_batch::{TextInput, batch, encode};
use super::{largest_first, softmax, tokenizer_of};
use crate::error::Error;
use crate::model::{ForwardOptions, Logits, ModelKind, Transformer};
use crate::pretrained::{Checkpoint, LoadReport};

/// Masks of models whose files do not say what theirs is.
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];

/// A model that predicts masked words.
pub struct MaskFiller {
    model: Transformer,
    tokenizer: Tokenizer,
    mask: String,
    mask_id: u32,
    not_finite: Vec<String>,
}

/// What can stand in the place of one mask.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct MaskedToken {
    /// The mask's place among the tokens of the text, the special ones counted.
    pub position: usize,
    /// The likeliest tokens, the likeliest first; of equal ones by id.
    pub candidates: Vec<Candidate>,
}

/// A token in the place of a mask.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The token as text.
    pub token: String,
    /// Its id.
    pub id: u32,
    /// Its probability.
    pub score: f64,
    /// The text with the token in the place of this mask; where there are more masks, with them and all special tokens.
    pub sequence: String,
}

impl MaskFiller {
    /// Loads the model of a checkpoint, and the tokenizer that lies beside it.
    ///
    /// # Errors
    ///
    /// When the checkpoint has no head that predicts masked tokens, no tokenizer or one without a mask, or cannot be
    /// loaded.
    pub fn new(checkpoint: &Checkpoint, device: &Device, dtype: FloatDType) -> Result<Self, Error> {
        let (folder, config) = (checkpoint.folder(), checkpoint.config());
        if config.kind != ModelKind::Encoder || config.head.is_none() {
            return Err(Error::file(folder, "has no head that predicts masked tokens; name a masked language model"));
        }
        let tokenizer = tokenizer_of(checkpoint)?;
        let named = mask_in(&folder.join("tokenizer_config.json"))?;
        let known = |mask: &str| tokenizer.token_to_id(mask).map(|id| (mask.to_owned(), id));
        let found = match &named {
            Some(mask) => known(mask),
            None => MASKS.into_iter().find_map(known),
        };
        let (mask, mask_id) = found.ok_or_else(|| Error::file(folder, "has a tokenizer without a mask token"))?;
        let (model, LoadReport { not_finite, .. }) = checkpoint.load(device, dtype)?;
        Ok(Self { model, tokenizer, mask, mask_id, not_finite })
    }

    /// Tensors of the checkpoint with numbers that are NaN or infinite, which spoil every prediction.
    pub fn not_finite(&self) -> &[String] {
        &self.not_finite
    }

    /// The mask, as it is written in texts.
    pub fn mask(&self) -> &str {
        &self.mask
    }

    /// The `top_k` likeliest tokens for each mask of each text.
    ///
    /// # Errors
    ///
    /// When a text has no mask or cannot be read.
    pub fn fill(&self, texts: &[String], top_k: usize) -> Result<Vec<Vec<MaskedToken>>, Error> {
        // One at a time: logits are large.
        texts.iter().map(|text| self.fill_one(text, top_k)).collect()
    }

    fn fill_one(&self, text: &str, top_k: usize) -> Result<Vec<MaskedToken>, Error> {
        let encoding = encode(&self.tokenizer, &TextInput::from(text))?;
        let ids = encoding.get_ids();
        let masks: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == self.mask_id).collect();
        if masks.is_empty() {
            return Err(Error::Input(format!(
                "there is no mask in `{text}`; write `{}` where a word is missing",
                self.mask
            )));
        }
        let input = batch(std::slice::from_ref(&encoding), self.model.config())?;
        let options = ForwardOptions { logits: Logits::None, ..ForwardOptions::default() };
        let hidden = self.model.forward(&input, None, options)?.hidden;
        let fill = |position: usize| {
            let at_mask = hidden.clone().slice_dim(1, position..position + 1);
            let logits = self.model.logits_of(at_mask).ok_or_else(|| Error::Input("the model has no head".into()))?;
            let probabilities = softmax(&logits.into_data().iter::<f64>().collect::<Vec<_>>());
            let best = largest_first(&probabilities).into_iter().take(top_k);
            let candidates =
                best.map(|id| self.candidate(&encoding, position, masks.len() == 1, id, probabilities[id]));
            Ok(MaskedToken { position, candidates: candidates.collect::<Result<_, Error>>()? })
        };
        masks.iter().map(|position| fill(*position)).collect()
    }

    fn candidate(
        &self,
        encoding: &Encoding,
        position: usize,
        is_only_mask: bool,
        id: usize,
        score: f64,
    ) -> Result<Candidate, Error> {
        let decode = |ids: &[u32], skip_special: bool| {
            let text = self.tokenizer.decode(ids, skip_special);
            text.map_err(|error| Error::Input(format!("token {id} cannot be written as text: {error}")))
        };
        let id = id as u32;
        let mut ids = encoding.get_ids().to_vec();
        ids[position] = id;
        Ok(Candidate { token: decode(&[id], false)?, id, score, sequence: decode(&ids, is_only_mask)? })
    }
}

/// The mask that `tokenizer_config.json` names, as a text or as an object that holds one.
fn mask_in(path: &Path) -> Result<Option<String>, Error> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file(path, error)),
    };
    let config: Value =
        serde_json::from_str(&text).map_err(|error| Error::file(path, format!("is not valid JSON: {error}")))?;
    let mask = &config["mask_token"];
    Ok(mask.as_str().or(mask["content"].as_str()).map(str::to_owned))
}
