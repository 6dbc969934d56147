//! Memory of caches and of training, against caches that are filled, the paper's formulas and sums by hand.

use burn::tensor::FloatDType;
use burnformer::attention::{KvCache, MultiHeadAttentionConfig};
use burnformer::cost::{CostOptions, CostReport, TrainingMemory, kv_cache_memory};
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{ModelConfig, ModelKind, preset_names};

use crate::common::flex;
use crate::{hub_config, preset, shrunk, torch_counts};

const F32: FloatDType = FloatDType::F32;

#[test]
fn a_cache_holds_key_and_value_heads() {
    // 2 layers · keys and values · 2 heads · 9 tokens · 4 features · 4 bytes, as a public report has it.
    let config = hub_config(&torch_counts()["configs"]["llama_gqa"]["config"]);
    let cache = kv_cache_memory(&config, [1, 9, 0], F32).expect("a decoder");
    assert_eq!((cache.per_sequence, cache.per_token), (1152, 128));

    // Llama 2 7b in half precision: half a MiB per token; 70b with its 8 heads 320 KiB; multi-query Falcon 8 KiB.
    for (name, per_token) in [("llama-2-7b", 512 << 10), ("llama-2-70b", 320 << 10), ("falcon-7b", 8 << 10)] {
        for (dtype, factor) in [(FloatDType::F16, 1), (FloatDType::BF16, 1), (F32, 2), (FloatDType::F64, 4)] {
            let cache = kv_cache_memory(&preset(name), [3, 100, 0], dtype).expect("a decoder");
            assert_eq!(cache.per_token, factor * per_token, "{name}, {dtype:?}");
            assert_eq!(cache.per_sequence, 100 * factor * per_token, "{name}, {dtype:?}");
            assert_eq!(cache.total, 300 * factor * per_token, "{name}, {dtype:?}");
        }
    }
    assert_eq!(kv_cache_memory(&preset("bert-base"), [1, 9, 0], F32), None, "an encoder has no cache");
}

#[test]
fn windows_bound_a_cache() {
    // Every layer of Mistral sees 4096 tokens, every sixth of Gemma 3 sees all, the others 512.
    let mistral = kv_cache_memory(&preset("mistral-7b"), [1, 32_768, 0], F32).expect("a decoder");
    assert_eq!(mistral.per_sequence, 4096 * mistral.per_token);
    assert_eq!(mistral.per_token_beyond_windows, 0);
    let gemma = kv_cache_memory(&preset("gemma-3-1b"), [1, 4096, 0], F32).expect("a decoder");
    let layer = 2 * 256 * 4;
    assert_eq!((gemma.per_token, gemma.per_token_beyond_windows), (26 * layer, 4 * layer));
    assert_eq!(gemma.per_sequence, (4 * 4096 + 22 * 512) * layer);
}

/// A cache of this crate keeps as many tokens as are counted, fed one by one.
#[test]
fn caches_that_are_filled_hold_as_many_tokens() {
    let device = flex();
    for window in [None, Some(3)] {
        let mut cache = window.map_or_else(KvCache::new, KvCache::with_window);
        let mut config = shrunk("mistral-7b");
        config.layers.iter_mut().for_each(|layer| layer.window = window);
        for seq in 1..8 {
            let step = || burn::tensor::Tensor::<4>::ones([1, 2, 1, 4], &device);
            cache.append(step(), step());
            let counted = kv_cache_memory(&config, [1, seq, 0], F32).expect("a decoder");
            assert_eq!(counted.per_sequence, counted.per_token * cache.len() as u64, "window {window:?}, {seq} tokens");
        }
    }
}

#[test]
fn what_an_encoder_gave_is_kept_once() {
    // Six layers of keys and values of width 512, whatever the decoder has written.
    let cache = |seq| kv_cache_memory(&preset("t5-small"), [1, seq, 77], F32).expect("a decoder");
    assert_eq!(cache(5).encoder_memory, 6 * 77 * 2 * 512 * 4);
    assert_eq!(cache(5).per_sequence, cache(5).encoder_memory + 5 * cache(5).per_token);
    assert_eq!(cache(9).encoder_memory, cache(5).encoder_memory);
}

