//! What broke for users of other projects, with the right values. The reports themselves are linked; the numbers were
//! computed with PyTorch 2.9 and transformers 5.24.
//!
//! A test of an option has a twin: the same computation without the option must be off by at least a hundred times the
//! tolerance, as a test that passes without the thing it is about says nothing.

mod common;

use std::time::Instant;

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use burnformer::activation::Activation;
use burnformer::attention::{
    AttentionContext, AttentionKernel, AttentionMask, KvCache, MultiHeadAttentionConfig, RotaryConfig, RotaryScaling,
    RotaryStyle, ScoreOptions, alibi_slopes, scaled_dot_product_attention,
};
use burnformer::backend::{DeviceName, float_dtype, largest_buffer};
use burnformer::embedding::EmbeddingConfig;
use burnformer::error::Error;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{Cache, ForwardOptions, LayerPattern, Logits, ModelConfig, ModelInput, ModelKind, Transformer};
use burnformer::norm::{NormConfig, NormKind};
use burnformer::positions::{Positions, sinusoidal};
use burnformer::transformer_block::{BlockContext, BlockLayout, NormPlacement, TransformerBlockConfig};
use serde_json::{Value, json};

use common::{
    Array, Changed, EPSILON, FiveKeys, Fixture, Greedy, Numbers, argmax, assert_apart, assert_close, checkpoint_folder,
    devices, flex, golden, gradient, largest, load, logits, logits_in_chunks, randomised, values,
};

/// Attention over five keys, whose values go up to 9: a handful of roundings of 6e-8 relative to that, and the six
/// digits after the point in which the reports give values.
const MICRO: f64 = 1e-5;

/// A whole tiny model, relative to the largest logit: twenty operations of a few roundings of 6e-8 each; measured are
/// 1.2e-6.
const MODEL: f64 = 1e-5;

/// One rounding to 16 bits.
const HALF: f64 = 1.0 / 2048.0;

/// The kernels that take any mask on any backend, with and without recording gradients.
const KERNELS: [AttentionKernel; 3] = [AttentionKernel::Auto, AttentionKernel::Composed, AttentionKernel::Blockwise];

fn with_kernel(kernel: AttentionKernel) -> ScoreOptions<'static> {
    ScoreOptions { kernel, ..ScoreOptions::default() }
}

/// Attention over five keys on every backend, plain and with autodiff, through every kernel.
fn everywhere(mut check: impl FnMut(&str, &FiveKeys, AttentionKernel)) {
    for (backend, plain) in devices() {
        for device in [plain.clone(), plain.autodiff()] {
            let autodiff = if device.is_autodiff() { " with autodiff" } else { "" };
            let set = FiveKeys::new(&device);
            for kernel in KERNELS {
                check(&format!("{backend}{autodiff}, {kernel:?}"), &set, kernel);
            }
        }
    }
}

// Answers over five keys.
const NO_MASK: [f64; 6] = [4.009529, 5.009528, 5.035807, 6.035807, 4.0, 5.0];
const CAUSAL: [f64; 6] = [1.728677, 2.728677, 2.570342, 3.570342, 4.0, 5.0];
const CAUSAL_FROM_THE_START: [f64; 6] = [0.0, 1.0, 1.339523, 2.339523, 2.0, 3.0];
const CAUSAL_AND_PADDED: [f64; 6] = [3.174958, 4.174958, 3.221836, 4.221837, 5.0, 6.0];
const PADDED: [f64; 6] = [5.166183, 6.166183, 5.660709, 6.660708, 5.0, 6.0];
const CAUSAL_ROW_1_MASKED: [f64; 6] = [1.728677, 2.728677, 0.0, 0.0, 4.0, 5.0];
const CAUSAL_INVERTED: [f64; 6] = [6.2141, 7.2141, 8.0, 9.0, 0.0, 0.0];
const ROW_1: [&str; 3] = [".....", "xxxxx", "....."];
const CAUSAL_PAIRS: [&str; 3] = ["...xx", "....x", "....."];

/// The logits of a tiny checkpoint on every backend against what transformers gives.
fn compare_everywhere(name: &str) {
    let golden = golden(name);
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let got = logits(&load(name, &device), &ModelInput::tokens(&rows));
        assert_close(&format!("{backend}, {name}"), &got, &want, MODEL * largest(&want));
    }
}

/// A changed checkpoint must give other logits than the right ones.
fn must_differ(what: &str, name: &str, changed: &Changed) {
    let golden = golden(name);
    let want = golden.values("logits");
    let got = changed.logits(&golden.rows("input_ids"));
    assert_apart(what, &got, &want, 100.0 * MODEL * largest(&want));
}

fn message<T>(result: Result<T, Error>, what: &str) -> String {
    match result {
        Ok(_) => panic!("{what}: must be an error"),
        Err(error) => error.to_string(),
    }
}

fn forward(model: &Transformer, rows: &[Vec<i64>], cache: &mut Cache) -> Result<Tensor<3>, Error> {
    let output = model.forward(&ModelInput::tokens(rows), Some(cache), ForwardOptions::default())?;
    Ok(output.logits.expect("the model has a head"))
}

// ---------------------------------------------------------------------------------------------------------------------
// Masks
// ---------------------------------------------------------------------------------------------------------------------

/// NaN for a query whose keys are all masked: <https://github.com/tracel-ai/burn/pull/4697>.
#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    everywhere(|name, set, kernel| {
        let mask = AttentionMask::causal().with_explicit(set.pairs(ROW_1));
        let output = set.attend(&mask, None, &with_kernel(kernel));
        assert_close(name, &output, &CAUSAL_ROW_1_MASKED, MICRO);
        assert_eq!(output[2..4], [0.0, 0.0], "{name}: exactly zero");

        // All keys are padding.
        let all = AttentionMask::none().with_padding(set.padding("xxxxx"));
        assert_eq!(set.attend(&all, None, &with_kernel(kernel)), [0.0; 6], "{name}: padding everywhere");
    });

    // Gradients stay finite, and none reaches what a blind query could have seen.
    for (backend, device) in devices() {
        let set = FiveKeys::new(&device.autodiff());
        for kernel in KERNELS {
            let [query, key, value] = [&set.query, &set.key, &set.value].map(|x| x.clone().require_grad());
            let mask = AttentionMask::none().with_explicit(set.pairs(["xxxxx", "xxxxx", "....."]));
            let options = with_kernel(kernel);
            let output =
                scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context;
            let gradients = (output.clone() * output).sum().backward();
            let name = format!("{backend}, {kernel:?}");
            let of_query = gradient(&name, &query, &gradients).values;
            assert_eq!(of_query[..4], [0.0; 4], "{name}: gradients of blind queries");
            for leaf in [&query, &key, &value] {
                let values = gradient(&name, leaf, &gradients).values;
                assert!(values.iter().all(|x| x.is_finite()) && largest(&values) > 0.0, "{name}: {values:?}");
            }
        }
    }

    // A whole model with a row that is padding throughout: the other row is what it is alone.
    let golden = golden("llama");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let padding = vec![vec![true; 9], vec![false; 9]];
        let got = logits(&load("llama", &device), &ModelInput::tokens(&rows).with_padding(padding));
        assert!(got.iter().all(|x| x.is_finite()), "{backend}: a row of padding");
        let half = want.len() / 2;
        assert_close(backend, &got[half..], &want[half..], MODEL * largest(&want));
    }
}

