//! Scaled dot-product attention on queries, keys and values that are already projected and split into heads.
//!
//! Order: scores · scale → softcap → bias → mask → softmax (32 bits or more) → dropout → values.

use burn::nn::Dropout;
use burn::tensor::{Bool, Device, Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use super::mask::{AttentionMask, MaskForm};
use super::{blockwise, libtorch};
use crate::backend;
#[cfg(any(feature = "flex", feature = "ndarray"))]
use crate::kernel::{self, ScoreRule, ScoreTensors};
use crate::precision::{narrow, widen};

/// How attention is computed. All ways give the same answer; they differ in time and memory.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKernel {
    /// The best way for the request: fused where it is exact and faster, blockwise where the score square would be
    /// large, composed otherwise.
    #[default]
    Auto,
    /// Plain tensor operations that hold the whole score square. Takes every option and is the reference.
    Composed,
    /// Tiles with a running softmax ([Milakov and Gimelshein 2018](https://arxiv.org/abs/1805.02867)): memory linear in
    /// the sequence length, hidden tiles skipped. Cannot return weights.
    Blockwise,
    /// One operation, a kernel of ours on flex and ndarray and otherwise the backend's own, only where it honours the whole
    /// request; see [`supports`].
    Fused,
}

/// The options of [`scaled_dot_product_attention`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreOptions<'a> {
    /// Factor on scores. Default: `1/√d_head`.
    pub scale: Option<f64>,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f64>,
    /// Dropout on the weights.
    pub dropout: Option<&'a Dropout>,
    /// How it is computed.
    pub kernel: AttentionKernel,
    /// Whether the weights are returned.
    pub return_weights: bool,
}

/// What attention gives.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// The weighted sums of values, `[batch, n_heads, query_len, d_value]`.
    pub context: Tensor<4>,
    /// The weights before dropout, `[batch, n_heads, query_len, key_len]`; each row sums to 1, or to 0 where every key
    /// is hidden. Present when they were asked for.
    pub weights: Option<Tensor<4>>,
}

/// Score squares above this many bytes are not held whole by [`AttentionKernel::Auto`]. It is half of the smallest
/// buffer limit that GPU adapters commonly have (128 MiB), so that a square and its copy fit.
const LARGEST_SCORE_SQUARE: usize = 64 << 20;

/// Scores of hidden keys. Finite, so that a row without any visible key gives no NaN on the way.
const HIDDEN_SCORE: f64 = -1e30;

/// Lowest score that a bias can give a visible key.
const LOWEST_VISIBLE_SCORE: f64 = -1e29;

/// What a request asks of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRequest {
    /// `[batch, n_heads, query_len, key_len]`.
    pub scores: [usize; 4],
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// What hides keys.
    pub mask: MaskForm,
    /// Whether there is a bias on scores.
    pub biased: bool,
    /// Whether scores are capped.
    pub softcapped: bool,
    /// Whether weights are dropped out.
    pub dropout: bool,
    /// Whether weights are returned.
    pub return_weights: bool,
    /// Whether gradients are recorded.
    pub autodiff: bool,
}

/// Whether `kernel` can honour `request` on `device`.
///
/// # Errors
///
/// A sentence that says what stands in the way.
pub fn supports(kernel: AttentionKernel, request: &AttentionRequest, device: &Device) -> Result<(), String> {
    match kernel {
        AttentionKernel::Auto | AttentionKernel::Composed => Ok(()),
        AttentionKernel::Blockwise if request.return_weights => {
            Err("the blockwise attention kernel cannot return weights; use `composed`".into())
        }
        AttentionKernel::Blockwise => Ok(()),
        AttentionKernel::Fused => {
            let refuse =
                |what: &str| Err(format!("the fused attention kernel cannot {what}; use `composed` or `auto`"));
            match () {
                () if request.return_weights => refuse("return weights"),
                () if request.dropout => refuse("drop weights out"),
                () if request.autodiff && !backend::has_attention_gradient(device) => refuse("record gradients"),
                () => backend::fused_attention(request, device),
            }
        }
    }
}

