//! Scores equal those computed from the attentions that transformers returns.

use burnformer::head_roles::{HeadInput, RepeatedTokens, all_heads, attention_patterns, head_scores};
use burnformer::model::{ForwardOptions, ModelInput};
use serde_json::Value;

use super::{as_json, expected, id_of, input, numbers};
use crate::common::{assert_apart, assert_close, devices, flex, load, values};

/// Means of weights, whose rounding is that of a whole tiny model in 32 bits (1e-5 of its largest logit), and distances up
/// to 10 tokens. The fixture has seven digits and was computed in 64 bits.
const SCORE: f64 = 1e-5;

#[test]
fn scores_equal_those_of_transformers() {
    for name in ["gpt2", "llama", "gemma2", "bert", "t5"] {
        let fixture = expected(name);
        let want = fixture["heads"].as_array().expect("a list");
        for (backend, device) in devices() {
            let found = head_scores(&load(name, &device), &input(&fixture)).unwrap_or_else(|error| panic!("{error}"));
            let ids: Vec<_> = found.iter().map(|scores| scores.id()).collect();
            assert_eq!(ids, want.iter().map(id_of).collect::<Vec<_>>(), "{backend}: {name}");
            let found = as_json(&found);
            assert_close(&format!("{backend}: {name}"), &numbers(&found), &numbers(want), SCORE);
        }
    }
}

#[test]
fn the_text_the_repeated_tokens_and_the_source_count() {
    let fixture = expected("t5");
    let model = load("t5", &flex());
    let scores = |input: &HeadInput| head_scores(&model, input).unwrap_or_else(|error| panic!("{error}"));
    let numbers_of = |input: &HeadInput| numbers(&as_json(&scores(input)));
    let base = numbers_of(&input(&fixture));
    let reversed: Vec<i64> = input(&fixture).tokens.into_iter().rev().collect();
    assert_apart("source", &numbers_of(&input(&fixture).with_source(Some(reversed.clone()))), &base, 100.0 * SCORE);
    let text = HeadInput { tokens: reversed, source: Some(input(&fixture).tokens), ..input(&fixture) };
    assert_apart("text", &numbers_of(&text), &base, 100.0 * SCORE);
    let repeated = RepeatedTokens::random(Vec::new(), 5, 35, 3);
    assert_apart("repeated", &numbers_of(&input(&fixture).with_repeated(Some(repeated))), &base, 100.0 * SCORE);
    let without = scores(&input(&fixture).with_repeated(None));
    assert!(without.iter().all(|head| head.induction.is_none() && head.duplicate_token.is_none()));
}

#[test]
fn patterns_are_the_weights_that_a_forward_returns() {
    let fixture = expected("llama");
    for (backend, device) in devices() {
        let model = load("llama", &device);
        let tokens = super::ids(&fixture["ids"]);
        let options = ForwardOptions { weights: true, ..ForwardOptions::default() };
        let output = model.forward(&ModelInput::tokens(std::slice::from_ref(&tokens)), None, options);
        let weights = output.unwrap_or_else(|error| panic!("{error}")).weights;
        assert_eq!(weights.len(), 2, "{backend}: one per layer");
        let want: Vec<f64> = weights.into_iter().flat_map(values).collect();
        let heads = all_heads(model.config());
        let patterns = attention_patterns(&model, &HeadInput::new(tokens), &heads).unwrap_or_else(|e| panic!("{e}"));
        let rows = patterns.iter().flat_map(|pattern| (0..pattern.query_len()).flat_map(|query| pattern.row(query)));
        assert_eq!(rows.copied().collect::<Vec<f64>>(), want, "{backend}");
        // In the order in which they were asked for, one of them twice.
        let chosen = [heads[7], heads[2], heads[7]];
        let some = attention_patterns(&model, &HeadInput::new(super::ids(&fixture["ids"])), &chosen);
        let some = some.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(some, [patterns[7].clone(), patterns[2].clone(), patterns[7].clone()], "{backend}");
    }
}

#[test]
fn what_cannot_be_scored_is_said() {
    let fault = |name: &str, tokens: Vec<i64>| {
        let found = head_scores(&load(name, &flex()), &HeadInput::new(tokens));
        found.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(fault("llama", vec![3, 4]).contains("at least 3 tokens, the text has 2"));
    assert!(fault("llama", vec![3, 4, 35]).contains("token id 35 is out of range"));
    assert!(fault("gpt2", vec![3; 33]).contains("learned positions end at 32"));
    let heads = [id_of(&serde_json::json!({"part": "decoder", "layer": 2, "head": 0}))];
    let fault = attention_patterns(&load("llama", &flex()), &HeadInput::new(vec![3, 4, 5]), &heads);
    let fault = fault.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(fault.contains("no head decoder.2.0") && fault.contains("0 to 1") && fault.contains("0 to 5"), "{fault}");
    let encoder = [id_of(&serde_json::json!({"part": "encoder", "layer": 0, "head": 0}))];
    let fault = attention_patterns(&load("llama", &flex()), &HeadInput::new(vec![3, 4, 5]), &encoder);
    assert!(fault.err().is_some_and(|error| error.to_string().contains("no encoder attention")));
}

#[test]
fn a_json_of_scores_has_the_documented_keys() {
    let scores = head_scores(&load("llama", &flex()), &input(&expected("llama"))).unwrap_or_else(|e| panic!("{e}"));
    let Value::Object(head) = as_json(&scores).remove(0) else { panic!("an object") };
    let keys =
        "part layer head previous_token next_token first_token induction duplicate_token self entropy distance role";
    assert_eq!(head.keys().map(String::as_str).collect::<Vec<_>>(), keys.split(' ').collect::<Vec<_>>());
}
