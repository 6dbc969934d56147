//! The transformer block: attention and feed-forward network around a residual stream.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::attention::{
    AttentionContext, AttentionMask, HeadTap, KvCache, MultiHeadAttention, MultiHeadAttentionConfig, ProjectedMemory,
    RotaryAngles,
};
use crate::error::{ConfigError, Faults};
use crate::feed_forward::{FeedForward, FeedForwardConfig};
use crate::kernel;
use crate::mixture_of_experts::{MixtureOfExperts, MixtureOfExpertsConfig};
use crate::norm::{Norm, NormConfig};

/// Where the norms stand.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// No norm in the block.
    None,
    /// Before each branch (GPT-2, Llama; [Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).
    #[default]
    Pre,
    /// After each residual sum (the original transformer, BERT).
    Post,
    /// Before each branch and on its output (Gemma 2 and 3).
    Sandwich,
    /// On the output of each branch only (OLMo 2).
    Output,
}

/// How attention and feed-forward network are wired.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum BlockTopology {
    /// The feed-forward network reads the stream after attention was added.
    #[default]
    Sequential,
    /// Both read the stream as it comes in, each through its own norm (GPT-NeoX).
    Parallel,
    /// Both read the same normalised stream (GPT-J, Phi, Falcon 7b, Cohere).
    ParallelSharedNorm,
}

/// The residual layout of a block.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct BlockLayout {
    /// Where the norms stand. Default: `pre`.
    #[serde(default)]
    pub placement: NormPlacement,
    /// How attention and feed-forward network are wired. Default: `sequential`.
    #[serde(default)]
    pub topology: BlockTopology,
    /// Whether each residual sum starts from the normalised input of its branch (some BLOOM models). Default: no.
    #[serde(default)]
    pub residual_from_normed: bool,
    /// Factor on each branch before it is added (Granite). Default: 1.
    #[serde(default = "one")]
    pub residual_multiplier: f64,
}

fn one() -> f64 {
    1.0
}

impl Default for BlockLayout {
    fn default() -> Self {
        Self {
            placement: NormPlacement::default(),
            topology: BlockTopology::default(),
            residual_from_normed: false,
            residual_multiplier: one(),
        }
    }
}

impl BlockLayout {
    /// Norms at `placement` around branches in sequence.
    pub fn new(placement: NormPlacement) -> Self {
        Self { placement, ..Self::default() }
    }

    setters! {
        with_topology => topology: BlockTopology,
        with_residual_from_normed => residual_from_normed: bool,
        with_residual_multiplier => residual_multiplier: f64,
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        let parallel = self.topology != BlockTopology::Sequential;
        faults.require(!parallel || self.placement == NormPlacement::Pre, "topology", || {
            "is parallel, which goes with placement `pre` only".into()
        });
        faults.require(
            !self.residual_from_normed || self.placement == NormPlacement::Pre,
            "residual_from_normed",
            || "needs placement `pre`: there is no normalised input otherwise".into(),
        );
        faults.require(!(self.residual_from_normed && parallel), "residual_from_normed", || {
            "needs topology `sequential`".into()
        });
        faults.require(self.residual_multiplier.is_finite(), "residual_multiplier", || {
            format!("must be a number, got {}", self.residual_multiplier)
        });
    }

    fn has_pre(&self) -> bool {
        matches!(self.placement, NormPlacement::Pre | NormPlacement::Sandwich)
    }

    fn has_out(&self) -> bool {
        matches!(self.placement, NormPlacement::Output | NormPlacement::Sandwich)
    }

    fn has_post(&self) -> bool {
        self.placement == NormPlacement::Post
    }
}

/// Configuration of a [`TransformerBlock`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TransformerBlockConfig {
    /// Self-attention.
    pub attention: MultiHeadAttentionConfig,
    /// Attention over a memory, between self-attention and the feed-forward network. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_attention: Option<MultiHeadAttentionConfig>,
    /// The feed-forward network; a block with neither it nor a mixture of experts is attention alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<FeedForwardConfig>,
    /// A mixture of experts in place of the feed-forward network. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<MixtureOfExpertsConfig>,
    /// The norms. Default: LayerNorm with eps 1e-5.
    #[serde(default)]
    pub norm: NormConfig,
    /// The residual layout. Default: pre-norm, sequential.
    #[serde(default)]
    pub layout: BlockLayout,
    /// Dropout on each branch before it is added, while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

