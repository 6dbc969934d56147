//! The memory of a decoder's keys and values.

use burn::tensor::{DType, FloatDType};
use serde::Serialize;

use crate::attention::MultiHeadAttentionConfig;
use crate::model::{ModelConfig, ModelKind};

/// Bytes of keys and values, without the room for further tokens that a cache keeps ready.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheMemory {
    /// By how much the cache of one sequence grows with a token while no window is full.
    pub per_token: u64,
    /// By how much it grows once every window is full: layers with a window then drop a token for each new one.
    pub per_token_beyond_windows: u64,
    /// What one sequence takes.
    pub per_sequence: u64,
    /// What of it are the keys and values of an encoder's output, made once for a sequence.
    pub encoder_memory: u64,
    /// What the whole batch takes.
    pub total: u64,
}

/// The cache of `batch` sequences of `seq` tokens, whose encoder has read `source` tokens each, of numbers of `dtype`;
/// `None` for an encoder, which takes no cache.
pub fn kv_cache_memory(
    config: &ModelConfig,
    [batch, seq, source]: [usize; 3],
    dtype: FloatDType,
) -> Option<KvCacheMemory> {
    if config.kind == ModelKind::Encoder {
        return None;
    }
    let layer = bytes_per_token(&config.attention(), dtype);
    let mut memory = KvCacheMemory {
        per_token: 0,
        per_token_beyond_windows: 0,
        per_sequence: 0,
        encoder_memory: config
            .cross_attention()
            .map_or(0, |cross| bytes_per_token(&cross, dtype) * (config.n_layers as u64).saturating_mul(source as u64)),
        total: 0,
    };
    for pattern in config.layer_patterns() {
        memory.per_token += layer;
        memory.per_token_beyond_windows += if pattern.window.is_none() { layer } else { 0 };
        let tokens = pattern.window.map_or(seq, |window| window.min(seq));
        memory.per_sequence = memory.per_sequence.saturating_add(layer.saturating_mul(tokens as u64));
    }
    memory.per_sequence = memory.per_sequence.saturating_add(memory.encoder_memory);
    memory.total = memory.per_sequence.saturating_mul(batch as u64);
    Some(memory)
}

/// Key and value of one token in one layer.
fn bytes_per_token(attention: &MultiHeadAttentionConfig, dtype: FloatDType) -> u64 {
    2 * attention.n_kv_heads() as u64 * attention.d_head() as u64 * bytes_of(dtype)
}

/// Bytes of one number.
pub(super) fn bytes_of(dtype: FloatDType) -> u64 {
    DType::from(dtype).size() as u64
}
