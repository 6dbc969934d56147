//! Operations by part, against formulas of the literature, PyTorch's counter, and masks counted pair by pair.

use burn::tensor::DType;
use burnformer::attention::{AttentionMask, MultiHeadAttentionConfig};
use burnformer::cost::{Call, CostOptions, CostReport, FlopsByPart, forward_flops, over_lengths};
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{LayerPattern, Logits, ModelConfig, ModelKind, preset_names};

use crate::common::flex;
use crate::{checkpoint_config, hub_config, preset, shrunk, torch_counts};

#[test]
fn the_classic_block_has_the_classic_formulas() {
    let block = preset("classic-block");
    let (b, s, d) = (3, 2048, 4096);
    let FlopsByPart { embedding, projections, scores, feed_forward, head, total } =
        forward_flops(&block, Call::whole(3, 2048)).full;
    assert_eq!(projections, 8 * b * s * d * d);
    assert_eq!(scores, 4 * b * s * s * d);
    assert_eq!(feed_forward, 16 * b * s * d * d);
    assert_eq!((embedding, head), (0, 0));
    assert_eq!(total, 24 * b * s * d * d + 4 * b * s * s * d);

    // 0.82 and 0.069 TFLOP.
    let flops = forward_flops(&block, Call::whole(1, 2048));
    assert_eq!(flops.full.weights(), 824_633_720_832);
    assert_eq!(flops.full.scores, 68_719_476_736);
    // Of a causal square, half and half of the diagonal.
    assert_eq!(flops.visible.scores, 2 * s * (s + 1) * d);
    assert_eq!(flops.visible.weights(), flops.full.weights());
}

