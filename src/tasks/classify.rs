//! Labels of texts, of their tokens, and of images.

use burn::tensor::{Device, FloatDType};
use serde::Serialize;
use tokenizers::{Encoding, Tokenizer};

use super::text_batch::{BATCH, TextInput, batch, encode};
use super::{largest_first, softmax, tokenizer_of};
use crate::error::Error;
use crate::images::Images;
use crate::model::{ForwardOptions, Logits, ModelInput, Transformer};
use crate::pretrained::{Checkpoint, LoadReport, Scoring, Task, TaskKind};

/// A model with a task head, and what its scores mean.
pub struct Classifier {
    pub(super) model: Transformer,
    task: Task,
    /// Absent in a model of images.
    tokenizer: Option<Tokenizer>,
    not_finite: Vec<String>,
}

/// A label and how sure the model is of it.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Its probability, or the quantity that a regression gives.
    pub score: f64,
}

/// The likeliest label of a token.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct TokenLabel {
    /// The token as the vocabulary has it.
    pub token: String,
    /// Its place among the tokens of the text, the special ones counted.
    pub index: usize,
    /// Where it starts in the text, in characters.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// The label.
    pub label: String,
    /// The label's probability.
    pub score: f64,
}

impl Classifier {
    /// Loads the model of a checkpoint, and the tokenizer that lies beside it.
    ///
    /// # Errors
    ///
    /// When the checkpoint has no task head, no tokenizer for a model of text, or cannot be loaded.
    pub fn new(checkpoint: &Checkpoint, device: &Device, dtype: FloatDType) -> Result<Self, Error> {
        let folder = checkpoint.folder();
        let task = checkpoint.task().cloned().ok_or_else(|| {
            Error::file(folder, "has no head for labels or answers; name a checkpoint that was trained for that task")
        })?;
        let tokenizer = match checkpoint.config().embedding {
            Some(_) => Some(tokenizer_of(checkpoint)?),
            None => None,
        };
        let (model, LoadReport { not_finite, .. }) = checkpoint.load(device, dtype)?;
        Ok(Self { model, task, tokenizer, not_finite })
    }

    /// Tensors of the checkpoint with numbers that are NaN or infinite, which spoil every score.
    pub fn not_finite(&self) -> &[String] {
        &self.not_finite
    }

    /// What the model's scores mean.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The labels of each text, the likeliest first; of equal ones in the order of the model.
    ///
    /// # Errors
    ///
    /// When the model labels something else, or a text cannot be read.
    pub fn classify(&self, texts: &[TextInput]) -> Result<Vec<Vec<LabelScore>>, Error> {
        self.expect(TaskKind::Whole)?;
        let scores = self.scores(&self.encodings(texts)?)?;
        Ok(scores.iter().map(|scores| self.labels(scores)).collect())
    }

    /// The labels of each image, the likeliest first; of equal ones in the order of the model.
    ///
    /// # Errors
    ///
    /// When the model reads no images, or images of another size.
    pub fn classify_images(&self, images: &Images) -> Result<Vec<Vec<LabelScore>>, Error> {
        self.expect(TaskKind::Whole)?;
        let rows = self.forward(&ModelInput::pixels(images.tensor(&self.model.device())))?;
        Ok(rows.iter().map(|scores| self.labels(scores)).collect())
    }

    /// The likeliest label of each token of each text, special tokens left out.
    ///
    /// # Errors
    ///
    /// When the model labels something else, or a text cannot be read.
    pub fn label_tokens(&self, texts: &[String]) -> Result<Vec<Vec<TokenLabel>>, Error> {
        self.expect(TaskKind::Tokens)?;
        let texts: Vec<TextInput> = texts.iter().map(TextInput::from).collect();
        let encodings = self.encodings(&texts)?;
        let scores = self.scores(&encodings)?;
        Ok(encodings.iter().zip(&scores).map(|(encoding, scores)| self.labels_of_tokens(encoding, scores)).collect())
    }

    fn labels_of_tokens(&self, encoding: &Encoding, scores: &[f64]) -> Vec<TokenLabel> {
        let rows = scores.chunks(self.task.labels.len()).zip(encoding.get_special_tokens_mask()).enumerate();
        let words = rows.filter(|(_, (_, is_special))| **is_special == 0);
        let label_of = |(index, (scores, _)): (usize, (&[f64], &u32))| {
            let probabilities = softmax(scores);
            let label = largest_first(&probabilities)[0];
            let (start, end) = encoding.get_offsets()[index];
            TokenLabel {
                token: encoding.get_tokens()[index].clone(),
                index,
                start,
                end,
                label: self.task.labels[label].clone(),
                score: probabilities[label],
            }
        };
        words.map(label_of).collect()
    }

    pub(super) fn expect(&self, kind: TaskKind) -> Result<(), Error> {
        if self.task.kind == kind {
            return Ok(());
        }
        let says = |kind| match kind {
            TaskKind::Whole => "labels whole texts or images",
            TaskKind::Tokens => "labels tokens",
            TaskKind::Answer => "answers questions",
        };
        Err(Error::Input(format!(
            "the model {}; what was asked for needs one that {}",
            says(self.task.kind),
            says(kind)
        )))
    }

    /// The tokenizer of a model of text.
    pub(super) fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Input("the model reads images, not text".into()))
    }

    fn encodings(&self, texts: &[TextInput]) -> Result<Vec<Encoding>, Error> {
        let tokenizer = self.tokenizer()?;
        texts.iter().map(|text| encode(tokenizer, text)).collect()
    }

    /// The scores of each text; `[seq, n_labels]` row by row where tokens have scores, those of padding at the end.
    pub(super) fn scores(&self, encodings: &[Encoding]) -> Result<Vec<Vec<f64>>, Error> {
        let mut found = Vec::with_capacity(encodings.len());
        for encodings in encodings.chunks(BATCH) {
            found.extend(self.forward(&batch(encodings, self.model.config())?)?);
        }
        Ok(found)
    }

    /// The scores of each row.
    fn forward(&self, input: &ModelInput) -> Result<Vec<Vec<f64>>, Error> {
        let options = ForwardOptions { logits: Logits::None, ..ForwardOptions::default() };
        let scores = self.model.forward(input, None, options)?.scores;
        let scores = scores.ok_or_else(|| Error::Input("there is nothing to label".into()))?;
        let [_, seq, n_labels] = scores.dims();
        let values: Vec<f64> = scores.into_data().iter::<f64>().collect();
        Ok(values.chunks((seq * n_labels).max(1)).map(<[f64]>::to_vec).collect())
    }

    fn labels(&self, scores: &[f64]) -> Vec<LabelScore> {
        let scores = match self.task.scoring {
            Scoring::OneOf => softmax(scores),
            Scoring::EachAlone => scores.iter().map(|score| 1.0 / (1.0 + (-score).exp())).collect(),
            Scoring::Quantity => scores.to_vec(),
        };
        let labelled = |index: usize| LabelScore { label: self.task.labels[index].clone(), score: scores[index] };
        largest_first(&scores).into_iter().map(labelled).collect()
    }
}
