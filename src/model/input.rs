//! What a model reads in one call.

use burn::tensor::{Int, Tensor};

use super::config::ModelConfig;
use crate::error::Error;

/// One batch: token ids (or hidden states, for a model without embeddings), and what belongs to them.
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

#[expect(clippy::large_enum_variant, reason = "there is one per call")]
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tokens(Vec<Vec<i64>>),
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

    /// Batch and sequence length.
    pub fn dims(&self) -> [usize; 2] {
        match &self.source {
            Source::Tokens(rows) => [rows.len(), rows.first().map_or(0, Vec::len)],
            Source::Hidden(states) => [states.dims()[0], states.dims()[1]],
        }
    }

    /// Checks the batch against the model it is for.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), Error> {
        let [batch, seq] = self.dims();
        match &self.source {
            Source::Tokens(rows) => {
                let Some(embedding) = &config.embedding else {
                    return input_error("the model has no embeddings and takes hidden states, not token ids");
                };
                same_lengths(rows, batch, seq, "token ids")?;
                in_range(rows, embedding.vocab_size, "token id", "the vocabulary has")?;
            }
            Source::Hidden(states) => {
                let width = states.dims()[2];
                if width != config.d_model {
                    return input_error(format!("hidden states have width {width}, the model {}", config.d_model));
                }
                if config.embedding.is_some() {
                    return input_error("the model has embeddings and takes token ids, not hidden states");
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
