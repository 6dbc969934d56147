//! Broken files: each is refused with the name of the key or tensor, without a panic and without reserving memory by a
//! number that the file gives.

use burnformer::pretrained::Checkpoint;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::common::flex;
use crate::handmade::{Handmade, Q4_0, Value, assert_says, f32, list, load, message, on_disk, text, texts, u32};

#[test]
fn the_handmade_file_is_whole() {
    let model = Handmade::llama().load().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((model.config().n_layers, model.config().vocab_size()), (1, 5));
    let older = Handmade { version: 2, ..Handmade::llama() };
    assert!(older.load().is_ok());
}

#[test]
fn other_files_are_told_apart() {
    let of = |edit: fn(&mut Handmade)| {
        let mut file = Handmade::llama();
        edit(&mut file);
        file.message()
    };
    assert_says(&of(|file| file.magic = *b"GGML"), &["does not begin with `GGUF`"]);
    assert_says(&of(|file| file.version = 1), &["version 1; versions 2 and 3 are read"]);
    assert_says(&of(|file| file.version = 4), &["version 4; versions 2 and 3 are read"]);
    assert_says(&of(|file| file.version = 3_u32.swap_bytes()), &["big-endian"]);
    assert_says(&message(b""), &["is empty"]);
    assert_says(&message(b"version https://git-lfs.github.com/spec/v1\n"), &["Git LFS pointer"]);
    assert_says(&message(b"<!DOCTYPE html><html></html>"), &["HTML"]);
}

#[test]
fn absurd_counts_are_refused() {
    let mut file = Handmade::llama();
    file.n_keys = Some(u64::MAX);
    assert_says(&file.message(), &["18446744073709551615 keys", "more than fit"]);
    let mut file = Handmade::llama();
    file.n_tensors = Some(1 << 40);
    assert_says(&file.message(), &["1099511627776 tensors", "more than fit"]);
    let long = Value(8, [(1_u64 << 62).to_le_bytes().as_slice(), b"llama"].concat());
    assert_says(
        &Handmade::llama().with("general.name", long).message(),
        &["`general.name`", "4611686018427387904 bytes"],
    );
    let long = Value(9, [4_u32.to_le_bytes().as_slice(), &u64::MAX.to_le_bytes()].concat());
    assert_says(&Handmade::llama().with("tokens", long).message(), &["`tokens`", "18446744073709551615 items"]);
    let long = Value(9, [8_u32.to_le_bytes().as_slice(), &(1_u64 << 61).to_le_bytes()].concat());
    assert_says(&Handmade::llama().with("tokens", long).message(), &["`tokens`", "2305843009213693952 items"]);
}

#[test]
fn lists_in_lists_end() {
    let nested = (0..3).fold(list(&[u32(1)]), |inner, _| list(&[inner]));
    assert!(Handmade::llama().with("general.nested", nested.clone()).load().is_ok());
    assert_says(&Handmade::llama().with("general.nested", list(&[nested])).message(), &["`general.nested`", "deep"]);
    // Twelve bytes per level are all that it takes.
    let level = [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()].concat();
    let deep = Value(9, level.repeat(100_000));
    assert_says(&Handmade::llama().with("general.nested", deep).message(), &["`general.nested`", "deep"]);
}

#[test]
fn values_have_types() {
    assert_says(&Handmade::llama().with("x", Value(13, vec![0; 8])).message(), &["unknown type 13", "`x`"]);
    assert_says(&Handmade::llama().with("x", Value(7, vec![2])).message(), &["`x` must be 0 or 1"]);
    let broken = Value(8, [1_u64.to_le_bytes().as_slice(), &[0xFF]].concat());
    assert_says(
        &Handmade::llama().with("general.architecture", broken).message(),
        &["`general.architecture`", "a text"],
    );
}

#[test]
fn the_alignment_is_a_power_of_two() {
    for wrong in [u32(0), u32(24), text("32"), Value(11, (-32_i64).to_le_bytes().into())] {
        assert_says(
            &Handmade::llama().with("general.alignment", wrong).message(),
            &["`general.alignment`", "power of two"],
        );
    }
    // The shortest such file: nothing else is in it.
    let short = Handmade::empty().with("general.alignment", u32(0));
    assert_eq!(short.bytes().len(), 57);
    assert_says(&short.message(), &["`general.alignment` must be a power of two, got 0"]);
    let finer = Handmade::llama().with("general.alignment", u32(8));
    let (header, data) = (finer.header(), &finer.data);
    let mut bytes = header.clone();
    bytes.resize(header.len().next_multiple_of(8), 0);
    bytes.extend(data);
    assert!(load(&bytes).is_ok());
}

