//! The loop over token ids: any batch and any split gives what a row gives alone.

use burn::tensor::Device;
use burnformer::attention::{AlibiConfig, MultiHeadAttentionConfig, RotaryConfig};
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::generation::{Decoding, GenerationOptions, Sampling, StopReason};
use burnformer::head::HeadConfig;
use burnformer::model::{LayerPattern, ModelConfig, ModelKind, Transformer};
use burnformer::positions::Positions;
use burnformer::pretrained::Checkpoint;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::cases;
use crate::common::{Greedy, checkpoint_folder, devices, flex, golden, load, randomised};

/// Tokens and reason of each row.
type Rows = Vec<(Vec<u32>, StopReason)>;

fn generate(model: &Transformer, prompts: &[Vec<u32>], options: &GenerationOptions) -> Rows {
    let mut decoding = Decoding::new(model, prompts, options).unwrap_or_else(|error| panic!("{error}"));
    while !decoding.is_done() {
        let before: Vec<usize> = (0..prompts.len()).map(|row| decoding.tokens(row).len()).collect();
        for new in decoding.step().unwrap_or_else(|error| panic!("{error}")) {
            let tokens = decoding.tokens(new.row);
            assert_eq!((tokens.len(), tokens.last()), (before[new.row] + 1, Some(&new.token)));
            assert_eq!(new.stop, decoding.stop_reason(new.row));
        }
    }
    assert!(decoding.step().expect("nothing is left to do").is_empty());
    (0..prompts.len())
        .map(|row| (decoding.tokens(row).to_vec(), decoding.stop_reason(row).expect("it ended")))
        .collect()
}

fn tokens(model: &Transformer, prompts: &[Vec<u32>], options: &GenerationOptions) -> Vec<Vec<u32>> {
    generate(model, prompts, options).into_iter().map(|(tokens, _)| tokens).collect()
}