/// The same mask as booleans and as numbers: <https://github.com/pytorch/pytorch/issues/103963>.
#[test]
fn booleans_and_minus_infinity_mask_alike() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        let infinite = |rows| set.bias(rows, f64::NEG_INFINITY);
        let none = AttentionMask::none();
        for (what, mask, bias, want) in [
            ("row", none.clone().with_explicit(set.pairs(ROW_1)), None, [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0]),
            ("row as a bias", none.clone(), Some(infinite(ROW_1)), [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0]),
            ("causal pairs", none.clone().with_explicit(set.pairs(CAUSAL_PAIRS)), None, CAUSAL),
            ("causal pairs as a bias", none.clone(), Some(infinite(CAUSAL_PAIRS)), CAUSAL),
            ("causal and a row as a bias", AttentionMask::causal(), Some(infinite(ROW_1)), CAUSAL_ROW_1_MASKED),
            (
                "window and a row as a bias",
                none.clone().with_window(9),
                Some(infinite(ROW_1)),
                [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0],
            ),
            // A large negative number is a bias and no mask: the same for all keys, it cancels out,
            // and what is hidden stays hidden.
            (
                "lowest number",
                none.clone(),
                Some(set.bias(ROW_1, f64::from(f32::MIN))),
                [NO_MASK[0], NO_MASK[1], 4.0, 5.0, 4.0, 5.0],
            ),
            (
                "causal and lowest number",
                AttentionMask::causal(),
                Some(set.bias(ROW_1, f64::from(f32::MIN))),
                [CAUSAL[0], CAUSAL[1], 3.0, 4.0, 4.0, 5.0],
            ),
            ("-1e4", none, Some(set.bias(ROW_1, -1e4)), NO_MASK),
        ] {
            // Scores around 1 lose three digits when 1e4 is added to them.
            let tolerance = if what == "-1e4" { 1e-3 } else { MICRO };
            assert_close(&format!("{name}, {what}"), &set.attend(&mask, bias.as_ref(), &options), &want, tolerance);
        }
    });
}

/// One API reads true as "drop", the next as "keep": <https://github.com/pytorch/pytorch/pull/170415>.
#[test]
fn true_hides_on_every_backend() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        let nothing = AttentionMask::none().with_explicit(set.pairs([".....", ".....", "....."]));
        assert_close(&format!("{name}: nothing hidden"), &set.attend(&nothing, None, &options), &NO_MASK, MICRO);
        let nothing = AttentionMask::none().with_padding(set.padding("....."));
        assert_close(&format!("{name}: no padding"), &set.attend(&nothing, None, &options), &NO_MASK, MICRO);
        let key_0 = AttentionMask::none().with_explicit(set.pairs(["x....", "x....", "x...."]));
        assert_close(&format!("{name}: one key hidden"), &set.attend(&key_0, None, &options), &PADDED, MICRO);
    });
    assert_apart("polarities", &CAUSAL, &CAUSAL_INVERTED, 100.0 * MICRO);
}

/// Causality that starts at the first key hides the newest keys from a query that comes with a cache:
/// <https://github.com/pytorch/pytorch/issues/110144>.
#[test]
fn causality_is_aligned_to_the_end_of_the_keys() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        assert_close(name, &set.attend(&AttentionMask::causal(), None, &options), &CAUSAL, MICRO);

        // One query sees every key.
        let (query, key, value) = (set.query.clone().slice_dim(2, 2..3), set.key.clone(), set.value.clone());
        let one = scaled_dot_product_attention(query, key, value, &AttentionMask::causal(), None, &options);
        assert_close(&format!("{name}: one query"), &values(one.context), &CAUSAL[4..], MICRO);
    });
    assert_apart("alignments", &CAUSAL, &CAUSAL_FROM_THE_START, 100.0 * MICRO);
    assert_close("the last query", &CAUSAL[4..], &NO_MASK[4..], 0.0);
}

/// A mask together with causality is refused on one path and taken on another:
/// <https://github.com/pytorch/pytorch/issues/118972>.
#[test]
fn causality_and_padding_both_apply() {
    everywhere(|name, set, kernel| {
        let mask = AttentionMask::causal().with_padding(set.padding("x...."));
        assert_close(name, &set.attend(&mask, None, &with_kernel(kernel)), &CAUSAL_AND_PADDED, MICRO);
    });
    for one in [CAUSAL, PADDED] {
        assert_apart("causality and padding", &CAUSAL_AND_PADDED, &one, 100.0 * MICRO);
    }
}

/// An encoder that returns a shorter sequence where every row ends with padding, and that differs between training and
/// inference: <https://github.com/pytorch/pytorch/issues/97111>, <https://github.com/pytorch/pytorch/issues/86120>.
#[test]
fn an_encoder_keeps_the_length_of_padded_rows() {
    let golden = golden("bert_bare");
    let (rows, padding) = (golden.rows("input_ids"), golden.padding("attention_mask"));
    let types = golden.rows("token_type_ids");
    let longer = |rows: &[Vec<i64>]| rows.iter().map(|row| [&row[..], &[0, 0]].concat()).collect::<Vec<_>>();
    let padding_of_longer: Vec<Vec<bool>> = padding.iter().map(|row| [&row[..], &[true, true]].concat()).collect();
    let run = |model: &Transformer, rows: &[Vec<i64>], types: &[Vec<i64>], padding: &[Vec<bool>]| {
        let input = ModelInput::tokens(rows).with_types(types).with_padding(padding.to_vec());
        let hidden = model.forward(&input, None, ForwardOptions::default()).unwrap().hidden;
        assert_eq!(hidden.dims()[..2], [rows.len(), rows[0].len()], "the length of the output");
        let width = hidden.dims()[2];
        let hidden = values(hidden);
        let places = hidden.chunks(width).zip(padding.iter().flatten());
        places.filter(|(_, is_padding)| !**is_padding).flat_map(|(place, _)| place.to_vec()).collect::<Vec<f64>>()
    };
    for (backend, device) in devices() {
        let model = load("bert_bare", &device);
        let short = run(&model, &rows, &types, &padding);
        let long = run(&model, &longer(&rows), &longer(&types), &padding_of_longer);
        assert_close(backend, &long, &short, MODEL * largest(&short));

        // Without dropout, a model that records gradients computes the same.
        let config = ModelConfig::new(
            ModelKind::Encoder,
            2,
            16,
            MultiHeadAttentionConfig::new(20, 5),
            FeedForwardConfig::new(20, 28),
        )
        .with_embedding(EmbeddingConfig::new(33).with_n_types(2).with_norm(true))
        .with_positions(Positions::Learned(Default::default()))
        .with_block(BlockLayout::new(NormPlacement::Post));
        let [plain, recording] = [device.clone(), device.autodiff()]
            .map(|device| run(&randomised(config.init(&device), 4), &rows, &types, &padding));
        assert_close(&format!("{backend}: training and inference"), &recording, &plain, MODEL * largest(&plain));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cache and generation
// ---------------------------------------------------------------------------------------------------------------------

/// Several tokens after the first step give a mask of the wrong shape, or wrong logits:
/// <https://github.com/huggingface/candle/issues/2153>, <https://github.com/huggingface/candle/issues/2108>.
#[test]
fn a_prompt_may_come_in_any_pieces() {
    let golden = golden("llama");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let model = load("llama", &device);
        let vocab_size = model.config().vocab_size();
        for chunks in [&[9][..], &[4, 5], &[3, 3, 3], &[1; 9], &[8, 1]] {
            let got = logits_in_chunks(&model, &rows, chunks);
            assert_close(&format!("{backend}, {chunks:?}"), &got, &want, MODEL * largest(&want));
            assert_eq!(argmax(&got, vocab_size), argmax(&want, vocab_size), "{backend}, {chunks:?}");
        }
    }
}

/// A window that is one key too wide or too narrow, or a cache cut along the wrong axis:
/// <https://github.com/EricLBuehler/mistral.rs/issues/246>, <https://github.com/ml-explore/mlx-lm/pull/390>,
/// <https://github.com/huggingface/transformers/pull/26792>.
#[test]
fn a_window_is_neither_wider_nor_narrower() {
    compare_everywhere("mistral");
    let golden = golden("mistral");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let got = logits_in_chunks(&load("mistral", &device), &rows, &[1; 9]);
        assert_close(&format!("{backend}, token by token"), &got, &want, MODEL * largest(&want));
    }
    for window in [json!(3), json!(5), json!(null)] {
        let changed = Changed::new("mistral").with("sliding_window", window.clone());
        must_differ(&format!("a window of {window}"), "mistral", &changed);
    }
}