#[test]
fn shapes_fit_into_memory() {
    let shaped = |dimensions: &[u64]| {
        Handmade::llama().entry("blk.0.ffn_up.weight", |entry| entry.dimensions = dimensions.to_vec()).message()
    };
    let name = "tensor `blk.0.ffn_up.weight`";
    assert_says(&shaped(&[1 << 40, 1 << 40]), &[name, "[1099511627776, 1099511627776]", "larger than any memory"]);
    assert_says(&shaped(&[1 << 62]), &[name, "larger than any memory"]);
    assert_says(&shaped(&[1 << 31, 1 << 31]), &[name]);
    assert_says(&shaped(&[2, 2, 2, 2, 2]), &[name, "5 dimensions; at most 4"]);
    assert_says(&shaped(&[7, 6]), &["layers.0", "[6, 7]", "[6, 8]"]);
    assert_says(&shaped(&[8, 6, 1]), &["[1, 6, 8]"]);
    let block = Handmade::llama().entry("blk.0.ffn_up.weight", |entry| entry.kind = Q4_0);
    assert_says(&block.message(), &[name, "Q4_0", "rows of 8, no multiple of 32"]);
}

#[test]
fn types_are_named() {
    let typed = |kind| Handmade::llama().entry("blk.0.attn_v.weight", |entry| entry.kind = kind).message();
    assert_says(&typed(10), &["tensor `blk.0.attn_v.weight`", "Q2_K", "not supported; supported are F32", "Q6_K"]);
    assert_says(&typed(26), &["tensor `blk.0.attn_v.weight`", "I32"]);
    assert_says(&typed(1000), &["tensor `blk.0.attn_v.weight`", "unknown type 1000"]);
}

#[test]
fn tensors_have_places_of_their_own() {
    let name = "blk.0.attn_k.weight";
    let at = |offset| Handmade::llama().entry(name, |entry| entry.offset = offset).message();
    assert_says(&at(1 << 20), &["`blk.0.attn_k.weight`", "behind the file", "cut off?"]);
    assert_says(&at(u64::MAX - 31), &["`blk.0.attn_k.weight`", "behind the file"]);
    assert_says(&at(4), &["`blk.0.attn_k.weight`", "at 4, which is no multiple of 32"]);
    assert_says(&at(0), &["`token_embd.weight`", "`blk.0.attn_k.weight`", "same place"]);
    let inside = Handmade::llama().entry(name, |entry| entry.offset = 32).message();
    assert_says(&inside, &["same place"]);
}

#[test]
fn names_are_there_once() {
    let mut file = Handmade::llama();
    file.keys.push(("llama.block_count".to_owned(), u32(2)));
    assert_says(&file.message(), &["the key `llama.block_count` twice"]);
    let mut file = Handmade::llama().with_tensor("extra", &[1]);
    file.entries.last_mut().expect("a tensor").name = "output_norm.weight".to_owned();
    assert_says(&file.message(), &["the tensor `output_norm.weight` twice"]);
}

#[test]
fn required_keys_are_named_together() {
    let file = Handmade::llama().without("llama.block_count").without("llama.attention.layer_norm_rms_epsilon");
    let parts = ["`llama.block_count` is missing", "`llama.attention.layer_norm_rms_epsilon` is missing"];
    assert_says(&file.message(), &parts);
    assert_says(&Handmade::llama().without("general.architecture").message(), &["`general.architecture` is missing"]);
    let file = Handmade::llama().with("general.architecture", u32(3));
    assert_says(&file.message(), &["`general.architecture` must be a text in UTF-8, got 3"]);
    let file = Handmade::llama().with("general.architecture", text("lama"));
    assert_says(&file.message(), &["`lama` is not supported, did you mean `llama`?"]);
    let file = Handmade::llama().with("general.architecture", text("whisper"));
    assert_says(&file.message(), &["`whisper` is not supported", "gpt2"]);
}

#[test]
fn keys_have_their_types() {
    let file = Handmade::llama().with("llama.context_length", text("many")).with("llama.block_count", f32(1.0));
    let parts =
        ["`llama.context_length` must be a whole number", "got a text", "`llama.block_count` must be", "got 1.0"];
    assert_says(&file.message(), &parts);
    let with = |key: &str, value| Handmade::llama().with(key, value).message();
    assert_says(
        &with("llama.block_count", Value(5, (-1_i32).to_le_bytes().into())),
        &["`llama.block_count`", "got -1"],
    );
    assert_says(
        &with("llama.embedding_length", Value(10, u64::MAX.to_le_bytes().into())),
        &["`llama.embedding_length`"],
    );
    assert_says(
        &with("llama.rope.freq_base", list(&[f32(1.0)])),
        &["`llama.rope.freq_base` must be a number, got a list of 1"],
    );
    assert_says(&with("llama.rope.freq_base", f32(f32::NAN)), &["`llama.rope.freq_base`", "NaN"]);
    assert_says(&with("llama.attention.head_count_kv", list(&[u32(1)])), &["`llama.attention.head_count_kv`"]);
    assert_says(&with("llama.block_count", u32(1_000_000)), &["num_hidden_layers", "1000000"]);
    assert_says(&with("llama.attention.head_count", u32(0)), &["heads"]);
}