fn ids(rows: &[Vec<i64>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect()
}

fn message(model: &Transformer, prompts: &[Vec<u32>]) -> String {
    Decoding::new(model, prompts, &GenerationOptions::new(4)).expect_err("the prompt is refused").to_string()
}

/// Any split of the prompt, a batch with a shorter prompt, and every backend:
/// <https://github.com/huggingface/candle/issues/2153>, <https://github.com/unslothai/unsloth/pull/3795>,
/// <https://github.com/lucidrains/x-transformers/issues/219>.
#[test]
fn greedy_tokens_are_those_of_transformers() {
    let golden = golden("llama");
    let (row, want) = (ids(&golden.rows("input_ids")).remove(0), ids(&golden.rows("greedy")));
    let padded = ids(&golden.rows("left_padded.input_ids"));
    let both = [padded[0][3..].to_vec(), padded[1].clone()];
    let want_of_both = ids(&golden.rows("left_padded.greedy"));
    for (backend, device) in devices() {
        let model = load("llama", &device);
        for chunk in [1, 2, 4, 8, 100] {
            let options = GenerationOptions::new(8).with_prefill_chunk(chunk);
            assert_eq!(tokens(&model, std::slice::from_ref(&row), &options), want, "{backend}, pieces of {chunk}");
            let options = GenerationOptions::new(6).with_prefill_chunk(chunk);
            assert_eq!(tokens(&model, &both, &options), want_of_both, "{backend}, two rows, pieces of {chunk}");
        }
        for _ in 0..2 {
            assert_eq!(
                tokens(&model, std::slice::from_ref(&row), &GenerationOptions::new(8)),
                want,
                "{backend}, again"
            );
        }
        let (options, mut texts) = (GenerationOptions::new(8), Vec::new());
        let mut turns = [&row, &both[0]]
            .map(|prompt| Decoding::new(&model, std::slice::from_ref(prompt), &options).expect("the prompt is fine"));
        while !turns.iter().all(Decoding::is_done) {
            for turn in &mut turns {
                turn.step().expect("it goes on");
            }
        }
        texts.extend(turns.iter().map(|turn| turn.tokens(0).to_vec()));
        assert_eq!(texts[0], want[0], "{backend}: in turns with another prompt");
        assert_eq!(texts[1][..6], want_of_both[0], "{backend}: in turns with another prompt");
    }
}

/// Learned positions, some with an offset, linear biases, windows that the sequences outgrow, and rotations.
#[test]
fn a_row_in_a_batch_gives_what_it_gives_alone() {
    for name in ["gpt2", "opt", "bloom", "mistral", "gemma2", "gemma3_text", "phi3", "falcon", "gpt_neox", "cohere"] {
        let model = load(name, &flex());
        let rows = ids(&golden(name).rows("input_ids"));
        let prompts = [rows[0][..1].to_vec(), rows[0].clone(), rows[1][2..].to_vec(), rows[1][..4].to_vec()];
        let together = tokens(&model, &prompts, &GenerationOptions::new(14).with_prefill_chunk(4));
        for (prompt, found) in prompts.iter().zip(&together) {
            let alone = tokens(&model, std::slice::from_ref(prompt), &GenerationOptions::new(14));
            assert_eq!(*found, alone[0], "{name}, {prompt:?}");
            // Without a cache.
            let prompt: Vec<i64> = prompt.iter().map(|id| i64::from(*id)).collect();
            let uncached = Greedy::new(&model, &[prompt], false).take(14);
            assert_eq!(*found, ids(&uncached)[0], "{name}");
        }
    }
}

/// A row that ends leaves the batch, and the others notice nothing.
#[test]
fn rows_end_one_by_one() {
    for (backend, device) in devices() {
        for name in ["llama", "mistral", "bloom"] {
            let model = load(name, &device);
            let rows = ids(&golden(name).rows("input_ids"));
            let prompts = [rows[0].clone(), rows[1][3..].to_vec(), rows[0][..5].to_vec()];
            let endless = tokens(&model, &prompts, &GenerationOptions::new(12));
            // Ends the middle row early, and others wherever they have the token.
            let stop = endless[1][2];
            let ended = generate(&model, &prompts, &GenerationOptions::new(12).with_stop_ids(vec![99, stop]));
            let mut lengths = Vec::new();
            for ((found, reason), endless) in ended.iter().zip(&endless) {
                let len = endless.iter().position(|token| *token == stop).map_or(12, |at| at + 1);
                assert_eq!(*found, endless[..len], "{backend}, {name}");
                let is_stopped = endless[..len].contains(&stop);
                assert_eq!(*reason, if is_stopped { StopReason::StopToken } else { StopReason::Length });
                lengths.push(len);
            }
            assert!(lengths.iter().any(|len| *len != lengths[1]), "{backend}, {name}: they end together");
        }
    }
}

/// A stop id may be one or a list, in a file that may be absent: <https://github.com/EricLBuehler/mistral.rs/issues/1490>,
/// <https://github.com/huggingface/candle/issues/2164>.
#[test]
fn stop_ids_are_read_from_the_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(checkpoint_folder("llama").join("model.safetensors"), folder.path().join("model.safetensors"))
        .expect("copied");
    let config = std::fs::read(checkpoint_folder("llama").join("config.json")).expect("read");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let stop_ids = |config_eos: Value, generation: Option<Value>| {
        let mut config = config.clone();
        config["eos_token_id"] = config_eos;
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        let path = folder.path().join("generation_config.json");
        match generation {
            Some(generation) => std::fs::write(path, generation.to_string()).expect("written"),
            None => drop(std::fs::remove_file(path)),
        }
        Checkpoint::open(folder.path()).and_then(|checkpoint| checkpoint.stop_ids())
    };
    for (config_eos, generation, want) in [
        (json!(2), None, vec![2]),
        (json!([2, 5]), None, vec![2, 5]),
        (json!(null), None, vec![]),
        (json!(2), Some(json!({"eos_token_id": [99, 29]})), vec![99, 29]),
        (json!(2), Some(json!({"eos_token_id": 29, "bos_token_id": null})), vec![29]),
        (json!(2), Some(json!({"eos_token_id": null})), vec![2]),
        (json!(null), Some(json!({})), vec![]),
        (json!(-1), None, vec![]),
    ] {
        let found = stop_ids(config_eos.clone(), generation.clone()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found, want, "{config_eos}, {generation:?}");
    }
    let error = stop_ids(json!(2), Some(json!({"eos_token_id": "two"}))).expect_err("no id").to_string();
    assert!(error.contains("generation_config.json") && error.contains("`eos_token_id`"), "{error}");

    let golden = golden("llama");
    let (row, greedy) = (ids(&golden.rows("input_ids")).remove(0), ids(&golden.rows("greedy")).remove(0));
    let options = GenerationOptions::new(8).with_stop_ids(vec![99, greedy[2]]);
    let found = generate(&load("llama", &flex()), &[row], &options);
    assert_eq!(found, [(greedy[..3].to_vec(), StopReason::StopToken)]);
}

