//! `burnformer heads`.

use super::*;
use crate::common::fixtures;

const TOKENS: &str = "5,11,30,7,11,3,19,22,5,11";

/// What `tests/fixtures/heads.py` has computed of the heads of a model on [`TOKENS`].
fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixtures().join("heads.json")).expect("the fixture is there");
    let mut all: Value = serde_json::from_str(&text).expect("JSON");
    all[name].take()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn llama() -> String {
    text(&checkpoint("llama")).to_owned()
}

fn bert_with_words() -> String {
    text(&fixtures().join("tasks/bert_words")).to_owned()
}

#[test]
fn scores_and_ablations_are_those_of_transformers_on_every_backend() {
    let want = expected("llama");
    for backend in backends() {
        let found = json(&["heads", &llama(), "--tokens", TOKENS, "--ablate", "--backend", &backend]);
        assert_eq!((&found["backend"], &found["tokens"]), (&Value::from(backend.clone()), &10.into()));
        assert!((found["loss"].as_f64().expect("a loss") - want["loss"].as_f64().expect("a loss")).abs() < 2e-5);
        assert_eq!(list(&found["heads"]).len(), 12);
        for (found, want) in list(&found["heads"]).iter().zip(list(&want["heads"])) {
            assert_eq!((&found["layer"], &found["head"]), (&want["layer"], &want["head"]));
            for key in ["previous_token", "first_token", "self", "entropy", "distance", "ablation"] {
                let [found, want] = [found, want].map(|head| head[key].as_f64().expect("a number"));
                assert!((found - want).abs() < 2e-5, "{backend}: {key}: {found}, not {want}");
            }
            // These are of other random tokens.
            assert!(found["induction"].is_f64() && found["next_token"].is_null() && found["role"].is_string());
        }
    }
}

#[test]
fn chosen_heads_are_ablated() {
    let want = expected("llama");
    let found = json(&["heads", &llama(), "--tokens", TOKENS, "--ablate", "1.4,0.2"]);
    for (found, want) in list(&found["heads"]).iter().zip(list(&want["heads"])) {
        let is_chosen = [(1, 4), (0, 2)].iter().any(|(layer, head)| found["layer"] == *layer && found["head"] == *head);
        assert_eq!(found["ablation"].is_f64(), is_chosen, "{found}");
        if is_chosen {
            let [found, want] = [found, want].map(|head| head["ablation"].as_f64().expect("a number"));
            assert!((found - want).abs() < 2e-5, "{found}, not {want}");
        }
    }
    let without = json(&["heads", &llama(), "--tokens", TOKENS]);
    assert!(without["loss"].is_null() && list(&without["heads"]).iter().all(|head| head["ablation"].is_null()));
}

#[test]
fn seeds_draw_the_repeated_tokens() {
    let induction = |seed: &str| -> Vec<Value> {
        let found = json(&["heads", &llama(), "--tokens", TOKENS, "--seed", seed]);
        list(&found["heads"]).iter().map(|head| head["induction"].clone()).collect()
    };
    assert_eq!(induction("1"), induction("1"));
    assert_ne!(induction("1"), induction("2"));
}

#[test]
fn encoders_and_models_of_two_stacks_have_their_parts() {
    let bert = json(&["heads", &bert_with_words(), "--text", "paris is the city of france."]);
    for head in list(&bert["heads"]) {
        assert_eq!(head["part"], "encoder");
        assert!(head["induction"].is_null() && head["next_token"].is_f64(), "{head}");
    }
    let t5 = json(&["heads", text(&checkpoint("t5")), "--tokens", TOKENS, "--ablate", "cross.1.3,encoder.0.0,1.1"]);
    let count = |part: &str| list(&t5["heads"]).iter().filter(|head| head["part"] == part).count();
    assert_eq!(["encoder", "decoder", "cross"].map(count), [8, 8, 8]);
    let ablated = list(&t5["heads"]).iter().filter(|head| head["ablation"].is_f64());
    let ablated: Vec<String> =
        ablated.map(|head| format!("{}.{}.{}", head["part"], head["layer"], head["head"])).collect();
    assert_eq!(ablated, ["\"encoder\".0.0", "\"decoder\".1.1", "\"cross\".1.3"]);
    // The decoder reads its first token before the text.
    assert_eq!(t5["tokens"], 11);
}

#[test]
fn people_see_a_map_and_the_strongest_heads() {
    let shown = run(&["heads", text(&checkpoint("t5")), "--tokens", TOKENS, "--ablate", "0.1"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    for part in ["24 heads on 11 tokens", "encoder: layer  head 0 1 2 3", "cross: layer", "loss ", "without", "mixed"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let (_folder, path) = config(&[]);
    let random = run(&["heads", &path, "--seq", "9"]);
    assert!(random.stderr.contains("weights: random, seed 0"), "{}", random.stderr);
    assert!(random.stdout.contains("8 heads on 9 tokens"), "{}", random.stdout);
    assert_eq!(run(&["heads", &path, "--seq", "9", "--quiet"]).stderr, "");
}

#[test]
fn what_cannot_be_done_is_said() {
    let (llama, bert) = (llama(), bert_with_words());
    error(&["heads", &llama], &["--text", "--tokens"]);
    error(&["heads", &llama, "--text", "a"], &["needs a tokenizer"]);
    error(&["heads", &llama, "--text", "a", "--tokens", "1"], &["--text", "cannot be used with"]);
    error(&["heads", &llama, "--tokens", "1,2"], &["at least 3 tokens"]);
    error(&["heads", &llama, "--tokens", "1,2,99"], &["token id 99"]);
    error(&["heads", &llama, "--tokens", TOKENS, "--ablate", "2.0"], &["no head decoder.2.0", "0 to 1", "0 to 5"]);
    error(&["heads", &llama, "--tokens", TOKENS, "--ablate", "x"], &["`x` names no head", "LAYER.HEAD"]);
    error(&["heads", &llama, "--tokens", TOKENS, "--ablate", "cross.0.0"], &["no cross attention"]);
    error(&["heads", &bert, "--text", "paris is big", "--ablate"], &["predicts no next token"]);
    error(&["heads", text(&fixtures().join("tasks/vit")), "--seq", "5"], &["takes images, not token ids"]);
    error(&["heads", "gpt2", "--seq", "2000"], &["learned positions end at 1024"]);
}
