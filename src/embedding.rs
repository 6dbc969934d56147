//! From token ids to the residual stream: token, position and type embeddings, with scale, norm and projection.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Initializer};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::blocks::Blocks;
use crate::error::Faults;
use crate::kernel;
use crate::norm::{Norm, NormConfig};
use crate::positions::{LearnedPositions, Positions, sinusoidal};
use crate::projection::Projection;

/// Factor on token embeddings.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingScale {
    /// No factor.
    #[default]
    None,
    /// The square root of `d_model` (the original transformer, Gemma).
    SqrtDModel,
    /// A given number (Granite).
    Constant(f64),
}

/// Configuration of the [`Embedding`] of a model.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingConfig {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the token table; where it differs from `d_model`, projections lead in and out (OPT 350m).
    /// Default: `d_model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_embedding: Option<usize>,
    /// Factor on token embeddings. Default: none.
    #[serde(default)]
    pub scale: EmbeddingScale,
    /// Number of token types (BERT's segments); 0 for none. Default: 0.
    #[serde(default)]
    pub n_types: usize,
    /// Whether the sum of the embeddings is normalised. Default: no.
    #[serde(default)]
    pub norm: bool,
}

impl EmbeddingConfig {
    /// Token embeddings and nothing else.
    pub fn new(vocab_size: usize) -> Self {
        Self { vocab_size, d_embedding: None, scale: EmbeddingScale::None, n_types: 0, norm: false }
    }

    setters! {
        with_d_embedding => d_embedding: usize,
        with_scale => scale: EmbeddingScale,
        with_n_types => n_types: usize,
        with_norm => norm: bool,
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.vocab_size, "vocab_size");
        if let Some(d_embedding) = self.d_embedding {
            faults.positive(d_embedding, "d_embedding");
        }
        if self.n_types > 0 {
            faults.positive(self.n_types, "n_types");
        }
        if let EmbeddingScale::Constant(factor) = self.scale {
            faults.require(factor.is_finite(), "scale", || format!("must be a number, got {factor}"));
        }
    }

    /// Width of the token table in a model of width `d_model`.
    pub fn d_embedding(&self, d_model: usize) -> usize {
        self.d_embedding.unwrap_or(d_model)
    }

    /// Whether projections lead from the table's width to the model's and back.
    pub fn is_projected(&self, d_model: usize) -> bool {
        self.d_embedding(d_model) != d_model
    }

    pub(crate) fn n_parameters(
        &self,
        d_model: usize,
        max_seq_len: usize,
        positions: &Positions,
        norm: NormConfig,
    ) -> u64 {
        let d_embedding = self.d_embedding(d_model);
        let table = self.vocab_size * d_embedding;
        let learned = match positions {
            Positions::Learned(learned) => (max_seq_len + learned.offset) * d_model,
            _ => 0,
        };
        let projection = if self.is_projected(d_model) { d_embedding * d_model } else { 0 };
        let norm = if self.norm { norm.n_parameters(d_model) } else { 0 };
        (table + learned + self.n_types * d_model + projection) as u64 + norm
    }

    pub(crate) fn init(
        &self,
        d_model: usize,
        max_seq_len: usize,
        positions: &Positions,
        norm: NormConfig,
        dropout: f64,
        device: &Device,
    ) -> Embedding {
        let table = |rows, width| Initializer::Normal { mean: 0.0, std: 0.02 }.init([rows, width], device);
        let d_embedding = self.d_embedding(d_model);
        Embedding {
            tokens: table(self.vocab_size, d_embedding),
            positions: match positions {
                Positions::Learned(learned) => Some(table(max_seq_len + learned.offset, d_model)),
                _ => None,
            },
            types: (self.n_types > 0).then(|| table(self.n_types, d_model)),
            project_in: self.is_projected(d_model).then(|| Projection::new(d_embedding, d_model, false, device)),
            norm: self.norm.then(|| norm.init(d_model, device)),
            dropout: DropoutConfig::new(dropout).init(),
            factor: match self.scale {
                EmbeddingScale::None => 1.0,
                EmbeddingScale::SqrtDModel => (d_model as f64).sqrt(),
                EmbeddingScale::Constant(factor) => factor,
            },
            is_sinusoidal: matches!(positions, Positions::Sinusoidal),
            blocks: Blocks::default(),
            offset: match positions {
                Positions::Learned(LearnedPositions { offset, .. }) => *offset,
                _ => 0,
            },
        }
    }
}

