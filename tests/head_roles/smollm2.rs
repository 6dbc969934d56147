//! The kinds of heads that are known of language models, in one of 135 million parameters. `scripts/fetch-models` fetches
//! it; `scripts/env` says where it lies.

use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnformer::head_roles::{HeadId, HeadRole, HeadScores, ablate_heads, head_scores};
use burnformer::pretrained::Checkpoint;
use serde_json::{Value, json};

use super::{as_json, expected, id_of, input, numbers};
use crate::common::{assert_close, flex};

/// Attention weights after up to 30 layers in 32 bits, by another order of sums; distances reach 29 tokens.
const SCORE: f64 = 2e-3;

#[test]
fn a_published_model_has_the_known_kinds_of_heads() {
    let models = std::env::var_os("BURNFORMER_MODELS").map(PathBuf::from).unwrap_or_default();
    let path = models.join("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.is_file() {
        println!("skipped: there is no file `{}`; run scripts/fetch-models", path.display());
        return;
    }
    let fixture = expected("smollm2");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let tokenizer = checkpoint.tokenizer().unwrap_or_else(|error| panic!("{error}")).expect("it has a tokenizer");
    let ids = tokenizer.encode(fixture["text"].as_str().expect("a text")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(json!(ids), fixture["ids"]);
    let (model, _) = checkpoint.load(&flex(), FloatDType::F32).unwrap_or_else(|error| panic!("{error}"));

    let found = head_scores(&model, &input(&fixture)).unwrap_or_else(|error| panic!("{error}"));
    let want = fixture["heads"].as_array().expect("a list");
    assert_close("scores", &numbers(&as_json(&found)), &numbers(want), SCORE);

    let of_role = |role| -> Vec<String> {
        let heads = found.iter().filter(|scores| scores.role == role).map(HeadScores::id);
        heads.map(|id| format!("{}.{}", id.layer, id.head)).collect()
    };
    assert_eq!(of_role(HeadRole::PreviousToken), ["1.2", "2.1", "11.1", "16.0"]);
    let induction = ["17.3", "17.4", "17.5", "18.6", "18.7", "20.6", "23.2", "23.7"];
    assert_eq!(of_role(HeadRole::Induction), induction);
    assert_eq!(of_role(HeadRole::DuplicateToken), ["8.0", "14.3"]);
    assert_eq!(of_role(HeadRole::OwnToken), ["11.6", "29.1"]);
    // More than half of the heads rest on the first token, not counting those that copy when there is something to copy.
    let resting = of_role(HeadRole::FirstToken);
    assert!(resting.len() > found.len() / 2 && resting.contains(&"18.8".into()), "{resting:?}");

    let chosen: Vec<&Value> = want.iter().filter(|head| head["ablation"].is_number()).collect();
    let heads: Vec<HeadId> = chosen.iter().map(|head| id_of(head)).collect();
    let ablation =
        ablate_heads(&model, &input(&fixture), &heads, &mut |_| ()).unwrap_or_else(|error| panic!("{error}"));
    let want: Vec<f64> = chosen.iter().map(|head| head["ablation"].as_f64().expect("a number")).collect();
    // The loss is 3.18; without the head that reads the first layer it is 0.185 more.
    assert_close("ablation", &ablation.effects, &want, 1e-4);
}
