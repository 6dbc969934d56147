//! From text to text: tokenizers, streams, stop strings.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::generation::{
    GeneratedText, GenerationOptions, Message, Prompt, Sampling, StopReason, TextGenerator, TextStream, encode_prompt,
};
use burnformer::head::HeadConfig;
use burnformer::model::{ModelConfig, ModelKind, Transformer};
use burnformer::positions::Positions;
use burnformer::tokenizer::{TokenizerParts, read_tokenizer};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::cases;
use crate::common::{fixtures, flex, randomised};

const TOKENIZERS: [(&str, &str); 2] = [("byte_level", "<|bos|>"), ("byte_fallback", "<s>")];

fn parts(name: &str, bos: &str) -> TokenizerParts {
    let tokenizer = read_tokenizer(fixtures().join("text").join(name)).unwrap_or_else(|error| panic!("{error}"));
    TokenizerParts { tokenizer, bos: Some(bos.into()), eos: None, stop_ids: Vec::new(), chat_template: None }
}

/// What a stream gives for each token, and at the end.
fn streamed(mut stream: TextStream, ids: &[u32]) -> Vec<String> {
    let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).expect("it decodes")).collect();
    pieces.push(stream.finish().expect("it decodes"));
    pieces
}

#[test]
fn tokens_are_those_of_python() {
    let path = fixtures().join("text/tokenized.json");
    let fixture: Value = serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("JSON");
    for (name, bos) in TOKENIZERS {
        let parts = parts(name, bos);
        for case in fixture[name].as_array().expect("a list") {
            let text = case["text"].as_str().expect("text");
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
            assert_eq!(parts.encode(text).expect("it encodes"), ids, "{name}: {text:?}");
            assert_eq!(parts.decode(&ids).expect("it decodes"), case["decoded"], "{name}: {text:?}");
        }
    }
}

/// An emoji whose bytes are spread over tokens comes out whole: <https://github.com/huggingface/tokenizers/issues/1141>,
/// <https://github.com/antonellof/ferrox/issues/124>.
#[test]
fn streams_give_whole_characters() {
    for (name, bos) in TOKENIZERS {
        let parts = parts(name, bos);
        for text in ["é🙂", "naïve 👩‍🚀 says: 你好!\n\n two  spaces", " leading", "One, two"] {
            let ids = parts.encode(text).expect("it encodes");
            let pieces = streamed(TextStream::new(&parts.tokenizer), &ids);
            assert_eq!(pieces.concat(), parts.decode(&ids).expect("it decodes"), "{name}: {text:?}");
            assert!(!pieces.concat().contains('\u{fffd}'), "{name}: {pieces:?}");
            assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 1 || text == "é🙂", "{name}: {pieces:?}");

            // Begun in the middle, whatever the space there is, unless in the middle of a character.
            for middle in 1..ids.len() {
                let before = parts.decode(&ids[..middle]).expect("it decodes");
                let Some(after) = text.strip_prefix(&before) else { continue };
                let stream = TextStream::after(&parts.tokenizer, &ids[..middle]).expect("it decodes");
                assert_eq!(streamed(stream, &ids[middle..]).concat(), after, "{name}: {text:?} after {before:?}");
            }
        }
        // Half a character at the end is not kept back for ever.
        let mut ids = parts.encode("a🙂").expect("it encodes");
        ids.pop();
        let pieces = streamed(TextStream::new(&parts.tokenizer), &ids);
        assert_eq!(pieces.concat(), parts.decode(&ids).expect("it decodes"), "{name}");
        assert!(pieces.last().is_some_and(|last| last.contains('\u{fffd}')), "{name}: {pieces:?}");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Also of tokens that make no sense together.
    #[test]
    fn joined_pieces_are_the_whole(ids in vec(prop_oneof![0u32..300, 120u32..260], 0..14)) {
        for (name, bos) in TOKENIZERS {
            let parts = parts(name, bos);
            let whole = parts.decode(&ids).expect("it decodes");
            let pieces = streamed(TextStream::new(&parts.tokenizer), &ids);
            prop_assert_eq!(pieces.concat(), whole, "{}: {:?}", name, pieces);
        }
    }
}

