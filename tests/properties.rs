//! What must hold for any weights and any input: causality, padding, windows, splits, permutations, grouped heads,
//! distances, convexity, equal kernels, and gradients that are the slopes of the function.
//!
//! Cases are drawn from a fixed seed, so that a run repeats. They run on flex, as these are properties of the
//! mathematics; other tests compare the backends with each other.

mod common;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, FloatDType, Gradients, Tensor, TensorData};
use burnformer::activation::Activation;
use burnformer::attention::{
    AlibiConfig, AttentionContext, AttentionKernel, AttentionMask, MultiHeadAttention, MultiHeadAttentionConfig,
    QkNorm, QkNormScope, RotaryConfig, RotaryScaling, RotaryStyle, ScoreOptions, scaled_dot_product_attention,
};
use burnformer::backend::Backend;
use burnformer::cast_parameters;
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{LayerPattern, ModelConfig, ModelInput, ModelKind, Transformer};
use burnformer::norm::{NormConfig, NormKind};
use burnformer::positions::{LearnedPositions, Positions};
use burnformer::transformer_block::{
    BlockContext, BlockLayout, BlockTopology, Memory, NormPlacement, TransformerBlock, TransformerBlockConfig,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use common::{
    Array, EPSILON, Numbers, assert_apart, assert_close, device, flex, largest, logits, logits_in_chunks, randomised,
    values,
};

/// Two ways of computing one model of two layers, relative to the largest logit: sums of up to 14 products, norms and
/// softmax in another order or batch, each a few roundings of 6e-8.
const MODEL: f64 = 1e-5;

/// Two ways of computing one attention call over some hundred keys, relative to the largest value.
const ATTENTION: f64 = 5e-6;

/// A reordered sum, relative.
const REORDERED: f64 = 1e-6;

/// A slope in 64 bits against a central difference with steps of 1e-5, relative to the largest slope of the
/// parameter (at least 1): the third derivative adds about 1e-9, the rounding of a loss of some tens divided by the
/// step the same.
const SLOPE: f64 = 1e-7;
const STEP: f64 = 1e-5;

/// So many cases from a seed that stays.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(55), failure_persistence: None, ..ProptestConfig::default() }
}

// ---------------------------------------------------------------------------------------------------------------------
// Models
// ---------------------------------------------------------------------------------------------------------------------

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

// ---------------------------------------------------------------------------------------------------------------------
// Scaled dot-product attention
// ---------------------------------------------------------------------------------------------------------------------

const KERNELS: [AttentionKernel; 4] =
    [AttentionKernel::Auto, AttentionKernel::Composed, AttentionKernel::Blockwise, AttentionKernel::Fused];

/// The weights of attention through any kernel: with the unit matrix as values, the output is the weights.
fn weights(query: Tensor<4>, key: Tensor<4>, mask: &AttentionMask, kernel: AttentionKernel) -> Vec<f64> {
    let [batch, n_kv_heads, key_len, _] = key.dims();
    let unit = Tensor::<2>::eye(key_len, &key.device()).unsqueeze::<4>().expand([batch, n_kv_heads, key_len, key_len]);
    let options = ScoreOptions { kernel, ..ScoreOptions::default() };
    values(scaled_dot_product_attention(query, key, unit, mask, None, &options).context)
}

/// Random keys hidden for each row of the batch.
fn random_padding(batch: usize, key_len: usize, share: f64, numbers: &mut Numbers) -> Tensor<2, Bool> {
    let hidden: Vec<bool> = (0..batch * key_len).map(|_| numbers.uniform() < share).collect();
    Tensor::from_data(TensorData::new(hidden, [batch, key_len]), &flex())
}

