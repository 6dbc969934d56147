//! Cache and generation.

use super::*;

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