/// A text that begins with the token that begins texts: <https://github.com/vllm-project/vllm/pull/27515>.
#[test]
fn the_first_token_is_added_once() {
    for (name, bos) in TOKENIZERS {
        let mut parts = parts(name, bos);
        let id = parts.tokenizer.token_to_id(bos).expect("it has one");
        let ids = parts.encode("One").expect("it encodes");
        assert_eq!(ids.iter().filter(|found| **found == id).count(), 1, "{name}");
        let count = |ids: &[u32]| ids.iter().filter(|found| **found == id).count();
        let given = parts.encode(&format!("{bos}One")).expect("it encodes");
        assert_eq!((count(&given), given[0]), (1, id), "{name}: {given:?}");

        parts.chat_template = Some("{{ bos_token }}{{ messages[0].content }}".into());
        let chat = encode_prompt(&parts, &Prompt::Chat(vec![Message::user("One")])).expect("it encodes").ids;
        assert_eq!(chat, given, "{name}: a template that writes it");
        parts.chat_template = Some("{{ messages[0].content }}".into());
        let chat = encode_prompt(&parts, &Prompt::Chat(vec![Message::user("One")])).expect("it encodes").ids;
        assert_eq!(count(&chat), 0, "{name}: a template that does not");
        parts.chat_template = None;
        let error = encode_prompt(&parts, &Prompt::Chat(vec![Message::user("One")])).expect_err("no template");
        assert!(error.to_string().contains("no chat template"), "{error}");
    }
}

fn model(vocab_size: usize) -> Transformer {
    let attention = MultiHeadAttentionConfig::new(16, 4).with_n_kv_heads(2);
    let config = ModelConfig::new(ModelKind::Decoder, 2, 64, attention, FeedForwardConfig::new(16, 24))
        .with_embedding(EmbeddingConfig::new(vocab_size))
        .with_positions(Positions::rotary(RotaryConfig::new(1e4)))
        .with_head(HeadConfig::new(false));
    randomised(config.init(&flex()), 6)
}

/// The texts, and that what was streamed is the same.
fn generate(generator: &TextGenerator, prompts: &[&str], options: &GenerationOptions) -> Vec<GeneratedText> {
    let prompts: Vec<_> =
        prompts.iter().map(|text| generator.encode(&Prompt::from(*text)).expect("it encodes")).collect();
    let mut streamed = vec![String::new(); prompts.len()];
    let generated = generator.generate(&prompts, options, &mut |row, piece| {
        streamed[row] += piece;
        ControlFlow::Continue(())
    });
    let outputs = generated.unwrap_or_else(|error| panic!("{error}")).outputs;
    for (output, streamed) in outputs.iter().zip(streamed) {
        assert_eq!(output.text, streamed);
    }
    outputs
}

fn hot(seed: u64) -> GenerationOptions {
    GenerationOptions::new(24).with_sampling(Sampling::default().with_temperature(1.0)).with_seed(seed)
}

#[test]
fn texts_are_those_of_their_tokens() {
    for (name, bos) in TOKENIZERS {
        let parts = parts(name, bos);
        let model = model(parts.tokenizer.get_vocab_size(true));
        let generator = TextGenerator::new(&model, &parts).expect("they fit");
        let prompts = ["The capital", "One, two, three; the sum of one and two"];
        for seed in 0..4 {
            for (prompt, output) in prompts.iter().zip(generate(&generator, &prompts, &hot(seed))) {
                let prompt = parts.encode(prompt).expect("it encodes");
                assert_eq!(output.prompt_tokens, prompt.len());
                assert_eq!((output.tokens.len(), output.stop_reason), (24, StopReason::Length));
                let whole = parts.decode(&[prompt.clone(), output.tokens].concat()).expect("it decodes");
                assert_eq!(whole, parts.decode(&prompt).expect("it decodes") + &output.text, "{name}");
            }
        }
    }
}

