//! Whole models.

use super::*;

const VOCAB: usize = 17;
const D_MODEL: usize = 10;
const LONGEST: usize = 24;
/// What stands at padded places; no id is special.
const PADDING: i64 = 7;

/// Every way of knowing positions, none included.
fn positions() -> Vec<Positions> {
    let interleaved = RotaryConfig::new(500.0).with_fraction(0.5).with_style(RotaryStyle::Interleaved);
    vec![
        Positions::None,
        Positions::Learned(LearnedPositions { offset: 2, padding_id: None }),
        Positions::Sinusoidal,
        Positions::rotary(RotaryConfig::new(100.0)),
        Positions::rotary(interleaved),
        Positions::Alibi(AlibiConfig::default()),
    ]
}

fn model_config(kind: ModelKind, heads: (usize, usize), positions: Positions) -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(D_MODEL, heads.0).with_n_kv_heads(heads.1).with_d_head(4);
    ModelConfig::new(kind, 2, LONGEST, attention, FeedForwardConfig::new(D_MODEL, 14))
        .with_embedding(EmbeddingConfig::new(VOCAB))
        .with_positions(positions)
        .with_head(HeadConfig::new(false))
        .with_final_norm(true)
}

/// Small decoders of all kinds, with the seed of their weights.
fn decoders() -> impl Strategy<Value = (ModelConfig, u64)> {
    let layers = prop_oneof![
        Just(vec![None]),
        (1_usize..7).prop_map(|window| vec![Some(window)]),
        (1_usize..7).prop_map(|window| vec![Some(window), None]),
    ];
    let placement =
        select(vec![NormPlacement::Pre, NormPlacement::Post, NormPlacement::Sandwich, NormPlacement::Output]);
    let kernel = select(vec![AttentionKernel::Auto, AttentionKernel::Composed, AttentionKernel::Blockwise]);
    let heads = select(vec![(3, 3), (4, 2), (6, 3), (5, 1)]);
    (select(positions()), heads, layers, placement, kernel, any::<bool>(), any::<u64>()).prop_map(
        |(positions, heads, windows, placement, kernel, gated, seed)| {
            let layers = windows.into_iter().map(|window| LayerPattern { window, ..LayerPattern::default() });
            let mut config = model_config(ModelKind::Decoder, heads, positions)
                .with_layers(layers.collect::<Vec<_>>())
                .with_block(BlockLayout::new(placement));
            config.attention.kernel = kernel;
            if let Some(feed_forward) = &mut config.feed_forward {
                feed_forward.gated = gated;
            }
            (config, seed)
        },
    )
}

fn build(config: &ModelConfig, seed: u64) -> Transformer {
    randomised(config.init(&flex()), seed)
}

/// Rows of ids, and `len` cut into chunks.
fn chunks(len: usize, numbers: &mut Numbers) -> Vec<usize> {
    let mut chunks = Vec::new();
    let mut left = len;
    while left > 0 {
        chunks.push(1 + numbers.below(left.min(5)));
        left -= chunks[chunks.len() - 1];
    }
    chunks
}