impl burn::config::Config for TransformerBlockConfig {}

impl TransformerBlockConfig {
    /// A pre-norm block with LayerNorm.
    pub fn new(attention: MultiHeadAttentionConfig, feed_forward: FeedForwardConfig) -> Self {
        Self {
            attention,
            cross_attention: None,
            feed_forward: Some(feed_forward),
            mixture: None,
            norm: NormConfig::default(),
            layout: BlockLayout::default(),
            dropout: 0.0,
        }
    }

    setters! {
        with_cross_attention => cross_attention: MultiHeadAttentionConfig,
        with_norm => norm: NormConfig,
        with_layout => layout: BlockLayout,
        with_dropout => dropout: f64,
    }

    /// The same block without a feed-forward network.
    #[must_use]
    pub fn without_feed_forward(mut self) -> Self {
        self.feed_forward = None;
        self
    }

    /// The same block with a mixture of experts in place of its feed-forward network.
    #[must_use]
    pub fn with_mixture(mut self, mixture: MixtureOfExpertsConfig) -> Self {
        self.mixture = Some(mixture);
        self.without_feed_forward()
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// All faults of the parts, and parts that do not fit together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        let d_model = self.attention.d_model;
        let same_width = |width: usize, faults: &mut Faults| {
            faults.require(width == d_model, "d_model", || format!("= {width} differs from attention's {d_model}"));
        };
        faults.section("attention", |faults| self.attention.check(faults));
        if let Some(cross) = &self.cross_attention {
            faults.section("cross_attention", |faults| {
                cross.check(faults);
                same_width(cross.d_model, faults);
            });
            faults.require(self.layout.topology == BlockTopology::Sequential, "layout.topology", || {
                "must be `sequential` in a block with cross-attention".into()
            });
        }
        if let Some(feed_forward) = &self.feed_forward {
            faults.section("feed_forward", |faults| {
                feed_forward.check(faults);
                same_width(feed_forward.d_model, faults);
            });
        }
        if let Some(mixture) = &self.mixture {
            faults.section("mixture", |faults| {
                mixture.check(faults);
                same_width(mixture.d_model, faults);
            });
            faults.require(self.feed_forward.is_none(), "mixture", || {
                "takes the place of `feed_forward`; leave one of them out".into()
            });
        }
        faults.section("norm", |faults| self.norm.check(faults));
        faults.section("layout", |faults| self.layout.check(faults));
        faults.probability(self.dropout, "dropout");
    }

    /// How many parameters the module has.
    pub fn n_parameters(&self) -> u64 {
        let cross = self.cross_attention.as_ref().map_or(0, MultiHeadAttentionConfig::n_parameters);
        let feed_forward = self.feed_forward.as_ref().map_or(0, FeedForwardConfig::n_parameters);
        let branches = 1 + u64::from(self.cross_attention.is_some()) + u64::from(self.has_feed_forward_norms());
        let per_branch = [self.layout.has_pre(), self.layout.has_out(), self.layout.has_post()];
        let norms = branches * per_branch.into_iter().filter(|has| *has).count() as u64;
        let mixture = self.mixture.as_ref().map_or(0, MixtureOfExpertsConfig::n_parameters);
        let parts = [self.attention.n_parameters(), cross, feed_forward, mixture];
        let norms = norms * self.norm.n_parameters(self.attention.d_model);
        parts.into_iter().fold(norms, u64::saturating_add)
    }

    fn has_feed_forward_norms(&self) -> bool {
        let has_network = self.feed_forward.is_some() || self.mixture.is_some();
        has_network && self.layout.topology != BlockTopology::ParallelSharedNorm
    }