/// Positions that count the padding: <https://github.com/unslothai/unsloth/pull/3795>.
#[test]
fn padding_in_front_moves_no_positions() {
    let golden_llama = golden("llama");
    let padded = golden_llama.rows("left_padded.input_ids");
    let padding = golden_llama.padding("left_padded.attention_mask");
    for (backend, device) in devices() {
        let model = load("llama", &device);
        let found = Greedy::new(&model, &padded, true).with_padding(padding.clone()).take(6);
        assert_eq!(found, golden_llama.rows("left_padded.greedy"), "{backend}: greedy tokens");
    }

    // The other ways of knowing positions: learned, with an offset, linear biases, and windows.
    for name in ["gpt2", "opt", "bloom", "mistral", "gemma2"] {
        let rows = golden(name).rows("input_ids");
        let model = load(name, &flex());
        let vocab_size = model.config().vocab_size();
        let padded = vec![[&[3, 3], &rows[0][2..]].concat(), rows[1].clone()];
        let padding = vec![(0..9).map(|at| at < 2).collect::<Vec<bool>>(), vec![false; 9]];
        let together = logits(&model, &ModelInput::tokens(&padded).with_padding(padding.clone()));
        let alone = logits(&model, &ModelInput::tokens(&[rows[0][2..].to_vec()]));
        let tolerance = MODEL * largest(&alone);
        assert_close(name, &together[2 * vocab_size..9 * vocab_size], &alone, tolerance);
        let visible = logits(&model, &ModelInput::tokens(&padded));
        assert_apart(name, &visible[2 * vocab_size..9 * vocab_size], &alone, 100.0 * tolerance);

        let found = Greedy::new(&model, &padded, true).with_padding(padding).take(5);
        let each = [padded[0][2..].to_vec(), padded[1].clone()].map(|row| Greedy::new(&model, &[row], true).take(5));
        assert_eq!(found, each.concat(), "{name}: greedy tokens of a padded batch");
    }
}

/// Text that differs with and without a cache, and a second prompt that sees the first one's keys:
/// <https://github.com/lucidrains/x-transformers/issues/219>, <https://github.com/EricLBuehler/candle-vllm/issues/12>.
#[test]
fn greedy_text_is_the_same_with_and_without_a_cache() {
    let golden = golden("llama");
    let rows = golden.rows("input_ids");
    let want = golden.rows("greedy");
    for (backend, device) in devices() {
        let model = load("llama", &device);
        for cached in [true, false, true] {
            assert_eq!(Greedy::new(&model, &rows[..1], cached).take(8), want, "{backend}, cached: {cached}");
        }
        let mut both = [Greedy::new(&model, &rows[..1], true), Greedy::new(&model, &rows[1..], true)];
        (0..8).for_each(|_| both.iter_mut().for_each(Greedy::step));
        let [one, other] = both.map(|greedy| greedy.found());
        assert_eq!(one, want, "{backend}: between the steps of another prompt");
        assert_ne!(one, other, "{backend}: two prompts");
    }
}

/// A length check that looks at the new tokens and not at those of the cache, so that positions run off the table:
/// <https://github.com/karpathy/nanochat/pull/520>.
#[test]
fn a_sequence_past_the_learned_positions_is_an_error() {
    for (backend, device) in devices() {
        for (name, limit) in [("gpt2", 32), ("opt", 30)] {
            let model = load(name, &device);
            let row = |len: usize| vec![(0..len as i64).map(|at| 3 + at % 20).collect::<Vec<i64>>()];
            let names_both =
                |message: &str| message.contains(&(limit + 2).to_string()) && message.contains(&limit.to_string());

            let whole = message(forward(&model, &row(limit + 2), &mut model.new_cache()), "too long at once");
            assert!(names_both(&whole), "{backend}, {name}: {whole}");

            let mut cache = model.new_cache();
            forward(&model, &row(limit - 2), &mut cache).unwrap_or_else(|error| panic!("{backend}, {name}: {error}"));
            let later = message(forward(&model, &row(4), &mut cache), "too long with the cache");
            assert!(names_both(&later), "{backend}, {name}: {later}");

            // The refused tokens left no trace, and up to the limit there is room.
            assert_eq!(cache.len(), limit - 2, "{backend}, {name}");
            let rest =
                forward(&model, &row(2), &mut cache).unwrap_or_else(|error| panic!("{backend}, {name}: {error}"));
            let tokens = vec![[row(limit - 2).remove(0), row(2).remove(0)].concat()];
            let want = logits(&model, &ModelInput::tokens(&tokens));
            let rest = values(rest);
            let tolerance = MODEL * largest(&want);
            assert_close(&format!("{backend}, {name}"), &rest, &want[want.len() - rest.len()..], tolerance);
        }
        // Rotary positions have no table that ends: 64 is what the model was trained for, and it goes on.
        let model = load("llama", &device);
        let prompt = &golden("llama").rows("input_ids")[..1];
        let found = Greedy::new(&model, prompt, true).take(61).remove(0);
        let whole = [&prompt[0][..], &found[..60]].concat();
        let at_once = argmax(&logits(&model, &ModelInput::tokens(&[whole])), model.config().vocab_size());
        assert_eq!(found, at_once[8..], "{backend}: 70 tokens");
    }
}

/// A cache with one copy per query head: <https://github.com/Lightning-AI/litgpt/issues/1864>.
#[test]
fn the_cache_holds_one_copy_per_key_value_head() {
    let rows = golden("llama").rows("input_ids");
    // 2 layers of keys and values, 3 key/value heads of 4 features, 4 bytes.
    let per_token = 2 * 2 * 3 * 4 * 4;
    for (backend, device) in devices() {
        let model = load("llama", &device);
        let mut cache = model.new_cache();
        assert_eq!(cache.bytes(), 0, "{backend}: an empty cache");
        forward(&model, &rows[..1], &mut cache).unwrap();
        assert_eq!(cache.bytes() % per_token, 0, "{backend}: {} bytes", cache.bytes());
        let room = cache.bytes() / per_token;
        assert!((9..=9 + 64).contains(&room), "{backend}: room for {room} tokens after 9");

        // Two rows take twice as much.
        let mut two = model.new_cache();
        forward(&model, &rows, &mut two).unwrap();
        assert_eq!(two.bytes(), 2 * cache.bytes(), "{backend}: two rows");
    }
}

/// A small decoder with grouped heads and rotary positions.
fn small_decoder(max_seq_len: usize, window: Option<usize>) -> ModelConfig {
    let attention = MultiHeadAttentionConfig::new(16, 4).with_n_kv_heads(2);
    ModelConfig::new(ModelKind::Decoder, 2, max_seq_len, attention, FeedForwardConfig::new(16, 24))
        .with_embedding(EmbeddingConfig::new(20))
        .with_positions(Positions::rotary(RotaryConfig::new(1e4)))
        .with_layers(vec![LayerPattern { window, ..LayerPattern::default() }])
        .with_head(HeadConfig::new(true))
}

/// The whole context allocated in advance, so that models of 128k run out of memory:
/// <https://github.com/huggingface/candle/pull/2951>, <https://github.com/huggingface/candle/pull/1848>.
#[test]
fn the_cache_grows_with_the_sequence_and_not_with_the_limit() {
    let whole_context = 131_072;
    // 2 layers of keys and values, 2 key/value heads of 4 features, 4 bytes.
    let per_token = 2 * 2 * 2 * 4 * 4;
    for (backend, device) in devices() {
        let model = randomised(small_decoder(whole_context, None).init(&device), 6);
        let mut greedy = Greedy::new(&model, &[vec![1, 5, 9, 2]], true);
        (0..16).for_each(|_| greedy.step());
        let bytes = greedy.into_cache().expect("there is a cache").bytes();
        assert!(bytes >= 19 * per_token, "{backend}: {bytes} bytes do not hold 19 tokens");
        assert!(bytes <= whole_context * per_token / 100, "{backend}: {bytes} bytes after 19 tokens");
    }
}