/// The bytes per block of Korthikanti et al. 2022, equation 1, for the sizes of their Table 3.
#[test]
fn activations_of_the_classic_block_are_those_of_the_paper() {
    for (h, a, s, b) in [(6144, 64, 2048, 4), (12_288, 96, 2048, 1), (64, 4, 100, 3)] {
        let attention = MultiHeadAttentionConfig::new(h, a).with_dropout(0.1);
        let mut config = ModelConfig::new(ModelKind::Decoder, 3, 4096, attention, FeedForwardConfig::new(h, 4 * h));
        config.dropout = 0.1;
        let [h, a, s, b] = [h, a, s, b].map(|size| size as u64);
        let bytes =
            |config: &ModelConfig, dtype| TrainingMemory::of(config, [b as usize, s as usize, 0], dtype).activations;
        for dtype in [FloatDType::F16, FloatDType::BF16] {
            let activations = bytes(&config, dtype);
            assert_eq!(activations.blocks, 3 * (34 * s * b * h + 5 * a * s * s * b), "{h}");
            assert_eq!(activations.scores, 3 * 5 * a * s * s * b);
            // Three inputs, and one block that is computed again.
            let checkpointed = 3 * 2 * s * b * h + 34 * s * b * h + 5 * a * s * s * b;
            assert_eq!(activations.blocks_with_checkpointing, checkpointed);
        }
        // Without dropout there are no masks, and values are multiplied with what the softmax gave.
        (config.dropout, config.attention.dropout) = (0.0, 0.0);
        assert_eq!(bytes(&config, FloatDType::F16).blocks, 3 * (32 * s * b * h + 2 * a * s * s * b));
        assert_eq!(bytes(&config, F32).blocks, 2 * bytes(&config, FloatDType::F16).blocks);
    }
}

#[test]
fn options_change_what_is_kept() {
    let blocks = |config: &ModelConfig| TrainingMemory::of(config, [2, 7, 5], F32).activations.blocks;
    let config = shrunk("llama-2-7b");
    let before = blocks(&config);
    type Change = (&'static str, fn(&mut ModelConfig));
    let changes: [Change; 8] = [
        ("gate", |c| c.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.gated = false)),
        ("inner dropout", |c| c.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.dropout = 0.1)),
        ("softcap", |c| c.attention.softcap = Some(5.0)),
        ("clip", |c| c.attention.clip_qkv = Some(5.0)),
        ("heads", |c| c.attention.n_kv_heads = Some(1)),
        ("dropout", |c| c.dropout = 0.1),
        ("dropout of scores", |c| c.attention.dropout = 0.1),
        ("norm", |c| c.block.placement = burnformer::transformer_block::NormPlacement::Sandwich),
    ];
    for (name, change) in changes {
        let mut changed = config.clone();
        change(&mut changed);
        assert_ne!(blocks(&changed), before, "{name}");
    }
    // With a gate, two more of the inner features are kept: 2 · 28 numbers per token and layer.
    let mut plain = config.clone();
    plain.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.gated = false);
    assert_eq!(before - blocks(&plain), 5 * 2 * 7 * 2 * 28 * 4);
}

#[test]
fn each_parameter_takes_sixteen_bytes() {
    for (dtype, bytes) in [
        (F32, [4, 4, 8, 0]),
        (FloatDType::F16, [2, 2, 8, 4]),
        (FloatDType::BF16, [2, 2, 8, 4]),
        (FloatDType::F64, [8, 8, 16, 0]),
    ] {
        let memory = TrainingMemory::of(&preset("gpt2"), [1, 1024, 0], dtype);
        let found = [memory.weights, memory.gradients, memory.moments, memory.master_weights];
        assert_eq!(found, bytes.map(|bytes| bytes * 124_439_808), "{dtype:?}");
    }
    // Logits stay in 32 bits.
    for dtype in [F32, FloatDType::BF16] {
        let memory = TrainingMemory::of(&preset("gpt2"), [3, 1024, 0], dtype);
        assert_eq!(memory.activations.logits, 3 * 1024 * 50_257 * 4);
    }
}

#[test]
fn the_sums_are_those_of_their_parts() {
    for name in preset_names() {
        let config = shrunk(name);
        let options = CostOptions { batch: 2, ..CostOptions::default() };
        let report = CostReport::new(&config, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let memory = &report.training_memory;
        let rest = memory.weights + memory.gradients + memory.moments + memory.master_weights;
        let activations = &memory.activations;
        let outside = activations.outside + activations.logits;
        assert_eq!(memory.total, rest + outside + activations.blocks, "{name}");
        let checkpointed = rest + outside + activations.blocks_with_checkpointing;
        assert_eq!(memory.total_with_checkpointing, checkpointed, "{name}");
        let blocks: u64 = report.blocks.iter().map(|block| block.layers * block.activations.total).sum();
        assert_eq!(activations.blocks, blocks, "{name}");
        assert!(activations.blocks_with_checkpointing < activations.blocks, "{name}");
        let layers: u64 = report.blocks.iter().map(|block| block.layers).sum();
        let in_encoder = config.encoder.as_ref().map_or(0, |encoder| encoder.n_layers);
        assert_eq!(layers as usize, config.n_layers + in_encoder, "{name}");
        // Blocks make up the forward but for embedding and head.
        let flops: u64 = report.blocks.iter().map(|block| block.layers * block.flops.total).sum();
        let full = &report.flops.full;
        assert_eq!(flops, full.total - full.embedding - full.head, "{name}");
    }
}