#[test]
fn scores_overtake_weights_at_the_crossover() {
    let cost = |config: &ModelConfig| {
        CostReport::new(config, &CostOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    };
    let crossover = |config: &ModelConfig| cost(config).blocks[0].crossover;
    let classic = crossover(&preset("classic-block"));
    assert_eq!(classic.full, Some(24_576), "6 d");
    assert_eq!(classic.visible, Some(2 * 24_576 - 1), "half of the pairs, and half of the diagonal");

    // Llama 2 7b: 4 d² and three matrices of d · d_ff; keys and values of Llama 2 70b are narrower.
    assert_eq!(
        crossover(&preset("llama-2-7b")).full,
        Some((4 * 4096 * 4096 + 3 * 4096 * 11_008u64).div_ceil(2 * 4096))
    );
    let weights: u64 = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672;
    assert_eq!(crossover(&preset("llama-2-70b")).full, Some(weights.div_ceil(2 * 8192)));

    // A window keeps the visible scores of each token below 4 · 4096 · d, which is less than the weights take.
    let mistral = crossover(&preset("mistral-7b"));
    assert_eq!(mistral.visible, None);
    assert!(mistral.full.is_some());

    // Just there, in every block of every preset.
    for name in preset_names().filter(|name| preset(name).patches.is_none()) {
        let mut config = preset(name);
        config.max_seq_len = 1 << 30;
        for (index, block) in cost(&config).blocks.iter().enumerate() {
            let at = |seq: u64| {
                let options = CostOptions { seq: Some(seq as usize), ..CostOptions::default() };
                let cost = CostReport::new(&config, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
                let block = cost.blocks[index].clone();
                (block.flops.scores, block.weight_flops, block.visible_score_flops)
            };
            let full = block.crossover.full.expect("the square always wins");
            let (scores, weights, _) = at(full);
            assert!(scores >= weights, "{name}");
            let (scores, weights, _) = at(full - 1);
            assert!(scores < weights, "{name}");
            if let Some(visible) = block.crossover.visible {
                let (_, weights, scores) = at(visible);
                assert!(scores >= weights, "{name}");
                let (_, weights, scores) = at(visible - 1);
                assert!(scores < weights, "{name}");
            }
        }
    }
}

/// transformers' models under PyTorch's own counter of operations.
#[test]
fn counts_are_those_of_pytorch() {
    let torch = torch_counts();
    let size = |key: &str| torch[key].as_u64().expect("a number") as usize;
    let (tokens, target) = (size("tokens"), size("target"));
    let count = |config: &ModelConfig| {
        let seq = if config.encoder.is_some() { target } else { tokens };
        let seq = if config.patches.is_some() { config.max_seq_len } else { seq };
        forward_flops(config, Call::whole(1, seq).with_source(tokens)).full.total
    };
    for (name, counts) in torch["configs"].as_object().expect("an object") {
        assert_eq!(counts["flops"], count(&hub_config(&counts["config"])), "{name}");
    }
    let checkpoints = torch["checkpoints"].as_object().expect("an object");
    assert!(checkpoints.len() > 30);
    for (name, counts) in checkpoints {
        assert_eq!(counts["flops"], count(&checkpoint_config(name)), "{name}");
    }
    // Those of a public report.
    for (name, total) in [
        ("llama_gqa", 88_704),
        ("mistral_window", 126_720),
        ("gemma2_softcap", 126_720),
        ("gpt2_square", 130_176),
        ("gptneox_rot25", 297_216),
        ("qwen3_headdim8", 126_720),
    ] {
        assert_eq!(torch["configs"][name]["flops"], total, "{name}");
    }
}

/// One block of one head with one feature, so that its scores are four operations for each pair.
fn one_head(kind: ModelKind, window: Option<usize>) -> ModelConfig {
    ModelConfig::new(kind, 1, 64, MultiHeadAttentionConfig::new(1, 1), FeedForwardConfig::new(1, 1))
        .with_layers(vec![LayerPattern { window, ..LayerPattern::default() }])
}

#[test]
fn visible_pairs_are_those_that_the_mask_leaves() {
    for kind in [ModelKind::Decoder, ModelKind::Encoder] {
        for window in [None, Some(1), Some(2), Some(5), Some(20)] {
            let mut mask = match kind {
                ModelKind::Decoder => AttentionMask::causal(),
                ModelKind::Encoder => AttentionMask::none(),
            };
            if let Some(window) = window {
                mask = mask.with_window(window);
            }
            let config = one_head(kind, window);
            for seq in [1, 2, 4, 5, 6, 13] {
                let pairs = match mask.materialize(seq, seq, &flex()) {
                    Some(hidden) => {
                        hidden.into_data().convert_dtype(DType::I64).iter::<i64>().filter(|x| *x == 0).count()
                    }
                    None => seq * seq,
                };
                let flops = forward_flops(&config, Call::whole(3, seq));
                assert_eq!(flops.visible.scores, 4 * 3 * pairs as u64, "{kind:?}, window {window:?}, {seq} tokens");
                assert_eq!(flops.full.scores, 4 * 3 * (seq * seq) as u64, "{kind:?}, window {window:?}, {seq} tokens");
            }
        }
    }
}

/// One token after the other computes what is visible: a cache holds no key that nobody sees.
#[test]
fn steps_add_up_to_the_visible_part_of_the_whole() {
    for name in preset_names() {
        let config = shrunk(name);
        if config.kind == ModelKind::Encoder {
            continue;
        }
        let (batch, seq, source) = (2, 23, 9);
        let parts = |call: Call| {
            let FlopsByPart { projections, scores, feed_forward, .. } =
                forward_flops(&config, Call { logits: Logits::None, ..call }.with_source(source)).full;
            [projections, scores, feed_forward]
        };
        let mut sum = parts(Call::whole(batch, 1));
        for context in 1..seq {
            let step = parts(Call::step(batch, context));
            sum.iter_mut().zip(step).for_each(|(sum, step)| *sum += step);
        }
        let whole = forward_flops(&config, Call::whole(batch, seq).with_source(source)).visible;
        assert_eq!(sum, [whole.projections, whole.scores, whole.feed_forward], "{name}");
    }
}

#[test]
fn logits_are_counted_where_they_are_asked_for() {
    // A tied head multiplies as any other: 2 · 768 · 50,257 for each position.
    let head = |call: Call| forward_flops(&preset("gpt2"), call).full.head;
    assert_eq!(head(Call::whole(2, 10)), 2 * 10 * 2 * 768 * 50_257);
    assert_eq!(head(Call::prefill(2, 10)), 2 * 2 * 768 * 50_257);
    assert_eq!(head(Call::step(2, 10)), 2 * 2 * 768 * 50_257);
    assert_eq!(head(Call { logits: Logits::None, ..Call::whole(2, 10) }), 0);
}

#[test]
fn mixtures_count_the_experts_that_tokens_take() {
    let flops = forward_flops(&preset("mixtral-8x7b"), Call::whole(1, 100));
    let expert = 3 * 4096 * 14_336;
    let router = 4096 * 8;
    assert_eq!(flops.full.feed_forward, 32 * 2 * 100 * (2 * expert + router));
    assert_eq!(flops.all_experts, Some(flops.full.total + 32 * 2 * 100 * 6 * expert));
    assert_eq!(forward_flops(&preset("gpt2"), Call::whole(1, 100)).all_experts, None);
}

#[test]
fn rows_over_lengths_are_the_forwards_of_these_lengths() {
    let config = shrunk("gemma-3-1b");
    let rows = over_lengths(&config, 3, &[1, 7, 19]);
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 7, 19]);
    for row in rows {
        let flops = forward_flops(&config, Call::whole(3, row.seq));
        assert_eq!((row.projections, row.scores), (flops.full.projections, flops.full.scores));
        assert_eq!((row.feed_forward, row.head), (flops.full.feed_forward, flops.full.head));
        assert_eq!(row.visible_scores, flops.visible.scores);
    }
}