proptest! {
    #![proptest_config(cases(32))]

    /// A window of W shows exactly W keys, the query's own included, with causality and (on both sides) without, also
    /// where queries are fewer than keys.
    #[test]
    fn a_window_shows_exactly_its_keys(
        seed in any::<u64>(), queries in 1_usize..9, earlier in 0_usize..7, window in 1_usize..8, causal in any::<bool>()
    ) {
        let device = flex();
        let key_len = queries + earlier;
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([1, 2, queries, 4], &device);
        let key: Tensor<4> = numbers.tensor([1, 1, key_len, 4], &device);
        let mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        for kernel in KERNELS {
            let weights = weights(query.clone(), key.clone(), &mask.clone().with_window(window), kernel);
            for (row, weights) in weights.chunks(key_len).enumerate() {
                let position = row % queries + earlier;
                for (key, weight) in weights.iter().enumerate() {
                    let visible = position.abs_diff(key) < window && (!causal || key <= position);
                    prop_assert_eq!(*weight > 0.0, visible, "{:?}: query {} and key {}", kernel, position, key);
                }
                if causal {
                    let shown = weights.iter().filter(|weight| **weight > 0.0).count();
                    prop_assert_eq!(shown, window.min(position + 1), "{:?}", kernel);
                }
            }
        }
    }

    /// Each output is a convex combination of the visible values: weights are not negative, they sum to 1 (to 0 where
    /// nothing is visible), and the output lies between the least and the largest value of each feature.
    #[test]
    fn outputs_are_convex_combinations(seed in any::<u64>(), share in select(vec![0.0, 0.3, 0.9]), causal in any::<bool>()) {
        let device = flex();
        let [batch, n_heads, n_kv_heads, query_len, key_len, d_value] = [2, 6, 3, 4, 7, 5];
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([batch, n_heads, query_len, 8], &device);
        let key: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, 8], &device);
        let value: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_value], &device);
        let mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        let mask = mask.with_padding(random_padding(batch, key_len, share, &mut numbers));
        let v = values(value.clone());
        for kernel in KERNELS {
            let weights = weights(query.clone(), key.clone(), &mask, kernel);
            let options = ScoreOptions { kernel, ..ScoreOptions::default() };
            let output =
                scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context;
            for (row, (weights, output)) in weights.chunks(key_len).zip(values(output).chunks(d_value)).enumerate() {
                prop_assert!(weights.iter().all(|weight| *weight >= 0.0), "{:?}: {:?}", kernel, weights);
                let sum: f64 = weights.iter().sum();
                if weights.iter().all(|weight| *weight == 0.0) {
                    prop_assert!(output.iter().all(|y| *y == 0.0), "{:?}: {:?}", kernel, output);
                    continue;
                }
                prop_assert!((sum - 1.0).abs() < 10.0 * EPSILON, "{:?}: weights sum to {}", kernel, sum);
                let (batch, head) = (row / (n_heads * query_len), row / query_len % n_heads);
                let first = (batch * n_kv_heads + head / (n_heads / n_kv_heads)) * key_len;
                for (feature, y) in output.iter().enumerate() {
                    let seen = (0..key_len).filter(|key| weights[*key] > 0.0).map(|key| v[(first + key) * d_value + feature]);
                    let (least, most) = seen.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
                    let slack = 10.0 * EPSILON * most.abs().max(least.abs());
                    prop_assert!(least - slack <= *y && *y <= most + slack, "{:?}: {} of {}..{}", kernel, y, least, most);
                }
            }
        }
    }

    /// After rotation, the score of a query and a key depends on the distance of their positions alone.
    #[test]
    fn rotary_scores_depend_on_distance(seed in any::<u64>(), distance in 0_usize..12, start in 0_usize..400) {
        let device = flex();
        let mut numbers = Numbers::new(seed);
        let [query, key] = [(); 2].map(|()| numbers.tensor::<4>([1, 1, 1, 8], &device));
        for rotary in [
            RotaryConfig::new(100.0),
            RotaryConfig::new(1e4).with_style(RotaryStyle::Interleaved),
            RotaryConfig::new(100.0).with_fraction(0.5).with_scaling(RotaryScaling::Linear { factor: 3.0 }),
        ] {
            let score = |start: usize, distance: usize| -> f64 {
                let turn = |x: &Tensor<4>, position: usize| rotary.angles(8, &[vec![position]], &device).apply(x.clone());
                values((turn(&query, start + distance) * turn(&key, start)).sum())[0]
            };
            // An angle of `position` radians is rounded to 32 bits, and each of the numbers turns by that much.
            let size = largest(&values(query.clone())) * largest(&values(key.clone())) * 8.0;
            let bound = (4.0 + 2.0 * (start + distance) as f64) * EPSILON * size;
            let want = score(0, distance);
            assert_close(&format!("{rotary:?}"), &[score(start, distance)], &[want], bound);
        }
    }

    /// As many heads as there are give as many patterns of attention.
    #[test]
    fn heads_attend_differently(seed in any::<u64>(), n_heads in 2_usize..7) {
        let device = flex();
        let attention = randomised(MultiHeadAttentionConfig::new(18, n_heads).with_d_head(5).init(&device), seed);
        let x = Numbers::new(seed).tensor([1, 6, 18], &device);
        let mask = AttentionMask::none();
        let (_, weights) = attention.forward_with_weights(x, None, AttentionContext::masked(&mask));
        prop_assert_eq!(weights.dims(), [1, n_heads, 6, 6]);
        let weights = values(weights);
        let pattern = |head: usize| &weights[head * 36..(head + 1) * 36];
        for head in 0..n_heads {
            for other in 0..head {
                assert_apart(&format!("heads {head} and {other}"), pattern(head), pattern(other), 0.05);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// Grouped heads are heads of their own whose keys and values repeat.
    #[test]
    fn grouped_heads_are_repeated_heads(
        seed in any::<u64>(), heads in select(vec![(4, 2), (6, 3), (6, 2), (5, 1)]), kernel in select(KERNELS.to_vec())
    ) {
        let device = flex();
        let (n_heads, n_kv_heads) = heads;
        let d_head = 4;
        let qk_norm = QkNorm { scope: QkNormScope::PerHead, norm: NormConfig::new(NormKind::Rms) };
        let config = MultiHeadAttentionConfig::new(14, n_heads).with_d_head(d_head).with_qk_norm(qk_norm).with_kernel(kernel);
        let grouped = randomised(config.clone().with_n_kv_heads(n_kv_heads).init(&device), seed);
        let group = n_heads / n_kv_heads;

        // Which key/value head each query head reads.
        let full = |of: &dyn Fn(usize) -> usize| -> MultiHeadAttention {
            let mut full = config.init(&device);
            (full.query, full.output) = (grouped.query.clone(), grouped.output.clone());
            (full.query_norm, full.key_norm) = (grouped.query_norm.clone(), grouped.key_norm.clone());
            for (to, from) in [(&mut full.key, &grouped.key), (&mut full.value, &grouped.value)] {
                let heads = |x: Tensor<2>| {
                    let part = |head: usize| x.clone().slice_dim(1, of(head) * d_head..(of(head) + 1) * d_head);
                    Tensor::cat((0..n_heads).map(part).collect(), 1)
                };
                to.weight = Param::from_tensor(heads(from.weight.val()));
                let bias = from.bias.as_ref().unwrap().val().unsqueeze::<2>();
                to.bias = Some(Param::from_tensor(heads(bias).squeeze::<1>()));
            }
            full
        };
        let x: Tensor<3> = Numbers::new(seed).tensor([2, 7, 14], &device);
        let angles = RotaryConfig::new(50.0).angles(d_head, &[(0..7).collect()], &device);
        let mask = AttentionMask::causal();
        let run = |attention: &MultiHeadAttention| {
            let context = AttentionContext { rotary: Some(&angles), ..AttentionContext::masked(&mask) };
            values(attention.forward(x.clone(), context))
        };
        let got = run(&grouped);
        let want = run(&full(&|head| head / group));
        assert_close("neighbours share", &got, &want, ATTENTION * largest(&want));
        if n_kv_heads > 1 {
            let tiled = run(&full(&|head| head % n_kv_heads));
            assert_apart("heads handed out in turn", &got, &tiled, 100.0 * ATTENTION * largest(&want));
        }
    }

    /// All kernels agree for any mask, window, grouping and bias, over several tiles of keys and queries, and give
    /// zeros for queries that see nothing.
    #[test]
    fn kernels_agree(
        seed in any::<u64>(),
        heads in select(vec![(8, 8), (8, 4), (9, 3), (8, 1)]),
        query_len in select(vec![1_usize, 7, 600, 900]),
        key_len in select(vec![1_usize, 5, 513, 1100]),
        causal in any::<bool>(),
        window in select(vec![None, Some(1_usize), Some(40), Some(700)]),
        padding in select(vec![None, Some(0.2), Some(1.0)]),
        biased in select(vec![None, Some(false), Some(true)]),
        softcap in select(vec![None, Some(1.5)]),
    ) {
        let device = flex();
        let (batch, d_head, d_value) = (2, 4, 3);
        let (n_heads, n_kv_heads) = heads;
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([batch, n_heads, query_len, d_head], &device);
        let key: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_head], &device);
        let value: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_value], &device);
        let mut mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        if let Some(window) = window {
            mask = mask.with_window(window);
        }
        if let Some(share) = padding {
            mask = mask.with_padding(random_padding(batch, key_len, share, &mut numbers));
        }
        let bias: Option<Tensor<4>> = biased.map(|infinite| {
            let mut bias = numbers.normals(n_heads * query_len * key_len);
            if infinite {
                // Single scores of minus infinity, and a row of them.
                bias.iter_mut().for_each(|bias| *bias = if numbers.uniform() < 0.3 { f64::NEG_INFINITY } else { *bias });
                let row = numbers.below(n_heads * query_len) * key_len;
                bias[row..row + key_len].fill(f64::NEG_INFINITY);
            }
            Array { shape: vec![1, n_heads, query_len, key_len], values: bias }.tensor(&device)
        });
        let attend = |kernel: AttentionKernel| {
            let options = ScoreOptions { kernel, softcap, ..ScoreOptions::default() };
            let output = scaled_dot_product_attention(
                query.clone(), key.clone(), value.clone(), &mask, bias.as_ref(), &options,
            );
            values(output.context)
        };
        let want = attend(AttentionKernel::Composed);
        let tolerance = ATTENTION * largest(&values(value.clone()));
        for kernel in KERNELS {
            assert_close(&format!("{kernel:?}"), &attend(kernel), &want, tolerance);
        }
    }

    /// The kernels that record gradients agree on them.
    #[test]
    fn kernels_agree_on_gradients(
        seed in any::<u64>(), heads in select(vec![(2, 2), (4, 2)]), key_len in select(vec![5_usize, 520]),
        causal in any::<bool>(), padding in select(vec![None, Some(0.3), Some(1.0)]), softcap in select(vec![None, Some(1.5)]),
    ) {
        let device = flex().autodiff();
        let (n_heads, n_kv_heads) = heads;
        let mut numbers = Numbers::new(seed);
        let mut mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        if let Some(share) = padding {
            mask = mask.with_padding(random_padding(2, key_len, share, &mut numbers).autodiff());
        }
        let mut leaf = |heads: usize, len: usize| -> Tensor<4> { numbers.tensor([2, heads, len, 3], &device) };
        let leaves = [leaf(n_heads, 4), leaf(n_kv_heads, key_len), leaf(n_kv_heads, key_len)];
        let direction = leaf(n_heads, 4);
        let slopes = |kernel: AttentionKernel| {
            let [query, key, value] = leaves.clone().map(|leaf| leaf.detach().require_grad());
            let options = ScoreOptions { kernel, softcap, ..ScoreOptions::default() };
            let output = scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options);
            let gradients = (output.context * direction.clone()).sum().backward();
            [query, key, value].map(|leaf| values(leaf.grad(&gradients).expect("a leaf has a gradient")))
        };
        let want = slopes(AttentionKernel::Composed);
        for kernel in [AttentionKernel::Auto, AttentionKernel::Blockwise] {
            for ((got, want), name) in slopes(kernel).iter().zip(&want).zip(["query", "key", "value"]) {
                let tolerance = ATTENTION * largest(want).max(1.0);
                assert_close(&format!("{kernel:?}: gradient of {name}"), got, want, tolerance);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients
// ---------------------------------------------------------------------------------------------------------------------

/// What a block of a gradient test is called with.
struct Setting {
    name: &'static str,
    config: TransformerBlockConfig,
    mask: AttentionMask,
    rotary: Option<RotaryConfig>,
    alibi: bool,
}

const WIDTH: usize = 6;
const LEN: usize = 5;

/// Blocks that together use every operation with parameters or a derivative of its own.
fn settings(device: &Device) -> Vec<Setting> {
    let attention = || MultiHeadAttentionConfig::new(WIDTH, 2);
    let feed_forward = |activation| FeedForwardConfig::new(WIDTH, 7).with_activation(activation);
    let block = |attention, activation, placement| {
        TransformerBlockConfig::new(attention, feed_forward(activation)).with_layout(BlockLayout::new(placement))
    };
    let qk_norm = |scope, kind| QkNorm { scope, norm: NormConfig::new(kind) };
    let plain = |name, config, mask| Setting { name, config, mask, rotary: None, alibi: false };
    let padding = || {
        let hidden = [[true, false, false, true, false], [false, false, true, false, false]];
        Tensor::<2, Bool>::from_data(TensorData::from(hidden), device)
    };
    let mut gated = block(
        attention()
            .with_n_kv_heads(1)
            .with_d_head(4)
            .with_softcap(1.5)
            .with_qk_norm(qk_norm(QkNormScope::PerHead, NormKind::RmsPlusOne))
            .with_kernel(AttentionKernel::Blockwise),
        Activation::Silu,
        NormPlacement::Sandwich,
    )
    .with_norm(NormConfig::new(NormKind::RmsPlusOne));
    gated.feed_forward = gated.feed_forward.map(|feed_forward| feed_forward.with_gated(true));
    let parallel = |topology| BlockLayout::default().with_topology(topology);
    vec![
        plain(
            "pre-norm, gelu, causal",
            block(attention(), Activation::Gelu, NormPlacement::Pre),
            AttentionMask::causal(),
        ),
        plain(
            "post-norm, tanh gelu, padding",
            block(attention(), Activation::GeluTanh, NormPlacement::Post),
            AttentionMask::none().with_padding(padding()),
        ),
        Setting {
            name: "sandwich, gated silu, grouped heads, norms of queries and keys, rotary, cap, window, in tiles",
            config: gated,
            mask: AttentionMask::causal().with_window(3).with_padding(padding()),
            rotary: Some(RotaryConfig::new(10.0)),
            alibi: false,
        },
        Setting {
            name: "parallel, quick gelu, linear biases, own norm per head",
            config: block(
                attention().with_qk_norm(qk_norm(QkNormScope::PerHeadOwnWeight, NormKind::Layer)),
                Activation::QuickGelu,
                NormPlacement::Pre,
            )
            .with_layout(parallel(BlockTopology::Parallel)),
            mask: AttentionMask::causal(),
            rotary: None,
            alibi: true,
        },
        Setting {
            name: "parallel with one norm, squared relu, neighbours turn",
            config: block(attention().with_clip_qkv(1.0), Activation::ReluSquared, NormPlacement::Pre)
                .with_layout(parallel(BlockTopology::ParallelSharedNorm)),
            mask: AttentionMask::none(),
            rotary: Some(RotaryConfig::new(10.0).with_style(RotaryStyle::Interleaved)),
            alibi: false,
        },
        plain(
            "norms on outputs, relu, norms of queries and keys over the full width",
            block(
                attention().with_qk_norm(qk_norm(QkNormScope::FullWidth, NormKind::Rms)),
                Activation::Relu,
                NormPlacement::Output,
            ),
            AttentionMask::causal(),
        ),
        plain(
            "cross-attention",
            block(attention(), Activation::Tanh, NormPlacement::Pre)
                .with_cross_attention(attention().with_d_context(3)),
            AttentionMask::causal(),
        ),
    ]
}

/// The loss of a block: the output times fixed numbers.
fn loss(setting: &Setting, block: &TransformerBlock, x: &Tensor<3>) -> Tensor<1> {
    let device = x.device();
    let positions = || vec![(0..LEN).collect::<Vec<_>>()];
    let angles = setting.rotary.as_ref().map(|rotary| rotary.angles(block_d_head(setting), &positions(), &device));
    let bias = setting.alibi.then(|| AlibiConfig::default().bias(2, &positions(), 1.0, &device));
    let mut numbers = Numbers::new(77);
    let mut fixed = |shape: [usize; 3]| numbers.tensor::<3>(shape, &device).cast(FloatDType::F64);
    let (direction, states) = (fixed([2, LEN, WIDTH]), fixed([2, 4, 3]));
    let all = AttentionMask::none();
    let projected = block.project_memory(states);
    let context = BlockContext {
        rotary: angles.as_ref(),
        bias: bias.as_ref(),
        memory: projected.as_ref().map(|projected| Memory { projected, mask: &all }),
        ..BlockContext::masked(&setting.mask)
    };
    (block.forward(x.clone(), context) * direction).sum()
}

fn block_d_head(setting: &Setting) -> usize {
    setting.config.attention.d_head()
}

/// The gradient of each parameter, in the order in which they are visited, with its path.
fn slopes(block: &TransformerBlock, gradients: &Gradients) -> Vec<(String, Vec<f64>)> {
    struct Collect<'a> {
        gradients: &'a Gradients,
        path: Vec<String>,
        found: Vec<(String, Vec<f64>)>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.path.join(".");
            let gradient = param.val().grad(self.gradients).unwrap_or_else(|| panic!("{path} has no gradient"));
            self.found.push((path, values(gradient)));
        }
    }
    let mut collect = Collect { gradients, path: Vec::new(), found: Vec::new() };
    block.visit(&mut collect);
    collect.found
}