    /// Builds the module; weights are drawn when they are first used.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid.
    pub fn init(&self, device: &Device) -> TransformerBlock {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let norms = |present: bool| {
            let norm = |has: bool| (present && has).then(|| self.norm.init(self.attention.d_model, device));
            BranchNorms {
                pre: norm(self.layout.has_pre()),
                out: norm(self.layout.has_out()),
                post: norm(self.layout.has_post()),
            }
        };
        TransformerBlock {
            attention: self.attention.init(device),
            attention_norm: norms(true),
            cross_attention: self.cross_attention.as_ref().map(|cross| cross.init(device)),
            cross_attention_norm: norms(self.cross_attention.is_some()),
            feed_forward: self.feed_forward.as_ref().map(|feed_forward| feed_forward.init(device)),
            mixture: self.mixture.as_ref().map(|mixture| mixture.init(device)),
            feed_forward_norm: norms(self.has_feed_forward_norms()),
            dropout: DropoutConfig::new(self.dropout).init(),
            layout: self.layout,
        }
    }
}

/// The norms of one branch; an absent one passes its input through.
#[derive(Module, Debug)]
pub struct BranchNorms {
    /// On the input of the branch.
    pub pre: Option<Norm>,
    /// On the output of the branch, before it is added.
    pub out: Option<Norm>,
    /// On the sum.
    pub post: Option<Norm>,
}

fn normed(norm: &Option<Norm>, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// A memory for cross-attention.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// What is read, as [`TransformerBlock::project_memory`] gives it.
    pub projected: &'a ProjectedMemory,
    /// Which of its positions are hidden.
    pub mask: &'a AttentionMask,
}

/// Everything beside the input that one call of a block depends on.
#[derive(Debug)]
pub struct BlockContext<'a> {
    /// Which keys self-attention hides.
    pub mask: &'a AttentionMask,
    /// Rotation of queries and keys in self-attention.
    pub rotary: Option<&'a RotaryAngles>,
    /// Added to the scores of self-attention, `[1 or batch, 1 or n_heads, 1 or query_len, key_len]`.
    pub bias: Option<&'a Tensor<4>>,
    /// Keys and values of earlier tokens.
    pub cache: Option<&'a mut KvCache>,
    /// The memory; needed where the block has cross-attention.
    pub memory: Option<Memory<'a>>,
}

impl<'a> BlockContext<'a> {
    /// Only a mask.
    pub fn masked(mask: &'a AttentionMask) -> Self {
        Self { mask, rotary: None, bias: None, cache: None, memory: None }
    }
}

/// What one call of a block does with single heads beside the usual; by default nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockTaps {
    /// In self-attention.
    pub attention: HeadTap,
    /// In cross-attention.
    pub cross_attention: HeadTap,
}

/// The weights that the taps of a block have kept, `[batch, n_heads, query_len, key_len]`.
#[derive(Debug, Default)]
pub(crate) struct BlockWeights {
    /// Of self-attention.
    pub attention: Option<Tensor<4>>,
    /// Of cross-attention.
    pub cross_attention: Option<Tensor<4>>,
}

/// One transformer block.
///
/// ```text
///  sequential                 parallel                   parallel, shared norm
///  x ─┬─ pre ─ attn ─ out     x ─┬─ pre ─ attn ─┐        x ─ pre ─┬─ attn ─┐
///     └──────(+)── post          ├─ pre ─ ffn ──┤                 └─ ffn ──┤
///  ─┬─ pre ─ ffn ─ out           └─────────────(+)       x ───────────────(+)
///   └──────(+)── post
/// ```
///
/// Which of `pre` (on the input of a branch), `out` (on its output) and `post` (on the sum) are there is the
/// [placement](NormPlacement). Cross-attention, where a block has it, is a branch between the two.
#[derive(Module, Debug)]
pub struct TransformerBlock {
    /// Self-attention.
    pub attention: MultiHeadAttention,
    /// Its norms.
    pub attention_norm: BranchNorms,
    /// Attention over a memory.
    pub cross_attention: Option<MultiHeadAttention>,
    /// Its norms.
    pub cross_attention_norm: BranchNorms,
    /// The feed-forward network.
    pub feed_forward: Option<FeedForward>,
    /// The mixture of experts that stands in its place.
    pub mixture: Option<MixtureOfExperts>,
    /// The norms of either.
    pub feed_forward_norm: BranchNorms,
    dropout: Dropout,
    #[module(skip)]
    layout: BlockLayout,
}

