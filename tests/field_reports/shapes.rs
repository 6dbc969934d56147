//! Shapes: odd, empty and very large ones.

use super::*;

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
