//! The tokenizers in files give the ids of the tokenizers that the files were made from.

use burnformer::pretrained::{Checkpoint, ConvertOptions};
use burnformer::tokenizer::TokenizerParts;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::{fixture, smollm2};

fn tokenizer(path: &std::path::Path) -> TokenizerParts {
    let parts = Checkpoint::open(path).and_then(|checkpoint| checkpoint.tokenizer());
    parts.unwrap_or_else(|error| panic!("{}: {error}", path.display())).expect("the file has a tokenizer")
}

fn ids(parts: &TokenizerParts, text: &str, add_special_tokens: bool) -> Vec<u32> {
    parts.tokenizer.encode(text, add_special_tokens).expect("the text can be encoded").get_ids().to_vec()
}

/// Compares with texts, ids and what comes back from those.
fn check(name: &str, parts: &TokenizerParts, texts: &Value) {
    for text in texts.as_array().expect("a list") {
        let want: Vec<u32> = serde_json::from_value(text["ids"].clone()).expect("ids");
        let text_of = |key: &str| text[key].as_str().expect("a text").to_owned();
        assert_eq!(ids(parts, &text_of("text"), false), want, "{name}: {}", text["text"]);
        let decoded = parts.tokenizer.decode(&want, true).expect("ids can be decoded");
        assert_eq!(decoded, text_of("decoded"), "{name}");
    }
}

fn named(name: &str) -> TokenizerParts {
    tokenizer(&fixture(&format!("{name}.gguf")))
}

#[test]
fn texts_have_their_ids() {
    let texts = std::fs::read(fixture("tokenizers.json")).expect("the fixture is there");
    let texts: Value = serde_json::from_slice(&texts).expect("JSON");
    for (name, texts) in texts.as_object().expect("an object") {
        check(name, &named(name), texts);
    }
}

#[test]
fn a_text_begins_as_the_file_says() {
    for (name, bos) in [
        ("llama", Some("<s>")),
        ("gemma", Some("<bos>")),
        ("llama3", Some("<|begin_of_text|>")),
        ("phi3", None),
        ("qwen2", None),
        ("gpt2", None),
    ] {
        let parts = named(name);
        let id = bos.and_then(|bos| parts.tokenizer.token_to_id(bos));
        let want: Vec<u32> = id.into_iter().chain(ids(&parts, "a dog", false)).collect();
        assert_eq!(ids(&parts, "a dog", true), want, "{name}");
    }
}

#[test]
fn special_tokens_and_templates_come_along() {
    let qwen2 = named("qwen2");
    let id = |token: &str| qwen2.tokenizer.token_to_id(token).expect("the token is there");
    assert_eq!((qwen2.bos.as_deref(), qwen2.eos.as_deref()), (Some("<|endoftext|>"), Some("<|im_end|>")));
    assert_eq!(qwen2.stop_ids, [id("<|im_end|>")]);
    assert!(qwen2.chat_template.as_deref().is_some_and(|template| template.contains("<|im_start|>")));
    assert_eq!(ids(&qwen2, "<|im_start|><think>", false), [id("<|im_start|>"), id("<think>")]);
    // Control tokens leave the text, those that users have defined stay.
    let text = qwen2.tokenizer.decode(&[id("<|im_start|>"), id("<think>")], true).expect("ids can be decoded");
    assert_eq!(text, "<think>");
    // The token that ends a text, and the one that ends a turn.
    let gemma = named("gemma");
    let stops: Vec<Option<u32>> =
        ["<eos>", "<end_of_turn>"].iter().map(|token| gemma.tokenizer.token_to_id(token)).collect();
    assert_eq!(gemma.stop_ids.iter().copied().map(Some).collect::<Vec<_>>(), stops);
    assert_eq!(named("gpt2").chat_template, None);
}

#[test]
fn a_converted_tokenizer_is_the_same() {
    for name in ["llama", "llama3", "qwen2", "gemma"] {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join(name);
        let checkpoint = Checkpoint::open(fixture(&format!("{name}.gguf"))).expect("the file is whole");
        checkpoint.convert(&path, &ConvertOptions::default(), |_| ()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = Tokenizer::from_file(path.join("tokenizer.json")).expect("the tokenizer can be read");
        let parts = named(name);
        for text in ["The quick  brown fox", " déjà vu\n", "<s><|im_start|>it's 1234<eos>"] {
            let encoding = written.encode(text, true).expect("the text can be encoded");
            assert_eq!(encoding.get_ids(), ids(&parts, text, true), "{name}: {text}");
        }
    }
}

#[test]
fn a_file_without_tokens_has_no_tokenizer() {
    let checkpoint = Checkpoint::open(fixture("qwen3.gguf")).expect("the file is whole");
    assert!(checkpoint.tokenizer().expect("there is nothing to be wrong").is_none());
}

#[test]
fn smollm2_reads_texts() {
    let Some(path) = smollm2() else { return };
    let parts = tokenizer(&path);
    let texts = std::fs::read(fixture("smollm2_texts.json")).expect("the fixture is there");
    check("SmolLM2", &parts, &serde_json::from_slice(&texts).expect("JSON"));
    assert_eq!(ids(&parts, "The capital of France is", true), [504, 3575, 282, 4649, 314]);
    assert_eq!((parts.bos.as_deref(), parts.eos.as_deref()), (Some("<|im_start|>"), Some("<|im_end|>")));
    assert_eq!(parts.stop_ids, [2]);
    assert!(parts.chat_template.is_some_and(|template| template.contains("named SmolLM")));
}