#[test]
fn tensors_fit_the_keys() {
    let file = Handmade::llama().with("llama.attention.head_count_kv", u32(3));
    assert_says(&file.message(), &["`blk.0.attn_k.weight` has 4 rows", "3 heads of keys"]);
    let mut file = Handmade::llama();
    file.entries.retain(|entry| entry.name != "blk.0.attn_v.weight");
    assert_says(&file.message(), &["`model.layers.0.self_attn.v_proj.weight` in the file"]);
    let mut file = Handmade::llama();
    file.entries.retain(|entry| entry.name != "token_embd.weight");
    assert_says(&file.message(), &["`token_embd.weight` is missing"]);
    let file = Handmade::llama().with_tensor("blk.0.attn_q.scale", &[1]);
    assert_says(&file.message(), &["tensor `blk.0.attn_q.scale` is not known in files of architecture llama"]);
    let file = Handmade::llama().with_tensor("blk.00.attn_q.bias", &[8]);
    assert_says(&file.message(), &["tensor `blk.00.attn_q.bias` is not known"]);
    let tokens = texts(&["a", "b", "c", "d", "e", "f"]);
    let file = Handmade::llama().with("tokenizer.ggml.tokens", tokens);
    assert_says(&file.message(), &["`tokenizer.ggml.tokens` has 6 tokens, and `token_embd.weight` has 5"]);
}

#[test]
fn a_cut_off_file_says_so_wherever_it_ends() {
    let bytes = Handmade::llama().bytes();
    for end in 1..bytes.len() {
        let message = message(&bytes[..end]);
        assert!(
            ["cut off?", "does not begin with", "more than fit", "bytes are left"]
                .iter()
                .any(|part| message.contains(part)),
            "{end}: {message}"
        );
    }
}

#[test]
#[cfg(feature = "tokenizer")]
fn a_broken_tokenizer_is_named_and_harms_no_weights() {
    let message = |file: Handmade| {
        let (_folder, path) = on_disk(&file.bytes());
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
        checkpoint.tokenizer().expect_err("a broken tokenizer").to_string()
    };
    let with = |key: &str, value| message(Handmade::llama().with(key, value));
    assert_says(&with("tokenizer.ggml.model", text("bert")), &["`tokenizer.ggml.model` `bert`", "gpt2 and llama"]);
    assert_says(&with("tokenizer.ggml.pre", text("unheard-of")), &["`tokenizer.ggml.pre` `unheard-of`", "qwen2"]);
    assert_says(&with("tokenizer.ggml.merges", texts(&["ab"])), &["`tokenizer.ggml.merges`", "pairs"]);
    assert_says(
        &with("tokenizer.ggml.merges", texts(&["a c"])),
        &["`tokenizer.ggml.merges` do not go with the tokens"],
    );
    assert_says(&with("tokenizer.ggml.token_type", list(&[u32(1)])), &["`tokenizer.ggml.token_type` must hold 4"]);
    assert_says(&with("tokenizer.ggml.eos_token_id", u32(4)), &["`tokenizer.ggml.eos_token_id` = 4", "4 tokens"]);
    assert_says(&with("tokenizer.ggml.add_bos_token", u32(1)), &["`tokenizer.ggml.add_bos_token` must be yes or no"]);
    let unmerged = Handmade::llama().without("tokenizer.ggml.merges");
    assert_says(&message(unmerged.clone()), &["`tokenizer.ggml.merges` is missing"]);
    let pieces = unmerged.with("tokenizer.ggml.model", text("llama"));
    assert_says(&message(pieces), &["`tokenizer.ggml.scores` is missing"]);
    let none = Handmade::llama().without("tokenizer.ggml.model");
    let (_folder, path) = on_disk(&none.bytes());
    assert!(Checkpoint::open(path).expect("a model").tokenizer().expect("no error").is_none());
}

/// Opens, sketches and loads; whatever comes out is fine as long as something comes out.
fn poke(bytes: &[u8]) {
    let (_folder, path) = on_disk(bytes);
    if let Ok(checkpoint) = Checkpoint::open(&path) {
        let _ = checkpoint.report(&flex());
        #[cfg(feature = "tokenizer")]
        let _ = checkpoint.tokenizer();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        rng_seed: RngSeed::Fixed(55),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Bytes are changed in the header, cut off, or both.
    #[test]
    fn damage_of_any_kind_is_survived(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let file = Handmade::llama();
        let (mut bytes, header) = (file.bytes(), file.header().len());
        for (place, value) in changes {
            bytes[place.index(header)] = value;
        }
        bytes.truncate(end.map_or(bytes.len(), |end| end.index(bytes.len())));
        poke(&bytes);
    }
}
