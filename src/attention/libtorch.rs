//! Attention by libtorch's own operation ([`scaled_dot_product_attention`]), which burn-tch calls in a way of its own (D01): a
//! mask is handed on as it is and names what is *seen*, causality is aligned to the first key, heads are not grouped, and the
//! cap is dropped. So masks are turned round here, causality among unequal lengths is a mask, and groups are rows.
//!
//! [`scaled_dot_product_attention`]: https://docs.pytorch.org/docs/2.9/generated/torch.nn.functional.scaled_dot_product_attention.html

use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Tensor, module};

use super::mask::MaskForm;
use super::scaled_dot_product::{Inputs, grouped};

/// The context of inputs without bias and cap.
pub(super) fn attention(inputs: Inputs) -> Tensor<4> {
    let Inputs { query, key, value, mask, scale, .. } = inputs;
    let [batch, n_heads, query_len, _] = query.dims();
    let [_, n_kv_heads, key_len, d_value] = value.dims();
    let options = |is_causal| AttentionModuleOptions { scale: Some(scale), softcap: None, is_causal };
    if mask.form() == MaskForm::Causal && query_len == key_len {
        // The operation skips the hidden half, which pays for a copy of keys and values for each head of a group.
        let [key, value] = [key, value].map(|x| for_each_head(x, n_heads));
        return module::attention(query, key, value, None, None, options(true));
    }
    let device = query.device();
    let group = n_heads / n_kv_heads;
    let seen = mask.materialize(query_len, key_len, &device).map(|hidden| {
        let seen = hidden.bool_not();
        match seen.dims() {
            [_, 1, _, _] => seen.expand([batch, n_kv_heads, query_len, key_len]).repeat_dim(2, group),
            _ => seen.expand([batch, n_heads, query_len, key_len]).reshape([
                batch,
                n_kv_heads,
                group * query_len,
                key_len,
            ]),
        }
    });
    let context = module::attention(grouped(query, n_kv_heads), key, value, seen, None, options(false));
    context.reshape([batch, n_heads, query_len, d_value])
}

/// `[batch, n_kv_heads, len, width]` once for each query head.
fn for_each_head(x: Tensor<4>, n_heads: usize) -> Tensor<4> {
    let [batch, n_kv_heads, len, width] = x.dims();
    if n_heads == n_kv_heads {
        return x;
    }
    let shape = [batch, n_kv_heads, n_heads / n_kv_heads, len, width];
    x.unsqueeze_dim::<5>(2).expand(shape).reshape([batch, n_heads, len, width])
}