/// A cache that is copied at each step, so that the time per token grows:
/// <https://github.com/ml-explore/mlx/pull/4019>, <https://github.com/Lightning-AI/litgpt/issues/298>.
#[test]
fn a_late_step_costs_what_an_early_one_does() {
    // Adding a token to 2,000 kept ones, whose copy would take a hundred times longer than the writing of one.
    let (heads, width) = (4, 64);
    let token: Tensor<4> = Numbers::new(1).tensor([1, heads, 1, width], &flex());
    flat("a token is added", || {
        let mut cache = KvCache::new();
        let token = token.clone();
        move || {
            let (keys, values) = cache.append(token.clone(), token.clone());
            assert_eq!(keys.dims(), values.dims());
        }
    });

    // A whole step of a model: attention over one small head is a little part of it, also over 2,000 keys.
    let attention = MultiHeadAttentionConfig::new(64, 1).with_d_head(4);
    let one_head = ModelConfig::new(ModelKind::Decoder, 1, 4096, attention, FeedForwardConfig::new(64, 1024))
        .with_embedding(EmbeddingConfig::new(2000))
        .with_positions(Positions::rotary(RotaryConfig::new(1e4)))
        .with_head(HeadConfig::new(true));
    // With a window it is the same part at each step.
    for (name, config) in [("one head", one_head), ("a window", small_decoder(4096, Some(8)))] {
        let model = randomised(config.init(&flex()), 6);
        flat(name, || {
            let (mut cache, model, mut step) = (model.new_cache(), &model, 0);
            move || {
                step += 1;
                let logits = forward(model, &[vec![step % 20]], &mut cache).unwrap();
                assert!(values(logits).iter().all(|x| x.is_finite()));
            }
        });
    }

    // Buffers grow by a share of themselves, so that all copies together are a constant per token; with a window they
    // stop growing.
    let per_token = 2 * 2 * 2 * 4 * 4;
    for (window, growths, room) in [(None, 10, 4000), (Some(8), 1, 300)] {
        let model = randomised(small_decoder(4096, window).init(&flex()), 6);
        let mut cache = model.new_cache();
        let sizes = (0..STEPS).map(|step| {
            forward(&model, &[vec![(step % 20) as i64]], &mut cache).unwrap();
            cache.bytes()
        });
        let mut sizes: Vec<usize> = sizes.collect();
        sizes.dedup();
        assert!(sizes.len() <= growths, "window {window:?}: the buffers grew to {sizes:?} bytes");
        assert!(sizes[sizes.len() - 1] <= room * per_token, "window {window:?}: the buffers grew to {sizes:?} bytes");
    }
}

const STEPS: usize = 2000;

