//! What can be measured.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, advice};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BenchRow {
    /// Causal attention of 12 heads of 64 features over 8192 tokens, by [`AttentionKernel::Auto`]: by how many bytes the
    /// memory of this process grows beyond the inputs.
    ///
    /// [`AttentionKernel::Auto`]: crate::attention::AttentionKernel::Auto
    Memory,
    /// [`TransformerBlock`](crate::transformer_block::TransformerBlock): post-norm, GELU, biases, 512 tokens of width
    /// 768, 12 heads, `d_ff` 3072, without mask.
    Block,
    /// The same from burn-nn, [`TransformerEncoderLayer`](burn::nn::transformer::TransformerEncoderLayer).
    BurnNnBlock,
    /// Causal attention of 12 heads of 64 features over 2048 tokens, by [`AttentionKernel::Auto`].
    ///
    /// [`AttentionKernel::Auto`]: crate::attention::AttentionKernel::Auto
    Attention,
    /// The same by [`AttentionKernel::Composed`].
    ///
    /// [`AttentionKernel::Composed`]: crate::attention::AttentionKernel::Composed
    AttentionComposed,
    /// The same by [`burn::tensor::module::attention`].
    BurnAttention,
    /// One token of SmolLM2-135M in 32 bits, the likeliest next one after a context of 32 to 64 tokens.
    Decode,
    /// The same with its matrices in blocks of 32 numbers of 8 bits (GGUF's Q8_0), where the device keeps such.
    DecodeQuantised,
    /// SmolLM2-135M reading 512 tokens, logits of every position.
    Prefill,
    /// MiniLM-L6 reading 32 sequences of 128 tokens.
    Embed,
    /// Forward, backward and AdamW's update of 4 causal pre-norm blocks of width 512, 8 heads and `d_ff` 2048, on 4
    /// sequences of 256 tokens.
    TrainStep,
}

impl BenchRow {
    /// Every row.
    pub const ALL: [Self; 11] = [
        Self::Memory,
        Self::Block,
        Self::BurnNnBlock,
        Self::Attention,
        Self::AttentionComposed,
        Self::BurnAttention,
        Self::Decode,
        Self::DecodeQuantised,
        Self::Prefill,
        Self::Embed,
        Self::TrainStep,
    ];

    /// The row's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Block => "block",
            Self::BurnNnBlock => "burn-nn-block",
            Self::Attention => "attention",
            Self::AttentionComposed => "attention-composed",
            Self::BurnAttention => "burn-attention",
            Self::Decode => "decode",
            Self::DecodeQuantised => "decode-quantised",
            Self::Prefill => "prefill",
            Self::Embed => "embed",
            Self::TrainStep => "train-step",
        }
    }

    /// Rows of a group are measured in turn, so that a change of the machine's pace meets all of them.
    pub(super) fn is_beside(self, other: Self) -> bool {
        let group = |row| match row {
            Self::BurnNnBlock => Self::Block,
            Self::AttentionComposed | Self::BurnAttention => Self::Attention,
            alone => alone,
        };
        group(self) == group(other)
    }
}

impl fmt::Display for BenchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BenchRow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|row| row.name() == text).ok_or_else(|| {
            let advice = advice(text, Self::ALL.map(Self::name));
            Error::Input(format!("there is no bench row `{text}`; {advice}"))
        })
    }
}
