//! What a model reads in one call.

use burn::tensor::{Int, Tensor};

use super::config::ModelConfig;
use crate::error::Error;

/// One batch: token ids (or images, or hidden states, for models that read those), and what belongs to them.
///
/// Ids are kept on the host, where they are checked against the vocabulary: some backends read other memory when an id
/// is out of range.
#[derive(Clone, Debug)]
pub struct ModelInput {
    pub(super) source: Source,
    pub(super) types: Option<Vec<Vec<i64>>>,
    pub(super) hidden_keys: Option<Vec<Vec<bool>>>,
    pub(super) encoder_input: Option<Box<ModelInput>>,
}

#[derive(Clone, Debug)]
pub(super) enum Source {
    Tokens(Vec<Vec<i64>>),
    Pixels(Tensor<4>),
    Hidden(Tensor<3>),
}

impl ModelInput {
    /// Token ids, one row per sequence.
    pub fn tokens<T: Copy + Into<i64>>(rows: &[Vec<T>]) -> Self {
        Self::new(Source::Tokens(to_i64(rows)))
    }

    /// Token ids in a tensor, which are read back to the host.
    ///
    /// # Shapes
    ///
    /// - ids: `[batch, seq]`
    pub fn from_tensor(ids: Tensor<2, Int>) -> Self {
        let [batch, seq] = ids.dims();
        // D10: the integer type differs between backends.
        let ids: Vec<i64> = ids.into_data().iter::<i64>().collect();
        let rows = if seq == 0 { vec![Vec::new(); batch] } else { ids.chunks(seq).map(<[i64]>::to_vec).collect() };
        Self::new(Source::Tokens(rows))
    }

    /// Hidden states, for a model without embeddings.
    ///
    /// # Shapes
    ///
    /// - states: `[batch, seq, d_model]`
    pub fn hidden(states: Tensor<3>) -> Self {
        Self::new(Source::Hidden(states))
    }

    /// Images, for a model of patches.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, height, width]`
    pub fn pixels(images: Tensor<4>) -> Self {
        Self::new(Source::Pixels(images))
    }

    fn new(source: Source) -> Self {
        Self { source, types: None, hidden_keys: None, encoder_input: None }
    }

    /// Token types, one row per sequence.
    #[must_use]
    pub fn with_types<T: Copy + Into<i64>>(mut self, rows: &[Vec<T>]) -> Self {
        self.types = Some(to_i64(rows));
        self
    }

    /// Padding, one row per sequence: `true` where the token is padding. Padding is never attended to and does not
    /// move positions, so that a padded row gives what it gives alone.
    #[must_use]
    pub fn with_padding(mut self, rows: Vec<Vec<bool>>) -> Self {
        self.hidden_keys = Some(rows);
        self
    }

    /// What the encoder reads, in a model that has one beside its decoder: one row for each row of this input. It is
    /// given in the first call with a cache; the cache remembers it.
    #[must_use]
    pub fn with_source(mut self, source: ModelInput) -> Self {
        self.encoder_input = Some(Box::new(source));
        self
    }

    /// Batch and sequence length. How many patches an image has is the model's to say: the length of images is 0.
    pub fn dims(&self) -> [usize; 2] {
        match &self.source {
            Source::Tokens(rows) => [rows.len(), rows.first().map_or(0, Vec::len)],
            Source::Pixels(images) => [images.dims()[0], 0],
            Source::Hidden(states) => [states.dims()[0], states.dims()[1]],
        }
    }

    /// For each row, the place of its last token: one that is neither marked as padding nor has the id `padding_id`. A
    /// row of padding alone has place 0.
    pub(super) fn last_tokens(&self, padding_id: Option<u32>) -> Vec<usize> {
        let [batch, seq] = self.dims();
        let is_token = |row: usize, at: usize| {
            let is_marked = self.hidden_keys.as_ref().is_some_and(|rows| rows[row][at]);
            let fills_up = match (&self.source, padding_id) {
                (Source::Tokens(rows), Some(padding_id)) => rows[row][at] == i64::from(padding_id),
                _ => false,
            };
            !is_marked && !fills_up
        };
        (0..batch).map(|row| (0..seq).rev().find(|at| is_token(row, *at)).unwrap_or(0)).collect()
    }