/// Fails where the last hundred steps take more than twice as long as the first hundred.
fn flat<Step: FnMut()>(name: &str, start: impl Fn() -> Step) {
    // The median does not see the steps that grow a buffer or that another program interrupts.
    let median = |seconds: &[f64]| {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let run = || {
        let mut step = start();
        let seconds: Vec<f64> = (0..STEPS)
            .map(|_| {
                let start = Instant::now();
                step();
                start.elapsed().as_secs_f64()
            })
            .collect();
        median(&seconds[STEPS - 100..]) / median(&seconds[..100])
    };
    // Another program may slow one run down as it goes on, but hardly each of three.
    let ratios: Vec<f64> = (0..3).map(|_| run()).collect();
    assert!(
        ratios.iter().any(|ratio| *ratio <= 2.0),
        "{name}: the last of {STEPS} steps take {ratios:?} times the first"
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions, heads and caps
// ---------------------------------------------------------------------------------------------------------------------

/// Pairs taken as neighbours where the weights expect halves, fluent for some words and then nonsense:
/// <https://github.com/ggml-org/llama.cpp/pull/3364>, <https://github.com/jzhang38/TinyLlama/issues/24>.
#[test]
fn the_features_that_turn_together_are_chosen() {
    let halves = [-1.413352, 1.879118, -2.828857, 4.058191];
    let neighbours = [-1.272233, -1.838865, 2.878668, 4.088187];
    for (backend, device) in devices() {
        let x = Array { shape: vec![1, 1, 1, 4], values: vec![1.0, 2.0, 3.0, 4.0] };
        for (style, want) in [(RotaryStyle::Half, halves), (RotaryStyle::Interleaved, neighbours)] {
            let angles = RotaryConfig::new(1e4).with_style(style).angles(4, &[vec![3]], &device);
            assert_close(&format!("{backend}, {style:?}"), &values(angles.apply(x.tensor(&device))), &want, MICRO);
        }
    }
    // Files of the hub are in halves; Cohere's are in neighbours.
    let style = |name: &str| match Changed::new(name).model_config().unwrap().positions {
        Positions::Rotary(rotary) => rotary.global.style,
        other => panic!("{name} has {other:?}"),
    };
    assert_eq!(
        ["llama", "gpt_neox", "cohere"].map(style),
        [RotaryStyle::Half, RotaryStyle::Half, RotaryStyle::Interleaved]
    );
}

/// Distant positions that share an angle, as tables are rounded to 16 bits:
/// <https://github.com/EleutherAI/gpt-neox/issues/1003>, <https://github.com/huggingface/transformers/pull/29285>.
#[test]
fn distant_positions_have_angles_of_their_own() {
    // The frequency 0.56 and its product with the position are each rounded to 32 bits.
    let bound = 2304.0 * EPSILON + MICRO;
    for (backend, device) in devices() {
        let one = (0..3 * 32).map(|index| f64::from(u8::from(index % 32 == 1)));
        let x = Array { shape: vec![1, 1, 3, 32], values: one.collect() };
        let angles = RotaryConfig::new(1e4).angles(32, &[vec![257, 1857, 4097]], &device);
        let turned = values(angles.apply(x.tensor(&device)));
        let cosines = [turned[1], turned[33], turned[65]];
        assert_close(backend, &cosines, &[0.999964, 0.306711, -0.431232], bound);
        assert_apart("rounded to bfloat16", &cosines[..2], &[0.871147, -0.991191], 100.0 * bound);
    }
}

/// An unknown `rope_type`, or the integer 8 where a float is wanted:
/// <https://github.com/meta-llama/llama3/issues/299>, <https://github.com/meta-llama/llama3/issues/319>.
#[test]
fn scaled_rotations_take_integers_and_known_types_only() {
    let golden = golden("llama3_rope");
    let want = golden.values("logits");
    let old = Changed::old("llama3_rope");
    assert_close("integers", &old.logits(&golden.rows("input_ids")), &want, MODEL * largest(&want));
    compare_everywhere("llama3_rope");
    must_differ("no scaling", "llama3_rope", &Changed::old("llama3_rope").with("rope_scaling", json!(null)));

    let scaling =
        RotaryScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_seq_len: 16 };
    let frequencies = RotaryConfig::new(1e4).with_scaling(scaling).frequencies(8, 1).inverse;
    // The value of the report is one of 32 bits for a base of 1e4 with a ramp between its first two frequencies.
    assert_close("frequencies", &frequencies[1..], &[0.0125, 0.00125, 0.000125], 1e-9);
    assert_close("the frequency on the ramp", &frequencies[..1], &[0.576_056_36], 1e-7);

    for (changed, place) in [
        (Changed::old("llama3_rope").config(|c| c["rope_scaling"]["rope_type"] = json!("llama5")), "llama5"),
        (Changed::new("llama3_rope").config(|c| c["rope_parameters"]["rope_type"] = json!("llama5")), "llama5"),
    ] {
        let message = message(changed.load(&flex()), "an unknown type");
        assert!(message.contains(place) && message.contains("rope_type"), "{message}");
    }
}

/// A newer config has `rope_theta` inside `rope_parameters`, and readers silently take 10,000:
/// <https://github.com/vllm-project/vllm/pull/28542>, <https://github.com/deepspeedai/DeepSpeed/pull/8345>.
#[test]
fn both_spellings_of_a_config_give_one_model() {
    let folder = checkpoint_folder("llama").parent().expect("a folder of checkpoints").to_owned();
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let name = entry.expect("the folder can be read").file_name().into_string().expect("names are text");
        let [new, old] = [Changed::new(&name), Changed::old(&name)].map(|changed| changed.model_config());
        assert_eq!(new.unwrap(), old.unwrap(), "{name}");
        compared += 1;
    }
    assert!(compared >= 22, "only {compared} checkpoints were compared");

    let rows = golden("llama").rows("input_ids");
    let new = Changed::new("llama").config(|config| config["rope_parameters"]["rope_theta"] = json!(500_000));
    let old = Changed::old("llama").with("rope_theta", 500_000);
    must_differ("another base, new spelling", "llama", &new);
    must_differ("another base, old spelling", "llama", &old);
    assert_eq!(new.logits(&rows), old.logits(&rows), "another base in both spellings");

    // Two that contradict each other are refused.
    let both = new.with("rope_theta", 10_000);
    let message = message(both.load(&flex()), "two bases");
    assert!(message.contains("rope_theta") && message.contains("500000") && message.contains("10000"), "{message}");
}

/// A rotation over the whole head where a part should turn:
/// <https://github.com/huggingface/transformers/pull/48652>, <https://github.com/pie-project/pie/pull/603>.
#[test]
fn only_the_first_part_of_a_head_turns() {
    for name in ["gpt_neox", "phi", "stablelm"] {
        compare_everywhere(name);
    }
    for (name, key) in
        [("gpt_neox", "rotary_pct"), ("phi", "partial_rotary_factor"), ("stablelm", "partial_rotary_factor")]
    {
        must_differ(&format!("{name}: the whole head"), name, &Changed::old(name).with(key, 1.0));
        must_differ(&format!("{name}: a smaller part"), name, &Changed::old(name).with(key, 0.34));
    }
}

/// A family whose default fraction is 0.5 is read as 1.0 where the key is absent:
/// <https://github.com/ml-explore/mlx-lm/pull/1698>.
#[test]
fn absent_keys_take_the_default_of_the_family() {
    // What transformers 5.24 fills in.
    let defaults: [(&str, &str, Value); 33] = [
        ("cohere", "logit_scale", json!(0.0625)),
        ("cohere", "rope_theta", json!(500_000.0)),
        ("cohere", "num_key_value_heads", json!(6)),
        ("gemma", "head_dim", json!(256)),
        ("gemma2", "attn_logit_softcapping", json!(50.0)),
        ("gemma2", "final_logit_softcapping", json!(30.0)),
        ("gemma2", "query_pre_attn_scalar", json!(256)),
        ("gemma2", "sliding_window", json!(4096)),
        ("gemma2", "head_dim", json!(256)),
        ("gemma3_text", "query_pre_attn_scalar", json!(256)),
        ("gemma3_text", "rope_local_base_freq", json!(10_000.0)),
        ("gemma3_text", "rope_theta", json!(1_000_000.0)),
        ("gemma3_text", "rope_scaling", json!(null)),
        ("gemma3_text", "sliding_window", json!(4096)),
        ("gemma3_text", "sliding_window_pattern", json!(6)),
        ("gpt2", "n_positions", json!(1024)),
        ("gpt_neox", "rotary_emb_base", json!(10_000)),
        ("gpt_neox", "rotary_pct", json!(0.25)),
        ("llama", "num_key_value_heads", json!(6)),
        ("llama", "rms_norm_eps", json!(1e-6)),
        ("llama3_rope", "head_dim", json!(6)),
        ("llama3_rope", "rope_theta", json!(10_000.0)),
        ("llama3_rope", "tie_word_embeddings", json!(false)),
        ("mistral", "head_dim", json!(4)),
        ("mistral", "rms_norm_eps", json!(1e-6)),
        ("mistral", "sliding_window", json!(4096)),
        ("olmo2", "rms_norm_eps", json!(1e-5)),
        ("olmo2", "rope_theta", json!(10_000.0)),
        ("phi3", "sliding_window", json!(null)),
        ("qwen3", "head_dim", json!(128)),
        ("stablelm", "partial_rotary_factor", json!(0.25)),
        ("stablelm", "use_qkv_bias", json!(false)),
        ("starcoder2", "sliding_window", json!(null)),
    ];
    for (name, key, default) in defaults {
        let config = |changed: Changed| changed.model_config().unwrap_or_else(|error| panic!("{name}, {key}: {error}"));
        let absent = config(Changed::old(name).without(key));
        assert_eq!(absent, config(Changed::old(name).with(key, default)), "{name}: default of {key}");
        assert_ne!(absent, config(Changed::old(name)), "{name}: {key} changes nothing");
    }

    // Half of a head of phi turns, which must be an even number of features.
    let phi = || Changed::old("phi").with("hidden_size", 24);
    let fraction = |changed: Changed| changed.model_config().unwrap();
    assert_eq!(fraction(phi().without("partial_rotary_factor")), fraction(phi().with("partial_rotary_factor", 0.5)));
    assert_ne!(fraction(phi().without("partial_rotary_factor")), fraction(phi().with("partial_rotary_factor", 1.0)));

    // Keys that say what the default is.
    let redundant: [(&str, &[&str]); 21] = [
        ("bert", &["hidden_act", "layer_norm_eps", "pad_token_id", "type_vocab_size"]),
        ("bloom", &["apply_residual_connection_post_layernorm", "layer_norm_epsilon", "n_layer"]),
        ("cohere", &["hidden_act", "layer_norm_eps", "use_qk_norm"]),
        (
            "falcon",
            &["alibi", "bias", "layer_norm_epsilon", "multi_query", "new_decoder_architecture", "parallel_attn"],
        ),
        ("gemma", &["attention_bias", "hidden_act", "hidden_activation", "rms_norm_eps", "rope_scaling", "rope_theta"]),
        ("gemma2", &["attention_bias", "hidden_activation", "rms_norm_eps", "rope_theta"]),
        (
            "gemma3_text",
            &[
                "attention_bias",
                "attn_logit_softcapping",
                "final_logit_softcapping",
                "hidden_activation",
                "rms_norm_eps",
            ],
        ),
        ("gpt2", &["activation_function", "attn_pdrop", "embd_pdrop", "layer_norm_epsilon", "resid_pdrop"]),
        ("gpt_neox", &["hidden_act", "layer_norm_eps", "tie_word_embeddings", "use_parallel_residual"]),
        ("llama", &["hidden_act", "pretraining_tp", "rope_scaling", "tie_word_embeddings"]),
        ("llama3_rope", &["attention_bias", "hidden_act", "mlp_bias"]),
        ("mistral", &["hidden_act", "tie_word_embeddings"]),
        ("mpt", &["attn_config", "expansion_ratio", "learned_pos_emb", "no_bias", "norm_type"]),
        ("olmo2", &["attention_bias", "hidden_act", "rope_scaling", "tie_word_embeddings"]),
        ("opt", &["activation_function", "do_layer_norm_before", "dropout", "word_embed_proj_dim"]),
        (
            "phi",
            &[
                "hidden_act",
                "layer_norm_eps",
                "num_key_value_heads",
                "qk_layernorm",
                "rope_scaling",
                "tie_word_embeddings",
            ],
        ),
        ("phi3", &["hidden_act", "rms_norm_eps", "rope_scaling", "rope_theta", "tie_word_embeddings"]),
        ("qwen2", &["hidden_act", "rms_norm_eps", "sliding_window", "use_sliding_window"]),
        (
            "qwen3",
            &["attention_bias", "hidden_act", "rms_norm_eps", "rope_scaling", "sliding_window", "use_sliding_window"],
        ),
        (
            "stablelm",
            &[
                "hidden_act",
                "layer_norm_eps",
                "qk_layernorm",
                "rope_scaling",
                "rope_theta",
                "tie_word_embeddings",
                "use_parallel_residual",
            ],
        ),
        ("starcoder2", &["hidden_act", "norm_epsilon", "use_bias"]),
    ];
    for (name, keys) in redundant {
        let whole = Changed::old(name).model_config().unwrap();
        for key in keys {
            assert_eq!(Changed::old(name).without(key).model_config().unwrap(), whole, "{name}: default of {key}");
        }
    }
}

/// Key/value heads handed out in turn (0, 1, 0, 1) and not to neighbours (0, 0, 1, 1):
/// <https://github.com/onnx/onnx/pull/7274>, <https://github.com/apple/axlearn/pull/842>.
#[test]
fn neighbouring_query_heads_share_a_key_value_head() {
    compare_everywhere("llama");
    // The same model with a key/value head for each query head.
    let (n_heads, n_kv_heads, d_head) = (6, 3, 4);
    let spread = |head_of: fn(usize) -> usize| {
        Changed::new("llama").with("num_key_value_heads", n_heads).weights(|tensors| {
            for (name, array) in tensors {
                if name.contains("k_proj") || name.contains("v_proj") {
                    assert_eq!(array.shape[0], n_kv_heads * d_head);
                    let head = |head| array.part(head_of(head) * d_head..(head_of(head) + 1) * d_head);
                    *array = Array::joined(&(0..n_heads).map(head).collect::<Vec<_>>());
                }
            }
        })
    };
    let golden = golden("llama");
    let want = golden.values("logits");
    let got = spread(|head| head / 2).logits(&golden.rows("input_ids"));
    assert_close("one head each", &got, &want, MODEL * largest(&want));
    must_differ("heads in turn", "llama", &spread(|head| head % 3));
    // One key/value head for all, as Falcon has it.
    compare_everywhere("falcon");
}

/// A plain series of slopes where the number of heads is no power of two:
/// <https://github.com/ml-explore/mlx/pull/3071>.
#[test]
fn slopes_for_any_number_of_heads() {
    let rounding = 5e-7;
    assert_close("3 heads", &alibi_slopes(3), &[0.0625, 0.003906, 0.25], rounding);
    assert_close("6 heads", &alibi_slopes(6), &[0.25, 0.0625, 0.015625, 0.003906, 0.5, 0.125], rounding);
    assert_close(
        "12 heads",
        &alibi_slopes(12)[8..],
        &[std::f64::consts::FRAC_1_SQRT_2, 0.353553, 0.176777, 0.088388],
        rounding,
    );
    for n_heads in [3, 6, 12] {
        let plain: Vec<f64> = (1..=n_heads).map(|i| 2f64.powf(-8.0 * i as f64 / n_heads as f64)).collect();
        assert_apart(&format!("{n_heads} heads"), &alibi_slopes(n_heads), &plain, 100.0 * rounding);
    }
    // A model of six heads, whole and with the distances that a cache leaves.
    compare_everywhere("bloom");
    let golden = golden("bloom");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let got = logits_in_chunks(&load("bloom", &device), &rows, &[4, 1, 3, 1]);
        assert_close(&format!("{backend}, with a cache"), &got, &want, MODEL * largest(&want));
    }
}