/// The embeddings of a model: `norm(project(tokens · factor) + positions + types)`, each part where the model has it.
#[derive(Module, Debug)]
pub struct Embedding {
    /// Token table, `[vocab_size, d_embedding]`.
    pub tokens: Param<Tensor<2>>,
    /// Learned positions, `[max_seq_len + offset, d_model]`.
    pub positions: Option<Param<Tensor<2>>>,
    /// Token types, `[n_types, d_model]`.
    pub types: Option<Param<Tensor<2>>>,
    /// From the table's width to the model's.
    pub project_in: Option<Projection>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
    dropout: Dropout,
    factor: f64,
    is_sinusoidal: bool,
    offset: usize,
    #[module(skip)]
    pub(crate) blocks: Blocks,
}

impl Embedding {
    /// Looks rows up. `positions` may be one row for the whole batch; a position of `None` is RoBERTa's padding, which
    /// takes the row before the first position. Without `types`, type 0 is added where the model has types.
    ///
    /// Ids, types and positions must lie inside their tables: some backends read other memory otherwise.
    /// [`Transformer`](crate::model::Transformer) checks them before it calls this.
    ///
    /// # Shapes
    ///
    /// - ids, types: `batch` rows of `seq` numbers
    /// - positions: `batch` rows or one row of `seq` numbers
    /// - output: `[batch, seq, d_model]`
    pub fn forward(&self, ids: &[Vec<i64>], positions: &[Vec<Option<usize>>], types: Option<&[Vec<i64>]>) -> Tensor<3> {
        let device = self.tokens.lazy_device();
        let token = |id: &i64| *id as usize;
        let mut x = match self.blocks.of(&self.tokens) {
            Some(table) => in_sequences(ids, token, |rows| kernel::quantised_lookup(table, rows, &device)),
            None => lookup(self.tokens.val(), ids, token),
        };
        if self.factor != 1.0 {
            x = x * self.factor;
        }
        if let Some(project_in) = &self.project_in {
            x = project_in.forward(x);
        }
        if let Some(table) = &self.positions {
            // The row before the first position belongs to padding.
            let row = |position: &Option<usize>| match position {
                Some(position) => position + self.offset,
                None => self.offset - 1,
            };
            x = kernel::sum(x, lookup(table.val(), positions, row));
        }
        if self.is_sinusoidal {
            let [_, seq, d_model] = x.dims();
            let rows = positions.iter().flatten().flat_map(|position| sinusoidal(position.unwrap_or(0), d_model));
            let data = TensorData::new(rows.collect::<Vec<f64>>(), [positions.len(), seq, d_model]);
            x = x.clone() + Tensor::from_data(data.convert_dtype(x.dtype()), (&device, x.dtype()));
        }
        if let Some(table) = &self.types {
            let types = match types {
                Some(types) => lookup(table.val(), types, |id| *id as usize),
                None => table.val().slice_dim(0, 0..1).unsqueeze(),
            };
            x = kernel::sum(x, types);
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        self.dropout.forward(x)
    }
}

/// Rows of `table`, one per entry, `[rows, seq, width]`.
fn lookup<T>(table: Tensor<2>, entries: &[Vec<T>], row: impl Fn(&T) -> usize) -> Tensor<3> {
    in_sequences(entries, row, |rows| kernel::lookup(table, rows))
}

fn in_sequences<T>(
    entries: &[Vec<T>],
    row: impl Fn(&T) -> usize,
    lookup: impl FnOnce(Vec<usize>) -> Tensor<2>,
) -> Tensor<3> {
    let (rows, seq) = (entries.len(), entries.first().map_or(0, Vec::len));
    let found = lookup(entries.iter().flatten().map(row).collect());
    let [_, width] = found.dims();
    found.reshape([rows, seq, width])
}