proptest! {
    #![proptest_config(cases(24))]

    /// Changing tokens changes nothing before them.
    #[test]
    fn no_token_sees_a_later_one((config, seed) in decoders(), len in 2_usize..12, at in 1_usize..11) {
        let at = at.min(len - 1);
        let model = build(&config, seed);
        let rows = Numbers::new(seed).tokens(2, len, VOCAB);
        let mut changed = rows.clone();
        for row in &mut changed {
            row[at..].iter_mut().for_each(|id| *id = (*id + 3) % VOCAB as i64);
        }
        let [before, after] = [&rows, &changed].map(|rows| logits(&model, &ModelInput::tokens(rows)));
        let tolerance = MODEL * largest(&before);
        for row in 0..2 {
            let part = |logits: &[f64], from: usize, to: usize| {
                logits[(row * len + from) * VOCAB..(row * len + to) * VOCAB].to_vec()
            };
            assert_close("before the change", &part(&after, 0, at), &part(&before, 0, at), tolerance);
            assert_apart("at the change", &part(&after, at, at + 1), &part(&before, at, at + 1), 100.0 * tolerance);
        }
    }

    /// Any split of a sequence over several calls gives what one call gives.
    #[test]
    fn any_split_gives_the_same_logits((config, seed) in decoders(), len in 2_usize..20) {
        let model = build(&config, seed);
        let mut numbers = Numbers::new(seed);
        let rows = numbers.tokens(2, len, VOCAB);
        let want = logits(&model, &ModelInput::tokens(&rows));
        for _ in 0..3 {
            let chunks = chunks(len, &mut numbers);
            let got = logits_in_chunks(&model, &rows, &chunks);
            assert_close(&format!("{chunks:?}"), &got, &want, MODEL * largest(&want));
        }
    }

    /// A padded row gives, at its tokens, what the row gives alone, wherever the padding stands and however the batch
    /// is cut into calls.
    #[test]
    fn padding_changes_nothing((config, seed) in decoders(), len in 3_usize..10, padding in 1_usize..6) {
        let model = build(&config, seed);
        let mut numbers = Numbers::new(seed);
        let rows = numbers.tokens(4, len, VOCAB);
        // No padding, padding before, after, and anywhere between the tokens.
        let width = len + padding;
        let mut scattered = vec![false; width];
        while scattered.iter().filter(|is| **is).count() < padding {
            scattered[numbers.below(width)] = true;
        }
        let before = (0..width).map(|at| at < padding).collect::<Vec<_>>();
        let after = before.iter().rev().copied().collect::<Vec<_>>();
        let some_before = (0..width).map(|at| at < padding - 1 || at == width - 1).collect::<Vec<_>>();
        let hidden = [before, after, some_before, scattered];

        let mut padded = Vec::new();
        for (row, hidden) in rows.iter().zip(&hidden) {
            let mut ids = row.iter();
            padded.push(hidden.iter().map(|is| if *is { PADDING } else { *ids.next().unwrap() }).collect::<Vec<i64>>());
        }
        for chunks in [vec![width], chunks(width, &mut numbers)] {
            let mut cache = model.new_cache();
            let mut start = 0;
            let mut parts = Vec::new();
            for chunk in &chunks {
                let range = start..start + chunk;
                let ids: Vec<Vec<i64>> = padded.iter().map(|row| row[range.clone()].to_vec()).collect();
                let is_padding = hidden.iter().map(|row| row[range.clone()].to_vec()).collect();
                let input = ModelInput::tokens(&ids).with_padding(is_padding);
                let output = model.forward(&input, Some(&mut cache), Default::default()).unwrap();
                parts.push(output.logits.unwrap());
                start += chunk;
            }
            let together = values(Tensor::cat(parts, 1));
            for (index, (row, hidden)) in rows.iter().zip(&hidden).enumerate() {
                let alone = logits(&model, &ModelInput::tokens(std::slice::from_ref(row)));
                let at_tokens = (0..width).filter(|at| !hidden[*at]).flat_map(|at| {
                    together[(index * width + at) * VOCAB..(index * width + at + 1) * VOCAB].to_vec()
                });
                let name = format!("row {index}, {hidden:?}, chunks {chunks:?}");
                assert_close(&name, &at_tokens.collect::<Vec<_>>(), &alone, MODEL * largest(&alone));
            }
        }
    }

    /// Without positions an encoder does not know the order of its tokens; with any kind of positions it does.
    #[test]
    fn only_positions_tell_the_order(seed in any::<u64>(), len in 3_usize..9, turn in 1_usize..8) {
        let turn = 1 + turn % (len - 1);
        let row = Numbers::new(seed).tokens(1, len, VOCAB).remove(0);
        let turned = |row: &[i64]| [&row[turn..], &row[..turn]].concat();
        for positions in positions() {
            let model = build(&model_config(ModelKind::Encoder, (6, 3), positions.clone()), seed);
            let [plain, other] = [row.clone(), turned(&row)].map(|row| logits(&model, &ModelInput::tokens(&[row])));
            let moved = [&plain[turn * VOCAB..], &plain[..turn * VOCAB]].concat();
            let tolerance = 4.0 * REORDERED * largest(&plain);
            if positions == Positions::None {
                assert_close("without positions", &other, &moved, tolerance);
            } else if turned(&row) != row {
                assert_apart(&format!("{positions:?}"), &other, &moved, 100.0 * tolerance);
            }
        }
    }
}

/// The splits and the padding above could have failed: what they compare depends on the cache and on knowing what is
/// padding.
#[test]
fn caches_and_padding_matter() {
    for positions in positions() {
        let model = build(&model_config(ModelKind::Decoder, (6, 3), positions.clone()), 1);
        let rows = Numbers::new(2).tokens(1, 8, VOCAB);
        let whole = logits(&model, &ModelInput::tokens(&rows));
        let tolerance = MODEL * largest(&whole);

        let late = logits(&model, &ModelInput::tokens(&[rows[0][3..].to_vec()]));
        assert_apart(&format!("{positions:?} without a cache"), &late, &whole[3 * VOCAB..], 100.0 * tolerance);

        let padded = [vec![PADDING; 3], rows[0].clone()].concat();
        let visible = logits(&model, &ModelInput::tokens(&[padded]));
        assert_apart(&format!("{positions:?} with visible padding"), &visible[3 * VOCAB..], &whole, 100.0 * tolerance);
    }
}