/// One attention kernel without the cap on scores, so that the model is off on that backend only:
/// <https://github.com/vllm-project/vllm-metal/issues/665>, <https://github.com/EricLBuehler/mistral.rs/pull/1928>.
#[test]
fn caps_and_scales_act_everywhere() {
    compare_everywhere("gemma2");
    let lost = |key: &str, value: Value| must_differ(key, "gemma2", &Changed::new("gemma2").with(key, value));
    lost("attn_logit_softcapping", json!(null));
    lost("final_logit_softcapping", json!(null));
    lost("query_pre_attn_scalar", json!(6)); // the size of a head, which is what others take
    lost("sliding_window", json!(9));

    let capped = |cap: f64| match cap {
        0.5 => [1.896105, 2.896105, 2.71922, 3.71922, 4.0, 5.0],
        _ => [1.748096, 2.748096, 2.585192, 3.585192, 4.0, 5.0],
    };
    let capped_after_the_mask = [2.053041, 3.053041, 2.730783, 3.730783, 4.0, 5.0];
    everywhere(|name, set, kernel| {
        for cap in [0.5, 2.0] {
            let options = ScoreOptions { softcap: Some(cap), ..with_kernel(kernel) };
            let output = set.attend(&AttentionMask::causal(), None, &options);
            assert_close(&format!("{name}, cap {cap}"), &output, &capped(cap), MICRO);
            assert_apart(&format!("{name}, no cap"), &output, &CAUSAL, 100.0 * MICRO);
        }
    });
    assert_apart("cap after the mask", &capped(2.0), &capped_after_the_mask, 100.0 * MICRO);
}

// ---------------------------------------------------------------------------------------------------------------------
// Precision, activations and norms
// ---------------------------------------------------------------------------------------------------------------------

/// Scores in 16 bits that pass 65,504 and become NaN: <https://github.com/huggingface/candle/issues/2480>,
/// <https://github.com/huggingface/transformers/issues/5651>.
#[test]
fn large_scores_stay_finite_in_half_precision() {
    let mut checked = Vec::new();
    for (backend, device) in devices() {
        let name: DeviceName = backend.parse().expect("a backend's name is a device name");
        let Ok(half) = float_dtype("f16", &name, &device) else {
            continue;
        };
        checked.push(backend);
        let all = |rows: &[f64]| {
            let values = rows.iter().flat_map(|row| [*row; 64]).collect();
            Array { shape: vec![1, 1, rows.len(), 64], values }.tensor_of::<4>(half, &device)
        };
        for kernel in KERNELS {
            for (keys, want) in [([40.0, 20.0], [1.0, 2.0]), ([40.0, 40.0], [2.0, 3.0])] {
                let v = Array { shape: vec![1, 1, 2, 2], values: vec![1.0, 2.0, 3.0, 4.0] }.tensor_of(half, &device);
                let (mask, options) = (AttentionMask::none(), with_kernel(kernel));
                let output = scaled_dot_product_attention(all(&[40.0]), all(&keys), v, &mask, None, &options);
                let name = format!("{backend}, {kernel:?}, {keys:?}");
                assert_close(&name, &values(output.context), &want, 4.0 * HALF);
            }
        }
    }
    assert!(checked.contains(&"flex"), "only {checked:?} computes in 16 bits");
}

/// Gemma's configs say `gelu` and mean the tanh form: <https://github.com/vllm-project/vllm/issues/3411>.
#[test]
fn each_spelling_of_gelu_has_its_meaning() {
    for (backend, device) in devices() {
        let device = device.autodiff();
        let x = |values: &[f64]| Array { shape: vec![values.len()], values: values.to_vec() }.tensor::<1>(&device);
        for (activation, want) in [
            (Activation::Gelu, [-0.158655, 1.9545]),
            (Activation::GeluTanh, [-0.158808, 1.954598]),
            (Activation::QuickGelu, [-0.154204, 1.935659]),
        ] {
            let y = values(activation.forward(x(&[-1.0, 2.0])));
            assert_close(&format!("{backend}, {activation:?}"), &y, &want, 2e-6);
        }
        let leaf = x(&[-3.0, -1.0, 1.0, 3.0]).require_grad();
        let gradients = Activation::Gelu.forward(leaf.clone()).sum().backward();
        let slopes = gradient("gelu", &leaf, &gradients).values;
        assert_close(&format!("{backend}: slopes"), &slopes, &[-0.011946, -0.083315, 1.083315, 1.011946], 2e-6);
    }

    let activation = |changed: Changed| changed.model_config().unwrap().feed_forward.expect("it has one").activation;
    assert_eq!(activation(Changed::old("gemma")), Activation::GeluTanh, "`gelu` in a file of Gemma");
    assert_eq!(activation(Changed::old("gpt_neox")), Activation::Gelu, "`gelu` in a file of GPT-NeoX");
    for (spelling, want) in [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("quick_gelu", Activation::QuickGelu),
    ] {
        assert_eq!(activation(Changed::old("gpt_neox").with("hidden_act", spelling)), want, "`{spelling}`");
    }

    // The two forms are so near that the right one shows only beside the wrong one.
    let golden = golden("gemma");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    let error = |changed: &Changed| common::worst("gemma", &changed.logits(&rows), &want).0;
    let right = error(&Changed::old("gemma"));
    // What `hidden_activation` says is taken at its word.
    let exact = error(&Changed::old("gemma").with("hidden_activation", "gelu"));
    assert!(10.0 * right < exact, "off by {right:.1e} as the file means it and by {exact:.1e} with the exact form");
}