/// Attention of queries over keys and values.
///
/// Query head `h` reads key/value head `h / (n_heads / n_kv_heads)`; keys and values are not copied for that.
///
/// # Shapes
///
/// - query: `[batch, n_heads, query_len, d_head]`
/// - key: `[batch, n_kv_heads, key_len, d_head]`
/// - value: `[batch, n_kv_heads, key_len, d_value]`
/// - bias: `[1 or batch, 1 or n_heads, 1 or query_len, key_len]`, added to scores. A bias of minus infinity hides a key
///   as a mask does; a large negative finite bias is only a bias, and a row that has nothing else gives the plain mean.
/// - context: `[batch, n_heads, query_len, d_value]`
///
/// # Panics
///
/// When shapes do not fit, `n_kv_heads` does not divide `n_heads`, or the named kernel cannot honour the request
/// (ask [`supports`] first).
pub fn scaled_dot_product_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &AttentionMask,
    bias: Option<&Tensor<4>>,
    options: &ScoreOptions,
) -> AttentionOutput {
    let [batch, n_heads, query_len, d_head] = query.dims();
    let [key_batch, n_kv_heads, key_len, key_width] = key.dims();
    let [_, _, value_len, d_value] = value.dims();
    assert_eq!(key_width, d_head, "attention: queries have {d_head} features per head, keys {key_width}");
    assert_eq!(key_len, value_len, "attention: {key_len} keys but {value_len} values");
    assert_eq!(key_batch, batch, "attention: queries have batch {batch}, keys {key_batch}");
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "attention: {n_kv_heads} key/value heads do not divide {n_heads} query heads"
    );
    let device = query.device();
    if batch * query_len * key_len * d_head * d_value == 0 {
        let zeros = |width| Tensor::zeros([batch, n_heads, query_len, width], (&device, query.dtype()));
        return AttentionOutput { context: zeros(d_value), weights: options.return_weights.then(|| zeros(key_len)) };
    }

    let request = AttentionRequest {
        scores: [batch, n_heads, query_len, key_len],
        n_kv_heads,
        mask: mask.form(),
        biased: bias.is_some(),
        softcapped: options.softcap.is_some(),
        dropout: options.dropout.is_some_and(|dropout| dropout.prob > 0.0) && query.is_autodiff(),
        return_weights: options.return_weights,
        autodiff: query.is_autodiff() || key.is_autodiff() || value.is_autodiff(),
    };
    let kernel = match options.kernel {
        AttentionKernel::Auto => choose(&request, &device),
        named => named,
    };
    supports(kernel, &request, &device).unwrap_or_else(|problem| panic!("{problem}"));

    let inputs = Inputs {
        scale: options.scale.unwrap_or_else(|| (d_head as f64).sqrt().recip()),
        softcap: options.softcap,
        dropout: options.dropout,
        query,
        key,
        value,
        mask,
        bias: bias.cloned(),
    };
    match kernel {
        AttentionKernel::Blockwise => AttentionOutput { context: blockwise::attention(inputs), weights: None },
        AttentionKernel::Fused => AttentionOutput { context: fused(inputs), weights: None },
        AttentionKernel::Auto | AttentionKernel::Composed => composed(inputs, options.return_weights),
    }
}

/// The kernel that `Auto` takes.
fn choose(request: &AttentionRequest, device: &Device) -> AttentionKernel {
    let [batch, n_heads, query_len, key_len] = request.scores;
    let square = batch * n_heads * query_len * key_len * size_of::<f32>();
    if supports(AttentionKernel::Fused, request, device).is_ok() && backend::prefers_fused_attention(request, device) {
        AttentionKernel::Fused
    } else if square > LARGEST_SCORE_SQUARE && !request.return_weights {
        AttentionKernel::Blockwise
    } else {
        AttentionKernel::Composed
    }
}

/// One attention call, its options resolved.
pub(super) struct Inputs<'a> {
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub mask: &'a AttentionMask,
    pub bias: Option<Tensor<4>>,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub dropout: Option<&'a Dropout>,
}

/// Attention from plain tensor operations.
fn composed(inputs: Inputs, return_weights: bool) -> AttentionOutput {
    let Inputs { query, key, value, mask, bias, scale, softcap, dropout } = inputs;
    let [batch, n_heads, query_len, _] = query.dims();
    let [_, _, key_len, d_value] = value.dims();
    let (dtype, device) = (query.dtype(), query.device());

    // The scale goes on the queries: fewer numbers, and half-precision scores could pass the largest half.
    let query = grouped(widen(query) * scale, key.dims()[1]);
    let scores = query.matmul(widen(key).swap_dims(2, 3)).reshape([batch, n_heads, query_len, key_len]);
    let may_hide_all = bias.is_some() || mask.may_hide_all(query_len, key_len);
    let hidden = mask.materialize(query_len, key_len, &device);
    let (scores, hidden) = finish_scores(scores, softcap, bias, hidden);
    let mut weights = softmax(scores, 3);
    if may_hide_all {
        // A row without any visible key has equal scores by now; it must give zeros.
        weights = hidden.into_iter().fold(weights, |weights, hidden| weights.mask_fill(hidden, 0.0));
    }
    let returned = return_weights.then(|| weights.clone());
    if let Some(dropout) = dropout {
        weights = dropout.forward(weights);
    }
    let context = grouped(weights, value.dims()[1]).matmul(widen(value));
    AttentionOutput { context: narrow(context.reshape([batch, n_heads, query_len, d_value]), dtype), weights: returned }
}