/// Prompts that cannot be continued, and the end of learned positions: <https://github.com/karpathy/nanochat/pull/520>.
#[test]
fn contexts_end() {
    let prompt = |len: u32| (0..len).map(|at| 3 + at % 20).collect::<Vec<u32>>();
    for (backend, device) in devices() {
        for (name, limit) in [("gpt2", 32), ("opt", 30)] {
            let model = load(name, &device);
            let refused = message(&model, &[prompt(limit + 2)]);
            let [too_long, limit_text] = [limit + 2, limit].map(|len| len.to_string());
            assert!(refused.contains(&too_long) && refused.contains(&limit_text), "{backend}, {name}: {refused}");
            let rows = [prompt(limit - 3), prompt(limit), prompt(limit - 10)];
            let found = generate(&model, &rows, &GenerationOptions::new(7));
            let summary: Vec<(usize, StopReason)> = found.iter().map(|(tokens, stop)| (tokens.len(), *stop)).collect();
            let want = [(3, StopReason::Context), (0, StopReason::Context), (7, StopReason::Length)];
            assert_eq!(summary, want, "{backend}, {name}");
            let alone = generate(&model, &rows[2..], &GenerationOptions::new(7));
            assert_eq!(found[2], alone[0], "{backend}, {name}");
        }
    }
    // Rotary positions have no table that ends: 64 is what the model was trained for, and it goes on.
    let model = load("llama", &flex());
    let (row, want) = (golden("llama").rows("input_ids").remove(0), 61);
    let found = generate(&model, &ids(std::slice::from_ref(&row)), &GenerationOptions::new(want));
    assert_eq!(found[0].1, StopReason::Length);
    assert_eq!(ids(&Greedy::new(&model, &[row], true).take(want)), [found[0].0.clone()]);
    let refused = message(&model, &[prompt(65)]);
    assert!(refused.contains("65") && refused.contains("64"), "{refused}");
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let model = load("llama", &flex());
    let vocab_size = model.config().vocab_size() as u32;
    let refused = message(&model, &[vec![]]);
    assert!(refused.contains("the prompt is empty"), "{refused}");
    let refused = message(&model, &[vec![1], vec![]]);
    assert!(refused.contains("prompt 2 is empty"), "{refused}");
    let refused = message(&model, &[vec![1, vocab_size]]);
    assert!(refused.contains(&format!("token id {vocab_size} is out of range")), "{refused}");
    for (name, word) in [("bert", "encoder"), ("bert_bare", "encoder")] {
        let refused = message(&load(name, &flex()), &[vec![1, 2]]);
        assert!(refused.contains(word), "{refused}");
    }
    let options = GenerationOptions::new(4).with_stop_strings(vec!["a".into()]);
    let refused = Decoding::new(&model, &[vec![1]], &options).expect_err("ids have no text").to_string();
    assert!(refused.contains("stop strings"), "{refused}");
    assert!(generate(&model, &[], &GenerationOptions::new(4)).is_empty(), "no prompt is no work");
    let nothing = generate(&model, &[vec![1]], &GenerationOptions::new(0));
    assert_eq!(nothing, [(vec![], StopReason::Length)]);
}

/// Draws are on the host: a seed means the same tokens on every backend, and a row's draws do not depend on the others.
#[test]
fn a_seed_means_the_same_tokens_on_every_backend() {
    let rows = ids(&golden("llama").rows("input_ids"));
    let prompts = [rows[0].clone(), rows[1][4..].to_vec()];
    let sampling = Sampling::default().with_temperature(1.5).with_top_k(20).with_top_p(0.95);
    let options = |seed| GenerationOptions::new(16).with_sampling(sampling).with_seed(seed);
    let all: Vec<_> = devices();
    let found = |device: &Device, seed| tokens(&load("llama", device), &prompts, &options(seed));
    let want = found(&all[0].1, 7);
    for (backend, device) in &all {
        assert_eq!(found(device, 7), want, "{backend}");
    }
    assert_ne!(found(&all[0].1, 8), want, "another seed");
    assert_ne!(want, tokens(&load("llama", &all[0].1), &prompts, &GenerationOptions::new(16)), "greedy");
    let alone = tokens(&load("llama", &all[0].1), &prompts[..1], &options(7));
    assert_eq!(alone[0], want[0], "the first row alone");
    let other = tokens(&load("llama", &all[0].1), &[prompts[0].clone(), vec![1]], &options(7));
    assert_eq!(other[0], want[0], "the first row beside another");
}