/// An eps that is added to the deviation and not to the variance: <https://github.com/tracel-ai/burn/issues/2185>.
#[test]
fn eps_is_added_inside_the_root() {
    for (backend, device) in devices() {
        let x = Array { shape: vec![1, 4], values: vec![0.001, -0.001, 0.002, -0.002] };
        for (eps, first) in [(1e-5, 0.282843), (1e-12, 0.632455)] {
            let norm = NormConfig::default().with_eps(eps).init(4, &device);
            let y = values(norm.forward(x.tensor::<2>(&device)));
            assert_close(&format!("{backend}, eps {eps}"), &y, &[first, -first, 2.0 * first, -2.0 * first], MICRO);
            assert_apart("outside the root", &y[..1], &[0.628481], 100.0 * MICRO);
        }
    }
}

/// A variance in one pass, which loses all digits when the mean is large:
/// <https://github.com/tracel-ai/burn/issues/5607>, <https://github.com/microsoft/onnxruntime/issues/28463>.
#[test]
fn a_large_mean_leaves_the_variance_its_digits() {
    for (backend, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            let x = Array { shape: vec![1, 4], values: vec![40_000.0, 40_001.0, 40_002.0, 40_003.0] };
            let norm = NormConfig::default().init(4, &device);
            let y = values(norm.forward(x.tensor::<2>(&device)));
            assert_close(backend, &y, &[-1.341635, -0.447212, 0.447212, 1.341635], MICRO);
        }
    }
}

/// Gemma's norm multiplies by one plus the weight: <https://github.com/pytorch/executorch/pull/19901>.
#[test]
fn gemmas_norms_multiply_by_one_plus_the_weight() {
    let plus_one = [0.401663, 0.584237, 1.424079, 1.460593];
    let plain = [0.036515, -0.146059, 0.328634, 0.0];
    for (backend, device) in devices() {
        for (kind, want) in [(NormKind::RmsPlusOne, plus_one), (NormKind::Rms, plain)] {
            let mut norm = NormConfig::new(kind).with_eps(1e-6).init(4, &device);
            let numbers = |values: [f64; 4]| Array { shape: vec![4], values: values.to_vec() }.tensor::<1>(&device);
            norm.weight = Some(Param::from_tensor(numbers([0.1, -0.2, 0.3, 0.0])));
            let y = norm.forward(numbers([1.0, 2.0, 3.0, 4.0]).unsqueeze::<2>());
            assert_close(&format!("{backend}, {kind:?}"), &values(y), &want, MICRO);
        }
    }
    compare_everywhere("gemma");
    let plain = Changed::new("gemma").weights(|tensors| {
        for (_, array) in tensors.iter_mut().filter(|(name, _)| name.contains("norm")) {
            array.values.iter_mut().for_each(|weight| *weight -= 1.0);
        }
    });
    must_differ("norms without the one", "gemma", &plain);
}

// ---------------------------------------------------------------------------------------------------------------------
// Shapes
// ---------------------------------------------------------------------------------------------------------------------

/// A sinusoidal table that fails when the width is odd: <https://github.com/codertimo/BERT-pytorch/issues/78>.
#[test]
fn an_odd_width_ends_with_a_sine() {
    let want = [0.909297, -0.416147, 0.050217, 0.998738, 0.001262];
    assert_close("width 5", &sinusoidal(2, 5), &want, 1e-6);
    // The widest model is not needed to see that one runs.
    let config =
        ModelConfig::new(ModelKind::Decoder, 1, 8, MultiHeadAttentionConfig::new(5, 1), FeedForwardConfig::new(5, 7))
            .with_embedding(EmbeddingConfig::new(11))
            .with_positions(Positions::Sinusoidal)
            .with_head(HeadConfig::new(true));
    for (backend, device) in devices() {
        let model = randomised(config.init(&device), 8);
        let whole = logits(&model, &ModelInput::tokens(&[vec![1, 5, 9, 2]]));
        let parts = logits_in_chunks(&model, &[vec![1, 5, 9, 2]], &[1, 2, 1]);
        assert_close(backend, &parts, &whole, MODEL * largest(&whole));
    }
}

/// No heads, or a width that they do not divide, end in a division by zero, and yet a size of heads that is given makes
/// such a width legal: <https://github.com/sgl-project/sglang/pull/32028>,
/// <https://github.com/huggingface/transformers/pull/46211>.
#[test]
fn impossible_head_counts_are_errors_that_name_the_numbers() {
    let heads = |d_model: usize, n_heads: usize| MultiHeadAttentionConfig::new(d_model, n_heads);
    for (config, numbers) in [
        (heads(12, 0), &["n_heads", "0"][..]),
        (heads(10, 4), &["10", "4"]),
        (heads(8, 4).with_n_kv_heads(3), &["4", "3"]),
        (heads(8, 4).with_n_kv_heads(0), &["4", "0"]),
        (heads(8, 4).with_n_kv_heads(8), &["4", "8"]),
        (heads(8, 4).with_d_head(0), &["d_head", "0"]),
        (heads(0, 4), &["d_model", "0"]),
    ] {
        let message = config.validate().expect_err("impossible").to_string();
        assert!(numbers.iter().all(|number| message.contains(number)), "{numbers:?}: {message}");
        // The same inside a model.
        let model = ModelConfig::new(ModelKind::Decoder, 1, 8, config.clone(), FeedForwardConfig::new(8, 8));
        assert!(model.validate().is_err(), "{config:?}");
        let toml = ModelConfig::from_toml(&model.to_toml());
        assert!(toml.is_err(), "{config:?} as a file");
    }
    for (key, value, numbers) in [
        ("num_attention_heads", 0, &["0"][..]),
        ("num_attention_heads", 5, &["24", "5"]),
        ("num_key_value_heads", 4, &["6", "4"]),
        ("num_key_value_heads", 0, &["6", "0"]),
        ("hidden_size", 0, &["0"]),
        ("head_dim", 0, &["0"]),
    ] {
        let message = message(Changed::old("llama").with(key, value).load(&flex()), key);
        assert!(numbers.iter().all(|number| message.contains(number)), "{key} = {value}: {message}");
    }

    // A size that is given need not divide the width.
    for (backend, device) in devices() {
        let attention = heads(10, 4).with_d_head(4).with_n_kv_heads(2).init(&device);
        let x = Numbers::new(1).tensor([2, 3, 10], &device);
        let mask = AttentionMask::none();
        assert_eq!(attention.forward(x, AttentionContext::masked(&mask)).dims(), [2, 3, 10], "{backend}");
    }
    compare_everywhere("qwen3");
    let rows = golden("llama").rows("input_ids");
    assert_eq!(
        Changed::old("llama").with("head_dim", json!(null)).logits(&rows),
        Changed::old("llama").logits(&rows),
        "a size that is null is absent"
    );
}