/// The block with one number of one parameter moved.
fn moved(block: TransformerBlock, parameter: usize, element: usize, by: f64) -> TransformerBlock {
    struct Move {
        left: usize,
        element: usize,
        by: f64,
    }
    impl ModuleMapper for Move {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let is_it = self.left == 0;
            self.left = self.left.wrapping_sub(1);
            if is_it { param.map(|tensor| moved_tensor(&tensor, self.element, self.by)) } else { param }
        }
    }
    block.map(&mut Move { left: parameter, element, by })
}

fn moved_tensor<const D: usize>(tensor: &Tensor<D>, element: usize, by: f64) -> Tensor<D> {
    let (shape, device) = (tensor.dims().to_vec(), tensor.device());
    let mut values = values(tensor.clone());
    values[element] += by;
    Array { shape, values }.tensor_of(FloatDType::F64, &device)
}

#[test]
fn gradients_are_the_slopes_of_the_function() {
    for backend in [Backend::Flex, Backend::NdArray] {
        let plain = device(backend);
        let recording = plain.clone().autodiff();
        let in_64_bits = |setting: &Setting, device: &Device| {
            cast_parameters(randomised(setting.config.init(device), 3), FloatDType::F64)
        };
        for (setting, on_autodiff) in settings(&plain).iter().zip(settings(&recording)) {
            let name = format!("{backend}, {}", setting.name);
            let x: Tensor<3> = Numbers::new(9).tensor([2, LEN, WIDTH], &plain).cast(FloatDType::F64);

            let leaf = x.clone().autodiff().require_grad();
            let block = in_64_bits(&on_autodiff, &recording);
            let gradients = loss(&on_autodiff, &block, &leaf).backward();
            let analytic = slopes(&block, &gradients);

            let block = in_64_bits(setting, &plain);
            let value = |block: &TransformerBlock, x: &Tensor<3>| values(loss(setting, block, x))[0];
            let central = |plus: f64, minus: f64| (plus - minus) / (2.0 * STEP);
            let mut numbers = Numbers::new(21);
            let mut sample = |count: usize| [0, numbers.below(count), numbers.below(count), count - 1];

            for (index, (path, analytic)) in analytic.iter().enumerate() {
                let tolerance = SLOPE * largest(analytic).max(1.0);
                for element in sample(analytic.len()) {
                    let at = |by: f64| value(&moved(block.clone(), index, element, by), &x);
                    let want = central(at(STEP), at(-STEP));
                    assert_close(&format!("{name}: {path}[{element}]"), &[analytic[element]], &[want], tolerance);
                }
                // What a bias adds to every key alike cancels out in the softmax where keys do not turn; all else must
                // matter.
                let is_key_bias = match setting.config.attention.qk_norm {
                    Some(_) => path.ends_with("key_norm.bias"),
                    None => path.ends_with("key.bias"),
                };
                let cancels = is_key_bias && setting.rotary.is_none();
                assert!(cancels || largest(analytic) > 1e3 * SLOPE, "{name}: {path} changes nothing");
            }
            let analytic = values(leaf.grad(&gradients).expect("the input has a gradient"));
            for element in sample(analytic.len()) {
                let at = |by: f64| value(&block, &moved_tensor(&x, element, by));
                let want = central(at(STEP), at(-STEP));
                let tolerance = SLOPE * largest(&analytic).max(1.0);
                assert_close(&format!("{name}: x[{element}]"), &[analytic[element]], &[want], tolerance);
            }
        }
    }
}