/// Nothing of a stop string is given, wherever tokens divide it, and a row that has ended leaves the others alone.
#[test]
fn stop_strings_end_a_text_before_them() {
    for (name, bos) in TOKENIZERS {
        let parts = parts(name, bos);
        let model = model(parts.tokenizer.get_vocab_size(true));
        let generator = TextGenerator::new(&model, &parts).expect("they fit");
        let prompts = ["The capital", "One"];
        for seed in 0..4 {
            let free = generate(&generator, &prompts, &hot(seed));
            let characters: Vec<char> = free[0].text.chars().collect();
            for length in [1, 2, 5] {
                let middle = characters.len() / 2;
                assert!(middle + length <= characters.len(), "{name}: {}", free[0].text);
                let stop: String = characters[middle..middle + length].iter().collect();
                let ended = generate(
                    &generator,
                    &prompts,
                    &hot(seed).with_stop_strings(vec!["not there".into(), stop.clone()]),
                );
                for (free, ended) in free.iter().zip(&ended) {
                    let want = free.text.find(&stop).map_or(free.text.as_str(), |at| &free.text[..at]);
                    assert_eq!(ended.text, want, "{name}: {stop:?}");
                    let is_ended = free.text.contains(&stop);
                    let reason = if is_ended { StopReason::StopString } else { StopReason::Length };
                    assert_eq!(ended.stop_reason, reason, "{name}: {stop:?}");
                    assert!(free.tokens.starts_with(&ended.tokens), "{name}: {stop:?}");
                }
            }
        }
    }
}

/// A token that ends a text is among the tokens and not in the text, special or not.
#[test]
fn stop_tokens_have_no_text() {
    let (name, bos) = TOKENIZERS[0];
    let parts = parts(name, bos);
    let model = model(parts.tokenizer.get_vocab_size(true));
    let generator = TextGenerator::new(&model, &parts).expect("they fit");
    let prompt = parts.encode("The").expect("it encodes");
    for seed in 0..4 {
        let free = generate(&generator, &["The"], &hot(seed)).remove(0);
        let at = free.tokens.iter().position(|token| *token == free.tokens[9]).expect("it is there");
        let ended = generate(&generator, &["The"], &hot(seed).with_stop_ids(vec![free.tokens[9]])).remove(0);
        assert_eq!(ended.tokens, free.tokens[..=at]);
        let whole = parts.decode(&[&prompt[..], &free.tokens[..at]].concat()).expect("it decodes");
        assert_eq!("The".to_owned() + &ended.text, whole);
        assert_eq!(ended.stop_reason, StopReason::StopToken);
    }
}

#[test]
fn a_caller_may_leave() {
    let (name, bos) = TOKENIZERS[0];
    let parts = parts(name, bos);
    let model = model(parts.tokenizer.get_vocab_size(true));
    let generator = TextGenerator::new(&model, &parts).expect("they fit");
    let prompt = generator.encode(&Prompt::from("One, two")).expect("it encodes");
    let mut pieces = 0;
    let generated = generator.generate(&[prompt.clone(), prompt], &hot(1), &mut |_, _| {
        pieces += 1;
        if pieces == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let outputs = generated.expect("that is no error").outputs;
    assert_eq!(pieces, 3);
    assert!(outputs.iter().all(|output| output.stop_reason == StopReason::Cancelled && output.tokens.len() < 24));
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let (name, bos) = TOKENIZERS[0];
    let parts = parts(name, bos);
    let refused = TextGenerator::new(&model(100), &parts).expect_err("too small a vocabulary").to_string();
    let tokens = parts.tokenizer.get_vocab_size(false).to_string();
    assert!(refused.contains(&tokens) && refused.contains("100"), "{refused}");
}

/// What the drawn texts of these tests hold, so that they are no empty exercise.
#[test]
fn drawn_texts_have_characters_of_several_tokens() {
    let (name, bos) = TOKENIZERS[0];
    let parts = parts(name, bos);
    let model = model(parts.tokenizer.get_vocab_size(true));
    let generator = TextGenerator::new(&model, &parts).expect("they fit");
    let outputs: Vec<GeneratedText> = (0..4).map(|seed| generate(&generator, &["One"], &hot(seed)).remove(0)).collect();
    let characters: BTreeSet<char> = outputs.iter().flat_map(|output| output.text.chars()).collect();
    assert!(characters.len() > 10, "{characters:?}");
    assert!(characters.iter().any(|c| !c.is_ascii()), "{characters:?}");
}
