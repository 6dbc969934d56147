//! Attention: masks, positions that act on scores, scaled dot-product attention, multi-head attention and its cache.

mod alibi;
mod blockwise;
mod config;
mod kv_cache;
mod libtorch;
mod mask;
mod multi_head_attention;
mod relative_bias;
mod rotary;
mod scaled_dot_product;

pub use alibi::{AlibiConfig, alibi_slopes};
pub(crate) use config::is_zero;
pub use config::{MultiHeadAttentionConfig, ProjectionBias, QkNorm, QkNormScope};
pub use kv_cache::KvCache;
pub use mask::{AttentionMask, MaskForm};
pub(crate) use multi_head_attention::HeadTap;
pub use multi_head_attention::{AttentionContext, MultiHeadAttention, ProjectedMemory};
pub use relative_bias::{RelativeBias, RelativeBiasConfig};
pub use rotary::{RotaryAngles, RotaryConfig, RotaryFrequencies, RotaryScaling, RotaryStyle};
pub use scaled_dot_product::{
    AttentionKernel, AttentionOutput, AttentionRequest, ScoreOptions, scaled_dot_product_attention, supports,
};
