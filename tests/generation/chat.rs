//! Chat templates give what transformers gives, character by character.

use burnformer::generation::{ChatTemplate, Message};
use serde_json::Value;

use crate::common::fixtures;

fn fixture() -> Value {
    let path = fixtures().join("text/chat.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

#[test]
fn templates_give_what_transformers_gives() {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().expect("a list");
    assert!(cases.len() >= 80, "{} cases", cases.len());
    for case in cases {
        let name = text(&case["template"]);
        let template =
            ChatTemplate::new(text(&fixture["templates"][name]), fixture["bos"].as_str(), fixture["eos"].as_str());
        let messages = &fixture["conversations"][text(&case["messages"])];
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).expect("messages");
        let template = template.unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = template.render(&messages, case["add_generation_prompt"] == true);
        let what = format!("{name}, {}, {}", case["messages"], case["add_generation_prompt"]);
        match (found, case["text"].as_str()) {
            (Ok(found), Some(want)) => assert_eq!(found, want, "{what}"),
            (Err(error), None) => {
                let error = error.to_string();
                assert!(error.contains("chat template, line "), "{what}: {error}");
                assert!(error.ends_with(text(&case["refused"])), "{what}: {error}");
            }
            (found, want) => panic!("{what}: {found:?}, expected {want:?}"),
        }
    }
}