    /// Checks the batch against the model it is for.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), Error> {
        let [batch, seq] = self.dims();
        match &self.source {
            Source::Tokens(rows) => {
                let Some(embedding) = &config.embedding else {
                    let takes = if config.patches.is_some() { "images" } else { "hidden states" };
                    return input_error(format!("the model has no embeddings and takes {takes}, not token ids"));
                };
                same_lengths(rows, batch, seq, "token ids")?;
                in_range(rows, embedding.vocab_size, "token id", "the vocabulary has")?;
            }
            Source::Pixels(images) => {
                let Some(patches) = &config.patches else {
                    return input_error("the model has no patch embedding and takes no images");
                };
                let [_, shape @ ..] = images.dims();
                let expected = patches.image_shape();
                if shape != expected {
                    let problem = format!("images have shape {shape:?} (channels, height, width), the model takes");
                    return input_error(format!("{problem} {expected:?}"));
                }
                if self.hidden_keys.is_some() {
                    return input_error("padding is given, and images have none");
                }
            }
            Source::Hidden(states) => {
                let width = states.dims()[2];
                if width != config.d_model {
                    return input_error(format!("hidden states have width {width}, the model {}", config.d_model));
                }
                if config.embedding.is_some() {
                    return input_error("the model has embeddings and takes token ids, not hidden states");
                }
                if config.patches.is_some() {
                    return input_error("the model has a patch embedding and takes images, not hidden states");
                }
            }
        }
        if let Some(types) = &self.types {
            let n_types = config.embedding.as_ref().map_or(0, |embedding| embedding.n_types);
            if n_types == 0 {
                return input_error("token types are given, and the model has none");
            }
            same_lengths(types, batch, seq, "token types")?;
            in_range(types, n_types, "token type", "the model has")?;
        }
        if let Some(padding) = &self.hidden_keys {
            same_lengths(padding, batch, seq, "padding")?;
        }
        if let Some(source) = &self.encoder_input {
            if config.encoder.is_none() {
                return input_error("a source is given, and the model has no encoder beside its decoder");
            }
            if source.encoder_input.is_some() {
                return input_error("a source has no source of its own");
            }
            let [rows, _] = source.dims();
            if rows != batch {
                return input_error(format!("the source has {rows} rows, the batch {batch}"));
            }
            source.check(config)?;
        }
        Ok(())
    }
}

fn to_i64<T: Copy + Into<i64>>(rows: &[Vec<T>]) -> Vec<Vec<i64>> {
    rows.iter().map(|row| row.iter().map(|id| (*id).into()).collect()).collect()
}

fn input_error<T>(problem: impl Into<String>) -> Result<T, Error> {
    Err(Error::Input(problem.into()))
}

fn same_lengths<T>(rows: &[Vec<T>], batch: usize, seq: usize, what: &str) -> Result<(), Error> {
    if rows.len() != batch {
        return input_error(format!("{what}: expected {batch} rows, got {}", rows.len()));
    }
    match rows.iter().enumerate().find(|(_, row)| row.len() != seq) {
        Some((index, row)) => input_error(format!(
            "{what}: row {index} has {} entries, the first row has {seq}; pad shorter rows and say so",
            row.len()
        )),
        None => Ok(()),
    }
}

fn in_range(rows: &[Vec<i64>], len: usize, what: &str, owner: &str) -> Result<(), Error> {
    match rows.iter().flatten().find(|id| **id < 0 || **id >= len as i64) {
        Some(id) => input_error(format!("{what} {id} is out of range: {owner} {len}, from 0 to {}", len - 1)),
        None => Ok(()),
    }
}