impl TransformerBlock {
    /// Applies the block.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - output: `[batch, seq, d_model]`
    ///
    /// # Panics
    ///
    /// When shapes do not fit, a block with cross-attention gets no memory, or the configured attention kernel cannot
    /// honour the call.
    pub fn forward(&self, x: Tensor<3>, context: BlockContext) -> Tensor<3> {
        self.forward_tapped(x, context, &BlockTaps::default()).0
    }

    /// As [`forward`](Self::forward), with the weights of each head of self-attention.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - output: `[batch, seq, d_model]` and `[batch, n_heads, seq, key_len]`
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward); also when the configured kernel cannot return weights.
    pub fn forward_with_weights(&self, x: Tensor<3>, context: BlockContext) -> (Tensor<3>, Tensor<4>) {
        let taps = BlockTaps { attention: HeadTap::weights(), ..BlockTaps::default() };
        let (y, weights) = self.forward_tapped(x, context, &taps);
        (y, weights.attention.expect("weights were asked for"))
    }

    /// The keys and values of a memory that the cross-attention of this block reads, made once for all calls; `None` in a
    /// block without cross-attention.
    ///
    /// # Shapes
    ///
    /// - states: `[batch, memory_len, d_context]`
    ///
    /// # Panics
    ///
    /// When the last axis is not `d_context`.
    pub fn project_memory(&self, states: Tensor<3>) -> Option<ProjectedMemory> {
        self.cross_attention.as_ref().map(|cross| cross.project_memory(states))
    }

    /// As [`forward`](Self::forward), with taps on single heads.
    pub(crate) fn forward_tapped(
        &self,
        x: Tensor<3>,
        context: BlockContext,
        taps: &BlockTaps,
    ) -> (Tensor<3>, BlockWeights) {
        let BlockContext { mask, rotary, bias, cache, memory } = context;
        let mut kept = BlockWeights::default();
        let attend = |h: Tensor<3>| {
            let context = AttentionContext { mask, rotary, bias, cache };
            let (y, weights) = self.attention.attend_self(h, context, &taps.attention);
            kept.attention = weights;
            y
        };
        if self.layout.topology != BlockTopology::Sequential {
            return (self.parallel(x, attend), kept);
        }
        let mut x = self.branch(x, &self.attention_norm, attend);
        if let Some(cross) = &self.cross_attention {
            let Memory { projected, mask } = memory.expect("a block with cross-attention needs a memory");
            x = self.branch(x, &self.cross_attention_norm, |h| {
                let context = AttentionContext::masked(mask);
                let (y, weights) = cross.attend_projected(h, projected, context, &taps.cross_attention);
                kept.cross_attention = weights;
                y
            });
        }
        if self.has_network() {
            x = self.branch(x, &self.feed_forward_norm, |h| self.network(h));
        }
        (x, kept)
    }

    /// One branch on the residual stream.
    fn branch(&self, x: Tensor<3>, norms: &BranchNorms, f: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let h = normed(&norms.pre, x.clone());
        let residual = if self.layout.residual_from_normed { h.clone() } else { x };
        let y = self.scaled(normed(&norms.out, f(h)));
        normed(&norms.post, kernel::sum(residual, self.dropout.forward(y)))
    }

    fn parallel(&self, x: Tensor<3>, attend: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let h = normed(&self.attention_norm.pre, x.clone());
        let g = match self.layout.topology {
            BlockTopology::ParallelSharedNorm => h.clone(),
            _ => normed(&self.feed_forward_norm.pre, x.clone()),
        };
        let mut y = attend(h);
        if self.has_network() {
            y = y + self.network(g);
        }
        kernel::sum(x, self.dropout.forward(self.scaled(y)))
    }

    fn has_network(&self) -> bool {
        self.feed_forward.is_some() || self.mixture.is_some()
    }

    /// The feed-forward network or the mixture of experts.
    fn network(&self, x: Tensor<3>) -> Tensor<3> {
        match (&self.mixture, &self.feed_forward) {
            (Some(mixture), _) => mixture.forward(x),
            (None, Some(feed_forward)) => feed_forward.forward(x),
            (None, None) => x,
        }
    }

    fn scaled(&self, branch: Tensor<3>) -> Tensor<3> {
        if self.layout.residual_multiplier == 1.0 { branch } else { branch * self.layout.residual_multiplier }
    }
}
