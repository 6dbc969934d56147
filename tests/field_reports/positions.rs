//! Positions, heads and caps.

use super::*;

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
