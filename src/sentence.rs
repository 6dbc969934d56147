//! Sentence embeddings: tokenizer, encoder, pooling and normalisation as the files of a `sentence-transformers` model
//! say.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use crate::error::Error;
use crate::model::{ForwardOptions, Logits, ModelInput, Transformer};
use crate::positions::{LearnedPositions, Positions};
use crate::pretrained::{Checkpoint, LoadReport};
use crate::tokenizer::read_tokenizer;

/// Texts that are run at a time.
const BATCH: usize = 32;

/// A model that turns texts into vectors.
pub struct SentenceEncoder {
    tokenizer: Tokenizer,
    model: Transformer,
    lower_case: bool,
    pooling: Vec<Pooling>,
    normalize: bool,
    /// Stands in padded places; which id it is matters only where positions are counted by it.
    padding_id: i64,
    not_finite: Vec<String>,
}

/// How the vectors of all tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    /// The first token.
    Cls,
    /// The largest value of each feature.
    Max,
    /// The mean over tokens.
    Mean,
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct ModuleEntry {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The configuration of a pooling module.
#[derive(Deserialize)]
struct PoolingConfig {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_sqrt_len_tokens: bool,
    #[serde(default)]
    pooling_mode_weightedmean_tokens: bool,
    #[serde(default)]
    pooling_mode_lasttoken: bool,
}

/// `sentence_bert_config.json`.
#[derive(Deserialize, Default)]
struct EncoderConfig {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

/// The parts of `config_sentence_transformers.json` that change embeddings.
#[derive(Deserialize, Default)]
struct PromptConfig {
    default_prompt_name: Option<String>,
}

impl SentenceEncoder {
    /// Reads a model from a folder. Without `modules.json`, tokens are averaged and the mean is not normalised.
    ///
    /// # Errors
    ///
    /// When a file is missing or broken, or asks for something that this encoder does not do.
    pub fn open(folder: impl AsRef<Path>, device: &Device, dtype: FloatDType) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let Modules { encoder, pooling, normalize } = Modules::read(folder)?;
        let prompts = folder.join("config_sentence_transformers.json");
        if let Some(PromptConfig { default_prompt_name: Some(name) }) = read_json(&prompts)? {
            return Err(Error::file(&prompts, format!("has the default prompt `{name}`, which is not supported")));
        }
        let config: EncoderConfig = read_json(&encoder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let (model, LoadReport { not_finite, .. }) = Checkpoint::open(&encoder)?.load(device, dtype)?;
        let limit = model.config().max_seq_len;
        let max_length = config.max_seq_length.map_or(limit, |length| length.min(limit));
        let mut tokenizer = read_tokenizer(&encoder)?;
        let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        if max_length <= special {
            return Err(Error::file(
                folder,
                format!("texts are cut to {max_length} tokens, which leaves none for words"),
            ));
        }
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|error| Error::file(folder, error))?;
        let padding_id = match model.config().positions {
            Positions::Learned(LearnedPositions { padding_id: Some(id), .. }) => id.into(),
            _ => 0,
        };
        Ok(Self { tokenizer, model, lower_case: config.do_lower_case, pooling, normalize, padding_id, not_finite })
    }

    /// Tensors of the checkpoint with numbers that are NaN or infinite, which spoil every embedding.
    pub fn not_finite(&self) -> &[String] {
        &self.not_finite
    }

    /// The embeddings of `texts`, in their order. Texts that are too long are cut.
    ///
    /// # Errors
    ///
    /// When a text cannot be tokenized or the model refuses the tokens.
    pub fn encode(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        let mut embeddings = Vec::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            embeddings.extend(self.encode_batch(batch)?);
        }
        Ok(embeddings)
    }

    fn encode_batch(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        let mut rows = texts.iter().map(|text| self.tokens(text)).collect::<Result<Vec<_>, _>>()?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        for row in &mut rows {
            row.resize(longest, self.padding_id);
        }
        let padding = lengths.iter().map(|length| (0..longest).map(|at| at >= *length).collect()).collect();
        let input = ModelInput::tokens(&rows).with_padding(padding);
        let options = ForwardOptions { logits: Logits::None, ..ForwardOptions::default() };
        let hidden = self.model.forward(&input, None, options)?.hidden;
        let [_, _, width] = hidden.dims();
        let values: Vec<f64> = hidden.into_data().iter::<f64>().collect();
        let embedding = |(row, length): (usize, &usize)| {
            let start = row * longest * width;
            self.pool(&values[start..start + length * width], width)
        };
        Ok(lengths.iter().enumerate().map(embedding).collect())
    }

    fn tokens(&self, text: &str) -> Result<Vec<i64>, Error> {
        let lower = self.lower_case.then(|| text.to_lowercase());
        let text = lower.as_deref().unwrap_or(text).trim();
        let encoding = self.tokenizer.encode(text, true);
        let encoding = encoding.map_err(|error| Error::Input(format!("a text cannot be tokenized: {error}")))?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }

    /// One vector from those of the tokens of one text, `[tokens, width]` row by row. No tokens give zeros.
    fn pool(&self, tokens: &[f64], width: usize) -> Vec<f32> {
        let count = (tokens.len() / width).max(1) as f64;
        let mut pooled = Vec::with_capacity(width * self.pooling.len());
        for pooling in &self.pooling {
            let column = |feature: usize| tokens.iter().skip(feature).step_by(width).copied();
            pooled.extend((0..width).map(|feature| match pooling {
                _ if tokens.is_empty() => 0.0,
                Pooling::Cls => tokens[feature],
                Pooling::Max => column(feature).fold(f64::NEG_INFINITY, f64::max),
                Pooling::Mean => column(feature).sum::<f64>() / count,
            }));
        }
        let norm = pooled.iter().map(|value| value * value).sum::<f64>().sqrt().max(1e-12);
        let scale = if self.normalize { 1.0 / norm } else { 1.0 };
        pooled.into_iter().map(|value| (value * scale) as f32).collect()
    }
}

