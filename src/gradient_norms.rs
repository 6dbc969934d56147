//! How large the gradient of the loss is in each layer, which tells whether a deep model can be trained and how fast it
//! may go ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).

use std::fmt;
use std::str::FromStr;

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Gradients, Int, Tensor, TensorData};

use crate::error::{Error, advice};
use crate::model::{ForwardOptions, ModelInput, Transformer};
use crate::precision::widen;

/// The parameters of a block that a norm is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockPart {
    /// All of them.
    Block,
    /// Self-attention, with its norms of queries and keys.
    Attention,
    /// Attention over the output of an encoder.
    CrossAttention,
    /// The feed-forward network, or the mixture of experts with its router.
    FeedForward,
    /// The norms around the branches.
    Norms,
    /// The weight of the query projection of self-attention.
    Query,
    /// The weight of the key projection of self-attention.
    Key,
    /// The weight of the value projection of self-attention.
    Value,
    /// The weight of the output projection of self-attention.
    Output,
    /// The weight of the gate projection of the feed-forward network, or those of all experts.
    Gate,
    /// The weight of the inner projection of the feed-forward network, or those of all experts.
    Up,
    /// The weight of the output projection of the feed-forward network, or those of all experts. This is what Xiong et al.
    /// plot.
    Down,
}

impl BlockPart {
    /// Every part.
    pub const ALL: [Self; 12] = [
        Self::Block,
        Self::Attention,
        Self::CrossAttention,
        Self::FeedForward,
        Self::Norms,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// The part's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Attention => "attention",
            Self::CrossAttention => "cross-attention",
            Self::FeedForward => "feed-forward",
            Self::Norms => "norms",
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::Output => "output",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Whether the parameter with this path in its block (`attention.query.weight`) belongs to the part.
    fn holds(self, path: &str) -> bool {
        let branch = path.split('.').next().unwrap_or_default();
        let is_network = matches!(branch, "feed_forward" | "mixture");
        let is_weight_of = |projection: &str| {
            let mut parts = path.split('.').skip_while(|part| *part != projection).skip(1);
            parts.next() == Some("weight")
        };
        match self {
            Self::Block => true,
            Self::Attention => branch == "attention",
            Self::CrossAttention => branch == "cross_attention",
            Self::FeedForward => is_network,
            Self::Norms => branch.ends_with("_norm"),
            Self::Query | Self::Key | Self::Value | Self::Output => branch == "attention" && is_weight_of(self.name()),
            Self::Gate | Self::Up | Self::Down => is_network && is_weight_of(self.name()),
        }
    }
}

impl fmt::Display for BlockPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BlockPart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|part| part.name() == text).ok_or_else(|| {
            let advice = advice(text, Self::ALL.map(Self::name));
            Error::Input(format!("a block has no part `{text}`; {advice}"))
        })
    }
}

/// The Euclidean norms of the gradients of the parameters of a model's blocks. An encoder beside a decoder is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientNorms {
    /// For each layer its parameters by their paths, each with the sum of the squares of its gradient.
    layers: Vec<Vec<(String, f64)>>,
}

impl GradientNorms {
    /// Of the mean cross-entropy of each token of `rows` given those before it, in nats, after one backward pass without
    /// dropout.
    ///
    /// # Errors
    ///
    /// When there is no row, rows have unequal lengths or fewer than two tokens, or as [`of_targets`](Self::of_targets).
    pub fn of_next_tokens(model: &Transformer, rows: &[Vec<i64>]) -> Result<Self, Error> {
        let len = rows.first().map_or(0, Vec::len);
        if len < 2 || rows.iter().any(|row| row.len() != len) {
            let problem = "predicting the next token needs rows of one length of at least two tokens";
            return Err(Error::Input(problem.into()));
        }
        let part =
            |from: usize, to: usize| -> Vec<Vec<i64>> { rows.iter().map(|row| row[from..to].to_vec()).collect() };
        Self::of_targets(model, &ModelInput::tokens(&part(0, len - 1)), &part(1, len))
    }

