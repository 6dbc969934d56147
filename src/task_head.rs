//! Heads that give scores for labels: of a whole sequence, of each token, or of the ends of an answer.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::error::Faults;
use crate::projection::Projection;

/// What a task head reads.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TaskInput {
    /// The first token of a sequence (RoBERTa, DistilBERT, ViT).
    FirstToken,
    /// The last token of a sequence that is not padding (decoders).
    LastToken,
    /// What the model's pooler gives (BERT).
    Pooled,
    /// Every token by itself: labels of tokens, or starts and ends of answers.
    EveryToken,
}

/// Configuration of a [`TaskHead`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TaskHeadConfig {
    /// What the head reads.
    pub input: TaskInput,
    /// How many labels there are: one score each.
    pub n_labels: usize,
    /// A dense layer with this activation before the scores. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Activation>,
    /// Whether scores have a bias. Default: yes.
    #[serde(default = "yes")]
    pub bias: bool,
    /// For a head that reads the last token: a token id that does not count as one, as it fills rows up. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding_id: Option<u32>,
}

fn yes() -> bool {
    true
}

impl TaskHeadConfig {
    /// A head of `n_labels` labels with a bias.
    pub fn new(input: TaskInput, n_labels: usize) -> Self {
        Self { input, n_labels, transform: None, bias: true, padding_id: None }
    }

    setters! {
        with_transform => transform: Activation,
        with_bias => bias: bool,
        with_padding_id => padding_id: u32,
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.n_labels, "n_labels");
        faults.require(self.padding_id.is_none() || self.input == TaskInput::LastToken, "padding_id", || {
            "is for a head that reads the last token".into()
        });
    }

    pub(crate) fn n_parameters(&self, width: usize) -> u64 {
        let transform = self.transform.map_or(0, |_| (width * width + width) as u64);
        let bias = if self.bias { self.n_labels } else { 0 };
        transform.saturating_add((self.n_labels * width + bias) as u64)
    }

    pub(crate) fn init(&self, width: usize, dropout: f64, device: &Device) -> TaskHead {
        TaskHead {
            dense: self.transform.map(|_| Projection::new(width, width, true, device)),
            output: Projection::new(width, self.n_labels, self.bias, device),
            dropout: DropoutConfig::new(dropout).init(),
            input: self.input,
            transform: self.transform,
        }
    }
}

/// From hidden states to scores: `output(transform(x))`.
#[derive(Module, Debug)]
pub struct TaskHead {
    /// Dense layer of the transform.
    pub dense: Option<Projection>,
    /// One score per label.
    pub output: Projection,
    dropout: Dropout,
    #[module(skip)]
    input: TaskInput,
    #[module(skip)]
    transform: Option<Activation>,
}

impl TaskHead {
    /// The scores of sequences. `last` is the place of the last token of each row, `pooled` what the pooler gives; each
    /// is used by the head that reads it.
    ///
    /// # Shapes
    ///
    /// - hidden: `[batch, seq, width]`, `seq` at least 1
    /// - pooled: `[batch, width]`
    /// - last: `batch` numbers below `seq`
    /// - output: `[batch, seq, n_labels]` of a head that reads every token, otherwise `[batch, 1, n_labels]`
    ///
    /// # Panics
    ///
    /// When a head that reads the pooler's output is given none, or shapes do not fit.
    pub fn forward(&self, hidden: Tensor<3>, pooled: Option<Tensor<2>>, last: &[usize]) -> Tensor<3> {
        let [batch, seq, width] = hidden.dims();
        let mut x = match self.input {
            TaskInput::EveryToken => hidden,
            TaskInput::FirstToken => hidden.slice_dim(1, 0..1),
            TaskInput::Pooled => pooled.expect("a head that reads the pooler's output needs it").unsqueeze_dim(1),
            TaskInput::LastToken => {
                assert_eq!(last.len(), batch, "there must be one last token for each row");
                let places: Vec<i64> = last.iter().zip(0..).map(|(place, row)| (row * seq + place) as i64).collect();
                let places = Tensor::<1, Int>::from_data(TensorData::new(places, [batch]), &hidden.device());
                hidden.reshape([batch * seq, width]).select(0, places).reshape([batch, 1, width])
            }
        };
        x = self.dropout.forward(x);
        if let Some(dense) = &self.dense {
            x = dense.forward(x);
        }
        if let Some(activation) = self.transform {
            x = self.dropout.forward(activation.forward(x));
        }
        self.output.forward(x)
    }
}
