//! What attention heads do: scores of patterns made by hand, scores and ablations as transformers has them, and the known
//! kinds of heads in a published model.

#[path = "../common/mod.rs"]
mod common;

mod ablation;
mod patterns;
mod smollm2;
mod transformers;

use burnformer::head_roles::{HeadId, HeadInput, HeadScores, RepeatedTokens};
use burnformer::model::AttentionPart;
use serde_json::Value;

use common::fixtures;

/// What `tests/fixtures/heads.py` has written about one model.
fn expected(name: &str) -> Value {
    let text = std::fs::read(fixtures().join("heads.json")).expect("the fixture is there");
    let mut all: Value = serde_json::from_slice(&text).expect("JSON");
    all[name].take()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|id| id.as_i64().expect("an id")).collect()
}

/// The text and the repeated tokens of a fixture. Encoder and decoder, where a model has both, read the same text.
fn input(fixture: &Value) -> HeadInput {
    let repeated = RepeatedTokens { prefix: Vec::new(), once: ids(&fixture["once"]) };
    HeadInput::new(ids(&fixture["ids"])).with_repeated(Some(repeated))
}

fn id_of(head: &Value) -> HeadId {
    let number = |key: &str| head[key].as_u64().expect("a number") as usize;
    let part = AttentionPart::ALL.into_iter().find(|part| part.name() == head["part"]).expect("a part");
    HeadId { part, layer: number("layer"), head: number("head") }
}

/// The scores of all heads one after another, a score that was not measured as −1; where one has no number and the other
/// has, they differ.
fn numbers<'a>(heads: impl IntoIterator<Item = &'a Value>) -> Vec<f64> {
    let keys =
        ["previous_token", "next_token", "first_token", "self", "entropy", "distance", "induction", "duplicate_token"];
    let number = |value: &Value| value.as_f64().unwrap_or(-1.0);
    heads.into_iter().flat_map(|head| keys.map(|key| number(&head[key]))).collect()
}

fn as_json(scores: &[HeadScores]) -> Vec<Value> {
    scores.iter().map(|scores| serde_json::to_value(scores).expect("JSON")).collect()
}