/// What `modules.json` says.
struct Modules {
    /// Folder of the encoder.
    encoder: PathBuf,
    pooling: Vec<Pooling>,
    normalize: bool,
}

impl Modules {
    fn read(folder: &Path) -> Result<Self, Error> {
        let mut modules = Self { encoder: folder.to_owned(), pooling: vec![Pooling::Mean], normalize: false };
        let path = folder.join("modules.json");
        let entries: Vec<ModuleEntry> = read_json(&path)?.unwrap_or_default();
        for ModuleEntry { path: part, kind } in entries {
            // `sentence_transformers.models.Pooling`, or another path to the same name.
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => modules.encoder = folder.join(part),
                "Pooling" => modules.pooling = read_pooling(&folder.join(part).join("config.json"))?,
                "Normalize" => modules.normalize = true,
                _ => return Err(Error::file(&path, format!("lists the module `{kind}`, which is not supported"))),
            }
        }
        Ok(modules)
    }
}

fn read_pooling(path: &Path) -> Result<Vec<Pooling>, Error> {
    let config: PoolingConfig = read_json(path)?.ok_or_else(|| Error::file(path, "there is no such file"))?;
    for (is_on, name) in [
        (config.pooling_mode_mean_sqrt_len_tokens, "pooling_mode_mean_sqrt_len_tokens"),
        (config.pooling_mode_weightedmean_tokens, "pooling_mode_weightedmean_tokens"),
        (config.pooling_mode_lasttoken, "pooling_mode_lasttoken"),
    ] {
        if is_on {
            return Err(Error::file(path, format!("asks for `{name}`, which is not supported")));
        }
    }
    // Several are joined, in this order.
    let modes = [
        (config.pooling_mode_cls_token, Pooling::Cls),
        (config.pooling_mode_max_tokens, Pooling::Max),
        (config.pooling_mode_mean_tokens, Pooling::Mean),
    ];
    let modes: Vec<Pooling> = modes.into_iter().filter(|(is_on, _)| *is_on).map(|(_, mode)| mode).collect();
    if modes.is_empty() {
        return Err(Error::file(path, "turns no pooling on; expected one of cls, max and mean"));
    }
    Ok(modes)
}

/// The cosine of the angle between two vectors; 0 where one is zero.
///
/// # Panics
///
/// When the lengths differ.
pub fn cosine_similarity(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "vectors of {} and {} numbers", a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms == 0.0 { 0.0 } else { dot(a, b) / norms }
}

/// The file's content, or `None` where there is no such file.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => match serde_json::from_str(&text) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(Error::file(path, format!("has not the form expected: {error}"))),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path, error)),
    }
}