#[test]
fn a_penalty_keeps_tokens_from_coming_again() {
    let model = load("llama", &flex());
    let prompt = ids(&golden("llama").rows("input_ids")).remove(0);
    let sampling = Sampling::greedy().with_repetition_penalty(1e6);
    let found =
        tokens(&model, std::slice::from_ref(&prompt), &GenerationOptions::new(12).with_sampling(sampling)).remove(0);
    let mut all = [prompt, found.clone()].concat();
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "{found:?}");
}

/// Penalised greedy tokens of transformers' `generate`.
#[test]
fn a_penalty_is_that_of_transformers() {
    let prompt = ids(&golden("llama").rows("input_ids")[..1]);
    let penalised =
        |penalty| GenerationOptions::new(12).with_sampling(Sampling::greedy().with_repetition_penalty(penalty));
    for (backend, device) in devices() {
        let model = load("llama", &device);
        for (penalty, want) in
            [(1.3, [21, 4, 20, 15, 4, 21, 4, 4, 21, 18, 4, 21]), (3.0, [21, 4, 0, 3, 25, 14, 26, 29, 13, 4, 20, 18])]
        {
            assert_eq!(tokens(&model, &prompt, &penalised(penalty)), [want], "{backend}, {penalty}");
        }
    }
}

/// The encoder reads the prompts, which are of different lengths; the tokens are those of transformers' `generate`, with a
/// penalty, as the tiny model repeats itself otherwise.
#[test]
fn a_decoder_with_an_encoder_begins_with_its_start_token() {
    let checkpoint = Checkpoint::open(checkpoint_folder("t5")).expect("it opens");
    assert_eq!(checkpoint.start_id().expect("the file is fine"), Some(0));
    let prompts = [vec![12, 6, 17, 21, 15, 24, 5, 3, 29, 10, 13], vec![13, 5, 34, 7]];
    let want = [[23, 9, 18, 10, 31, 13, 19, 1], [23, 9, 10, 15, 20, 3, 18, 7]];
    let options = GenerationOptions::new(8).with_sampling(Sampling::greedy().with_repetition_penalty(3.0));
    let started = options.clone().with_start_id(0);
    for (backend, device) in devices() {
        let model = load("t5", &device);
        assert_eq!(tokens(&model, &prompts, &started), want, "{backend}");
        for (prompt, want) in prompts.iter().zip(want) {
            assert_eq!(tokens(&model, std::slice::from_ref(prompt), &started), [want], "{backend}, alone");
        }
        // One row ends before the other and leaves.
        let ended = tokens(&model, &prompts, &started.clone().with_stop_ids(vec![15]));
        assert_eq!(ended, [want[0].to_vec(), want[1][..4].to_vec()], "{backend}");
    }
    let model = load("t5", &flex());
    for (options, word) in [(options.clone(), "no token is named"), (options.with_start_id(35), "token id 35")] {
        let refused = Decoding::new(&model, &prompts, &options).expect_err("it does not begin").to_string();
        assert!(refused.contains(word), "{refused}");
    }
}

/// Small decoders of every kind of position, with and without a window.
fn model(positions: usize, window: Option<usize>) -> Transformer {
    let attention = MultiHeadAttentionConfig::new(16, 4).with_n_kv_heads(2);
    let positions = match positions {
        0 => Positions::rotary(RotaryConfig::new(1e4)),
        1 => Positions::Learned(Default::default()),
        2 => Positions::Alibi(AlibiConfig::default()),
        _ => Positions::Sinusoidal,
    };
    let config = ModelConfig::new(ModelKind::Decoder, 2, 64, attention, FeedForwardConfig::new(16, 24))
        .with_embedding(EmbeddingConfig::new(20))
        .with_positions(positions)
        .with_layers(vec![LayerPattern { window, ..LayerPattern::default() }, LayerPattern::default()])
        .with_head(HeadConfig::new(false));
    randomised(config.init(&flex()), 6)
}

proptest! {
    #![proptest_config(cases(48))]

    /// Any split, any batch mix, any time of ending.
    #[test]
    fn any_split_and_any_batch_give_the_same_tokens(
        positions in 0usize..4,
        window in prop_oneof![Just(None), (1usize..6).prop_map(Some)],
        prompts in vec(vec(0u32..20, 1..9), 1..5),
        chunk in 1usize..10,
        stop in 0u32..20,
    ) {
        let model = model(positions, window);
        let options = GenerationOptions::new(10).with_stop_ids(vec![stop]);
        let together = generate(&model, &prompts, &options.clone().with_prefill_chunk(chunk));
        for (prompt, found) in prompts.iter().zip(together) {
            let alone = generate(&model, std::slice::from_ref(prompt), &options).remove(0);
            prop_assert_eq!(found, alone);
        }
    }
}