    /// Of the mean cross-entropy of `targets`, in nats, after one backward pass without dropout: one row for each row of
    /// `input`, with the token that is right at each position.
    ///
    /// # Errors
    ///
    /// When the model has no head, the targets do not fit the input or the vocabulary, or as
    /// [`Transformer::forward`].
    pub fn of_targets(model: &Transformer, input: &ModelInput, targets: &[Vec<i64>]) -> Result<Self, Error> {
        let vocab_size = model.config().vocab_size();
        if let Some(id) = targets.iter().flatten().find(|id| !(0..vocab_size as i64).contains(*id)) {
            return Err(Error::Input(format!("target {id} is out of range: the vocabulary has {vocab_size}")));
        }
        let model = model.clone().train().map(&mut NoDropout);
        let output = model.forward(input, None, ForwardOptions::default())?;
        let logits = output.logits.ok_or_else(|| Error::Input("the model has no head, so there is no loss".into()))?;
        let [batch, seq, vocab_size] = logits.dims();
        if batch * seq == 0 || targets.len() != batch || targets.iter().any(|row| row.len() != seq) {
            let problem = format!("targets must be {batch} rows of {seq} tokens, as the input, and not empty");
            return Err(Error::Input(problem));
        }
        let ids = TensorData::new(targets.concat(), [batch * seq, 1]);
        let ids = Tensor::<2, Int>::from_data(ids, &logits.device());
        let likelihoods = log_softmax(widen(logits).reshape([batch * seq, vocab_size]), 1).gather(1, ids);
        Ok(Self::of_gradients(&model, &likelihoods.mean().neg().backward()))
    }

    /// Of gradients that a backward pass through `model` has given. A parameter without a gradient, as that of an expert
    /// that no token has chosen, counts as one with a gradient of zero.
    pub fn of_gradients(model: &Transformer, gradients: &Gradients) -> Self {
        let of_layer = |layer: &_| {
            let mut squares = Squares { gradients, path: Vec::new(), found: Vec::new() };
            Module::visit(layer, &mut squares);
            squares.found
        };
        Self { layers: model.layers.iter().map(of_layer).collect() }
    }

    /// The norm over the parameters of `part`, for each layer from the first to the last; 0 where a block has none.
    pub fn by_layer(&self, part: BlockPart) -> Vec<f64> {
        let of_layer = |layer: &Vec<(String, f64)>| {
            let squares = layer.iter().filter(|(path, _)| part.holds(path)).map(|(_, square)| square);
            squares.sum::<f64>().sqrt()
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// Whether some block has parameters of `part`.
    pub fn has(&self, part: BlockPart) -> bool {
        self.layers.iter().flatten().any(|(path, _)| part.holds(path))
    }
}

/// Turns dropout off in a model that records gradients.
struct NoDropout;

impl ModuleMapper for NoDropout {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.with_value(false)
    }
}

/// Sums the squares of gradients on the host, in 64 bits: on the device they would leave the range of 32 bits where
/// gradients are small or large.
struct Squares<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: Vec<(String, f64)>,
}

impl ModuleVisitor for Squares<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let square = param.val().grad(self.gradients).map_or(0.0, |gradient| {
            let numbers = gradient.into_data();
            numbers.iter::<f64>().map(|number| number * number).sum()
        });
        self.found.push((self.path.join("."), square));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_the_parameters_of_their_names() {
        let holding = |path: &str| -> Vec<&str> {
            BlockPart::ALL.into_iter().filter(|part| part.holds(path)).map(BlockPart::name).collect()
        };
        assert_eq!(holding("attention.query.weight"), ["block", "attention", "query"]);
        assert_eq!(holding("attention.output.weight"), ["block", "attention", "output"]);
        assert_eq!(holding("attention.query.bias"), ["block", "attention"]);
        assert_eq!(holding("attention.query_norm.weight"), ["block", "attention"]);
        assert_eq!(holding("attention_norm.pre.weight"), ["block", "norms"]);
        assert_eq!(holding("cross_attention.value.weight"), ["block", "cross-attention"]);
        assert_eq!(holding("feed_forward.down.weight"), ["block", "feed-forward", "down"]);
        assert_eq!(holding("mixture.experts.3.gate.weight"), ["block", "feed-forward", "gate"]);
        assert_eq!(holding("mixture.router.weight"), ["block", "feed-forward"]);
    }
}