/// Softcap, bias and mask on scores; gives back what is hidden, by the mask and by a bias of minus infinity.
pub(super) fn finish_scores(
    mut scores: Tensor<4>,
    softcap: Option<f64>,
    bias: Option<Tensor<4>>,
    hidden: Option<Tensor<4, Bool>>,
) -> (Tensor<4>, Vec<Tensor<4, Bool>>) {
    let mut hidden: Vec<_> = hidden.into_iter().collect();
    if let Some(cap) = softcap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(bias) = bias {
        let bias = narrow(bias, scores.dtype());
        let minus_infinity = bias.clone().lower_elem(f32::MIN);
        // A finite bias, however low, leaves its key visible: it must stay above a hidden one.
        scores = (scores + bias.mask_fill(minus_infinity.clone(), 0.0)).clamp_min(LOWEST_VISIBLE_SCORE);
        hidden.push(minus_infinity);
    }
    let scores = hidden.iter().fold(scores, |scores, hidden| scores.mask_fill(hidden.clone(), HIDDEN_SCORE));
    (scores, hidden)
}

/// `[batch, n_heads, rows, width]` as `[batch, n_kv_heads, group · rows, width]`, so that one product serves all query
/// heads of a key/value head.
pub(super) fn grouped(x: Tensor<4>, n_kv_heads: usize) -> Tensor<4> {
    let [batch, n_heads, rows, width] = x.dims();
    if n_heads == n_kv_heads { x } else { x.reshape([batch, n_kv_heads, n_heads / n_kv_heads * rows, width]) }
}

/// One operation, our kernel or the backend's own; [`supports`] has said that it honours the request.
fn fused(inputs: Inputs) -> Tensor<4> {
    let dtype = inputs.query.dtype();
    let is_recorded = [&inputs.query, &inputs.key, &inputs.value].into_iter().any(Tensor::is_autodiff);
    let is_wide = inputs.bias.is_some() || backend::has_attention_kernel(&inputs.query.device());
    let inputs = if is_wide {
        // A bias grows with the position of its key: in half precision it would lose what tells near keys apart.
        let [query, key, value] = [inputs.query, inputs.key, inputs.value].map(widen);
        Inputs { query, key, value, ..inputs }
    } else {
        inputs
    };
    let context = match by_kernel(&inputs) {
        Some(context) => context,
        None if !is_recorded && backend::has_fused_attention(&inputs.query.device()) => backends_own(inputs),
        None => composed(inputs, false).context,
    };
    narrow(context, dtype)
}

/// By our own kernel, where there is one for these numbers.
#[cfg(any(feature = "flex", feature = "ndarray"))]
fn by_kernel(inputs: &Inputs) -> Option<Tensor<4>> {
    let Inputs { query, key, value, mask, bias, scale, softcap, .. } = inputs;
    let rule = ScoreRule { scale: *scale, softcap: *softcap, is_causal: mask.is_causal(), window: mask.window() };
    let [padding, explicit] = mask.parts(query.dims()[2], key.dims()[2]);
    let bias = bias.clone().map(|bias| narrow(bias, query.dtype()));
    kernel::attention(&[query.clone(), key.clone(), value.clone()], ScoreTensors { bias, padding, explicit }, rule)
}

#[cfg(not(any(feature = "flex", feature = "ndarray")))]
fn by_kernel(_: &Inputs) -> Option<Tensor<4>> {
    None
}

/// By the backend's own operation.
fn backends_own(inputs: Inputs) -> Tensor<4> {
    if backend::is_libtorch(&inputs.query.device()) {
        return libtorch::attention(inputs);
    }
    let Inputs { query, key, value, mask, bias, scale, softcap, .. } = inputs;
    let [batch, n_heads, query_len, _] = query.dims();
    let key_len = key.dims()[2];
    let device = query.device();
    let full = [batch, n_heads, query_len, key_len];
    // Pure causality is left to the operation, which then skips the hidden half; all else becomes one tensor.
    let only_causal = mask.form() == MaskForm::Causal;
    let hidden = if only_causal { None } else { mask.materialize(query_len, key_len, &device) };
    let bias = bias.map(|bias| narrow(bias, query.dtype()).expand(full));
    burn::tensor::module::attention(
        query,
        key,
        value,
        hidden.map(|hidden| hidden.expand(full)),
        bias,
        burn::tensor::ops::AttentionModuleOptions { scale: Some(scale), softcap, is_causal: only_causal },
    )
}