/// Sequences and batches of length zero crash or leave the output unset: <https://github.com/tracel-ai/burn/issues/4093>,
/// <https://github.com/Dao-AILab/flash-attention/issues/1159>,
/// <https://github.com/Dao-AILab/flash-attention/pull/2470>.
#[test]
fn empty_batches_and_sequences_give_empty_outputs() {
    let none = AttentionMask::none();
    let causal = AttentionMask::causal();
    for (backend, plain) in devices() {
        for device in [plain.clone(), plain.clone().autodiff()] {
            let zeros = |dims: [usize; 3]| Tensor::<3>::zeros(dims, &device);
            let attention = MultiHeadAttentionConfig::new(12, 3);
            let block = TransformerBlockConfig::new(attention.clone(), FeedForwardConfig::new(12, 20)).init(&device);
            let attention = attention.init(&device);
            for dims in [[0, 4, 12], [2, 0, 12], [0, 0, 12]] {
                for mask in [&none, &causal] {
                    let y = attention.forward(zeros(dims), AttentionContext::masked(mask));
                    assert_eq!(y.dims(), dims, "{backend}: attention");
                    let (y, weights) =
                        attention.forward_with_weights(zeros(dims), None, AttentionContext::masked(mask));
                    assert_eq!(
                        (y.dims(), weights.dims()),
                        (dims, [dims[0], 3, dims[1], dims[1]]),
                        "{backend}: weights"
                    );
                    let y = block.forward(zeros(dims), BlockContext::masked(mask));
                    assert_eq!(y.dims(), dims, "{backend}: block");
                }
            }

            // Queries without keys.
            for kernel in KERNELS {
                let heads = |len: usize| Tensor::<4>::ones([2, 3, len, 4], &device);
                let options = with_kernel(kernel);
                let y = scaled_dot_product_attention(heads(3), heads(0), heads(0), &none, None, &options).context;
                assert_eq!(y.dims(), [2, 3, 3, 4], "{backend}, {kernel:?}");
                assert_eq!(values(y), [0.0; 2 * 3 * 3 * 4], "{backend}, {kernel:?}: no keys");
                let y = scaled_dot_product_attention(heads(0), heads(5), heads(5), &none, None, &options).context;
                assert_eq!(y.dims(), [2, 3, 0, 4], "{backend}, {kernel:?}: no queries");
            }
            // Through the output projection, nothing leaves its bias.
            let y = attention.forward_cross(zeros([2, 3, 12]), zeros([2, 0, 12]), AttentionContext::masked(&none));
            let bias = values(attention.output.bias.as_ref().expect("there is a bias").val());
            assert_close(&format!("{backend}: an empty memory"), &values(y), &bias.repeat(6), EPSILON);
        }

        let model = load("llama", &plain);
        let vocab_size = model.config().vocab_size();
        for (rows, dims) in [(vec![], [0, 0]), (vec![vec![]; 2], [2, 0])] {
            let rows: Vec<Vec<i64>> = rows;
            let output = model.forward(&ModelInput::tokens(&rows), None, ForwardOptions::default()).unwrap();
            let [batch, seq] = dims;
            assert_eq!(output.hidden.dims(), [batch, seq, 24], "{backend}: hidden states of {rows:?}");
            assert_eq!(
                output.logits.expect("a head").dims(),
                [batch, seq, vocab_size],
                "{backend}: logits of {rows:?}"
            );
        }
        // Nothing in the middle of a sequence changes nothing, and one token is a sequence.
        let rows = golden("llama").rows("input_ids");
        let want = logits(&model, &ModelInput::tokens(&rows));
        let got = logits_in_chunks(&model, &rows, &[1, 3, 1, 4]);
        assert_close(&format!("{backend}: one token"), &got, &want, MODEL * largest(&want));
        let mut cache = model.new_cache();
        forward(&model, &[vec![5, 9], vec![6, 4]], &mut cache).unwrap();
        forward(&model, &[vec![], vec![]], &mut cache).unwrap();
        let with_gap = values(forward(&model, &[vec![7], vec![8]], &mut cache).unwrap());
        let whole = logits(&model, &ModelInput::tokens(&[vec![5, 9, 7], vec![6, 4, 8]]));
        let last: Vec<f64> = whole.chunks(3 * vocab_size).flat_map(|row| row[2 * vocab_size..].to_vec()).collect();
        assert_close(&format!("{backend}: an empty call between"), &with_gap, &last, MODEL * largest(&last));
    }
    // An empty call of a cache of keys leaves it usable.
    let mut cache = KvCache::new();
    let step = |len: usize| Tensor::<4>::ones([1, 2, len, 4], &flex());
    assert_eq!(cache.append(step(3), step(3)).0.dims(), [1, 2, 3, 4]);
    assert_eq!(cache.append(step(1), step(1)).1.dims(), [1, 2, 4, 4]);
}

/// Tables, scores or logits larger than a GPU binds at once, a panic from deep below:
/// <https://github.com/Gadersd/whisper-burn/issues/6>, <https://github.com/tracel-ai/models/issues/64>,
/// <https://github.com/tracel-ai/cubecl/issues/1065>, <https://github.com/tracel-ai/burn/issues/3011>.
#[test]
fn large_tables_and_score_squares_stay_within_limits() {
    // A table of 512 MiB is refused, by name and with both sizes, where a buffer cannot hold it. Weights are drawn when
    // they are first used, so none is made here.
    let mut large = small_decoder(64, None);
    large.d_model = 512;
    large.attention = MultiHeadAttentionConfig::new(512, 8);
    large.feed_forward = Some(FeedForwardConfig::new(512, 8));
    large.embedding = Some(EmbeddingConfig::new(262_144));
    for (backend, device) in devices() {
        let fits = large.init(&device).check_fits(&device);
        match largest_buffer(&device) {
            Some(limit) if limit < 512 << 20 => {
                let message = message(fits, "a table of 512 MiB");
                assert!(message.contains("embedding.tokens") && message.contains("512 MiB"), "{backend}: {message}");
                assert!(message.contains(&format!("{} MiB", limit >> 20)), "{backend}: {message}");
            }
            _ => fits.unwrap_or_else(|error| panic!("{backend}: {error}")),
        }
        assert!(load("llama", &device).check_fits(&device).is_ok(), "{backend}: a tiny model");

        // Logits of the last position alone.
        let model = load("llama", &device);
        let rows = golden("llama").rows("input_ids");
        let options = ForwardOptions { logits: Logits::Last, ..ForwardOptions::default() };
        let last = model.forward(&ModelInput::tokens(&rows), None, options).unwrap().logits.expect("a head");
        assert_eq!(last.dims(), [2, 1, 35], "{backend}");
        let all = logits(&model, &ModelInput::tokens(&rows));
        let want: Vec<f64> = all.chunks(9 * 35).flat_map(|row| row[8 * 35..].to_vec()).collect();
        assert_close(&format!("{backend}: last logits"), &values(last), &want, MODEL * largest(&want));
    }

    // The score square of 9 heads over 2,048 tokens has 144 MiB, more than many GPUs bind; in tiles it is never whole.
    let random = |dims: [usize; 4], device: &Device| -> [Tensor<4>; 3] {
        let mut numbers = Numbers::new(12);
        [(); 3].map(|()| numbers.tensor(dims, device))
    };
    let attend = |[q, k, v]: [Tensor<4>; 3], kernel: AttentionKernel| {
        let options = with_kernel(kernel);
        values(scaled_dot_product_attention(q, k, v, &AttentionMask::causal(), None, &options).context)
    };
    // Sums over up to 2,048 keys of weights that sum to 1, relative to values of up to 5.
    let tolerance = 1e-5;
    let (short, long) = ([1, 4, 1500, 32], [1, 9, 2048, 8]);
    let want = attend(random(long, &flex()), AttentionKernel::Blockwise);
    for (backend, device) in devices() {
        let whole = attend(random(short, &device), AttentionKernel::Composed);
        let in_tiles = attend(random(short, &device), AttentionKernel::Blockwise);
        assert_close(&format!("{backend}: in tiles and whole"), &in_tiles, &whole, tolerance);
        let chosen = attend(random(long, &device), AttentionKernel::Auto);
        assert_close(&format!("{backend}: a square of 144 MiB"), &chosen, &want, tolerance);
    }
}

/// The fixtures of this file are those of the checkpoints that the reports are about.
#[test]
fn fixtures_are_what_they_are_taken_for() {
    let shape =
        |name: &str, tensor: &str| Fixture::at(&checkpoint_folder(name).join("model.safetensors")).array(tensor).shape;
    assert_eq!(shape("llama", "model.layers.0.self_attn.q_proj.weight"), [24, 24]);
    assert_eq!(shape("llama", "model.layers.0.self_attn.k_proj.weight"), [12, 24]);
    assert_eq!(shape("qwen3", "model.layers.0.self_attn.q_proj.weight"), [48, 16]);
}
