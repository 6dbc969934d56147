//! The compute of a whole training run: the rule of six operations per parameter and token, and what it leaves out.

use serde::Serialize;

use super::flops::ForwardFlops;
use super::parameters::Parameters;
use super::products::Call;

/// Backward passes take twice a forward: each product has a gradient for either factor.
pub(super) const FORWARDS_PER_STEP: u64 = 3;

/// Tokens per parameter of the training runs that make the most of their compute
/// ([Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556)).
const TOKENS_PER_PARAMETER: f64 = 20.0;

/// Floating-point operations of a training run over `tokens` tokens, in sequences of `seq`.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct TrainingCompute {
    /// D, the tokens of the run.
    pub tokens: f64,
    /// Whether `tokens` was not given, and is 20 per parameter.
    pub tokens_assumed: bool,
    /// N, the parameters that the rule counts: those given, or all that are active.
    pub parameters: f64,
    /// Tokens of a sequence.
    pub seq: usize,
    /// The rule, `6 · N · D`.
    pub six_n_d: f64,
    /// What the rule leaves out: the scores of attention, `12 · n_layers · n_heads · d_head · seq · D` where every pair of
    /// query and key counts.
    pub attention: ByPairs,
    /// The rule with the scores, `six_n_d + attention`.
    pub corrected: ByPairs,
    /// By which share of itself the rule is too low, `attention / six_n_d`: at 1, half of the compute is missing.
    pub undercount: ByPairs,
    /// Three times the operations of the forward's products, counted one by one: without tables that are only looked up,
    /// with heads that are tied.
    pub exact: ByPairs,
    /// The rule under each way to count parameters.
    pub by_convention: ByConvention,
}

/// A number for every pair of query and key, and for the visible ones only.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct ByPairs {
    /// Every pair.
    pub full: f64,
    /// The pairs that causality and windows leave visible.
    pub visible: f64,
}

/// `6 · N · D` for each N.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct ByConvention {
    /// All parameters, every expert included.
    pub total: f64,
    /// Those that a token passes through.
    pub active: f64,
    /// Those without the tables of tokens, positions and types, as in
    /// [Kaplan et al. 2020](https://arxiv.org/abs/2001.08361).
    pub without_embeddings: f64,
}

impl TrainingCompute {
    /// The run over `tokens` tokens (20 per parameter where they are not given) of a model whose forward of `call` takes
    /// `flops`; `given` is N, where it is not to be counted.
    pub(super) fn of(
        parameters: &Parameters,
        flops: &ForwardFlops,
        call: Call,
        tokens: Option<f64>,
        given: Option<f64>,
    ) -> Self {
        let n = given.unwrap_or(parameters.active as f64);
        let tokens_assumed = tokens.is_none();
        let tokens = tokens.unwrap_or(TOKENS_PER_PARAMETER * n);
        let rule = |n: f64| 6.0 * n * tokens;
        // Of three forwards over the sequences of a call, for each of its tokens.
        let of_run =
            |flops: u64| FORWARDS_PER_STEP as f64 * flops as f64 / (call.batch as f64 * call.new as f64) * tokens;
        let by_pairs = |value: &dyn Fn(bool) -> f64| ByPairs { full: value(true), visible: value(false) };
        let part = |is_full: bool| if is_full { &flops.full } else { &flops.visible };
        let attention = by_pairs(&|is_full| of_run(part(is_full).scores));
        let six_n_d = rule(n);
        Self {
            tokens,
            tokens_assumed,
            parameters: n,
            seq: call.new,
            six_n_d,
            attention,
            corrected: ByPairs { full: six_n_d + attention.full, visible: six_n_d + attention.visible },
            undercount: ByPairs { full: attention.full / six_n_d, visible: attention.visible / six_n_d },
            exact: by_pairs(&|is_full| of_run(part(is_full).total)),
            by_convention: ByConvention {
                total: rule(parameters.total as f64),
                active: rule(parameters.active as f64),
                without_embeddings: rule(parameters.without_embeddings as f64),
            },
        }
    }
}
