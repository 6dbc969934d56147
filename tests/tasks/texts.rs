//! Texts in, labels, answers and words out: what the pipelines of transformers give.

use burn::tensor::{Device, FloatDType};
use burnformer::images::Images;
use burnformer::tasks::{Classifier, LabelScore, MaskFiller, TextInput};
use serde_json::Value;

use crate::common::{assert_close, devices, flex};
use crate::{changed, folder, golden, open};

/// Probabilities of a tiny model; measured are 2e-7.
const TOLERANCE: f64 = 1e-5;

fn results(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder(name).join("results.json")).expect("the results can be read");
    serde_json::from_str(&text).expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn classifier(name: &str, device: &Device) -> Classifier {
    Classifier::new(&open(&folder(name)), device, FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn filler(name: &str, device: &Device) -> MaskFiller {
    MaskFiller::new(&open(&folder(name)), device, FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn compare_labels(what: &str, found: &[LabelScore], want: &Value) {
    let want = want.as_array().expect("a list");
    assert_eq!(found.len(), want.len(), "{what}");
    for (found, want) in found.iter().zip(want) {
        assert_eq!(found.label, text(&want["label"]), "{what}");
        assert!((found.score - number(&want["score"])).abs() < TOLERANCE, "{what}: {found:?}, not {want}");
    }
}

#[test]
fn texts_and_pairs_have_their_labels_together_and_alone() {
    for (backend, device) in devices() {
        for name in ["bert_sequences", "distilbert_sequences"] {
            let classifier = classifier(name, &device);
            let want = results(name);
            let input = |entry: &Value| TextInput {
                text: text(&entry["text"]).to_owned(),
                pair: entry["pair"].as_str().map(str::to_owned),
            };
            let inputs: Vec<TextInput> = want.iter().map(input).collect();
            let together = classifier.classify(&inputs).expect("the texts can be read");
            for ((input, together), want) in inputs.iter().zip(&together).zip(&want) {
                let alone = classifier.classify(std::slice::from_ref(input)).expect("the text can be read").remove(0);
                compare_labels(&format!("{backend}, {name}, together"), together, &want["labels"]);
                compare_labels(&format!("{backend}, {name}, alone"), &alone, &want["labels"]);
            }
        }
    }
}

/// The second text of a pair has its own token types.
#[test]
fn a_pair_is_more_than_two_texts() {
    let classifier = classifier("bert_sequences", &flex());
    let score = |input: TextInput| classifier.classify(&[input]).expect("readable")[0][0].score;
    let (pair, text) = (TextInput::pair("Anna lives", "in Rome"), TextInput::from("Anna lives [SEP] in Rome"));
    assert!((score(pair) - score(text)).abs() > 100.0 * TOLERANCE);
}

#[test]
fn every_token_has_its_label() {
    let want = results("bert_tokens");
    let texts: Vec<String> = want.iter().map(|entry| text(&entry["text"]).to_owned()).collect();
    for (backend, device) in devices() {
        let classifier = classifier("bert_tokens", &device);
        let together = classifier.label_tokens(&texts).expect("the texts can be read");
        let alone = texts.iter().map(|text| classifier.label_tokens(std::slice::from_ref(text)).expect("readable"));
        for (which, found) in [("together", together), ("alone", alone.flatten().collect())] {
            for (found, want) in found.iter().zip(&want) {
                let want = want["tokens"].as_array().expect("a list");
                assert_eq!(found.len(), want.len(), "{backend}, {which}");
                for (found, want) in found.iter().zip(want) {
                    assert_eq!(
                        (found.token.as_str(), found.label.as_str()),
                        (text(&want["word"]), text(&want["entity"]))
                    );
                    let place = [found.index, found.start, found.end].map(|place| place as f64);
                    assert_eq!(place, ["index", "start", "end"].map(|key| number(&want[key])), "{want}");
                    assert!(
                        (found.score - number(&want["score"])).abs() < TOLERANCE,
                        "{backend}: {found:?}, not {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn answers_are_cut_out_of_the_context() {
    for (backend, device) in devices() {
        let classifier = classifier("bert_answers", &device);
        for want in results("bert_answers") {
            let longest = number(&want["longest"]) as usize;
            let found = classifier.answer(text(&want["question"]), text(&want["context"]), longest).expect("an answer");
            assert_eq!(found.answer, text(&want["answer"]), "{backend}");
            assert_eq!([found.start as f64, found.end as f64], ["start", "end"].map(|key| number(&want[key])));
            assert!((found.score - number(&want["score"])).abs() < TOLERANCE, "{backend}: {found:?}, not {want}");
        }
    }
    let said = |question: &str, context: &str| {
        classifier("bert_answers", &flex()).answer(question, context, 15).expect_err("no answer").to_string()
    };
    assert!(said("Where?", "").contains("the context has no word"));
    let message = said(&"where ".repeat(50), "Paris");
    assert!(message.contains("the question has 53 tokens, and the model reads at most 48"), "{message}");
}

#[test]
fn masks_are_filled() {
    for (backend, device) in devices() {
        for (name, mask) in [("bert_words", "[MASK]"), ("roberta_words", "<mask>")] {
            let filler = filler(name, &device);
            assert_eq!(filler.mask(), mask);
            for want in results(name) {
                let text_with_mask = text(&want["text"]).to_owned();
                let found = filler.fill(&[text_with_mask], 4).expect("the text can be read").remove(0);
                let want = want["masks"].as_array().expect("a list");
                assert_eq!(found.len(), want.len(), "{backend}, {name}");
                for (found, want) in found.iter().zip(want) {
                    let want = want.as_array().expect("a list");
                    assert_eq!(found.candidates.len(), want.len());
                    for (found, want) in found.candidates.iter().zip(want) {
                        assert_eq!(
                            f64::from(found.id),
                            number(&want["token"]),
                            "{backend}, {name}: {found:?}, not {want}"
                        );
                        assert_eq!(found.token, text(&want["token_str"]));
                        assert_eq!(found.sequence, text(&want["sequence"]));
                        assert!(
                            (found.score - number(&want["score"])).abs() < TOLERANCE,
                            "{backend}, {name}: {found:?}"
                        );
                    }
                }
            }
        }
    }
    let message = filler("roberta_words", &flex()).fill(&["Paris [MASK]".into()], 1).expect_err("no mask").to_string();
    assert!(message.contains("there is no mask in `Paris [MASK]`; write `<mask>`"), "{message}");
}

/// Without a file that names it, the mask is one of those that everybody has.
#[test]
fn the_mask_is_found_in_the_vocabulary() {
    let copy = changed("bert_words", "config.json", |_| ());
    std::fs::copy(folder("bert_words").join("tokenizer.json"), copy.path().join("tokenizer.json")).expect("copied");
    let filler = |config: Option<&str>| {
        if let Some(config) = config {
            std::fs::write(copy.path().join("tokenizer_config.json"), config).expect("written");
        }
        MaskFiller::new(&open(copy.path()), &flex(), FloatDType::F32).map(|filler| filler.mask().to_owned())
    };
    assert_eq!(filler(None).expect("a mask"), "[MASK]");
    assert_eq!(filler(Some(r#"{"mask_token": {"content": "big"}}"#)).expect("a mask"), "big");
    let message = filler(Some(r#"{"mask_token": "<nothing>"}"#)).expect_err("no such token").to_string();
    assert!(message.contains("without a mask token"), "{message}");
}

#[test]
fn images_have_their_labels() {
    let logits = golden("vit_images").array("logits");
    let images = Images::open(folder("vit_images").join("golden.safetensors")).expect("the images can be read");
    for (backend, device) in devices() {
        let found = classifier("vit_images", &device).classify_images(&images).expect("the images fit");
        assert_eq!(found.len(), logits.shape[0]);
        for (found, logits) in found.iter().zip(logits.values.chunks(logits.shape[1])) {
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let names = ["cat", "dog", "house", "tree", "sea"];
            let mut want: Vec<(f64, &str)> = logits.iter().map(|logit| logit.exp() / sum).zip(names).collect();
            want.sort_by(|a, b| b.0.total_cmp(&a.0));
            let scores: Vec<f64> = found.iter().map(|label| label.score).collect();
            let wanted: Vec<f64> = want.iter().map(|(score, _)| *score).collect();
            assert_close(backend, &scores, &wanted, TOLERANCE);
            assert!(found.iter().zip(&want).all(|(found, want)| found.label == want.1), "{backend}: {found:?}");
        }
    }
}

#[test]
fn what_a_model_is_not_for_is_refused() {
    let said = |error: Result<(), burnformer::Error>| error.expect_err("it is refused").to_string();
    let tokens = classifier("bert_tokens", &flex());
    let message = said(tokens.classify(&["Paris".into()]).map(drop));
    assert!(message.contains("the model labels tokens") && message.contains("labels whole texts"), "{message}");
    assert!(said(tokens.answer("Where?", "Paris", 3).map(drop)).contains("answers questions"));
    let sequences = classifier("bert_sequences", &flex());
    assert!(said(sequences.label_tokens(&["Paris".into()]).map(drop)).contains("one that labels tokens"));
    let long = "paris ".repeat(60);
    let message = said(sequences.classify(&[long.into()]).map(drop));
    assert!(message.contains("a text has 62 tokens, and the model reads at most 48"), "{message}");
    let images = Images::open(folder("vit").join("golden.safetensors")).expect("the images can be read");
    assert!(said(sequences.classify_images(&images).map(drop)).contains("takes no images"));
    let seen = classifier("vit_images", &flex());
    assert!(said(seen.classify(&["Paris".into()]).map(drop)).contains("reads images, not text"));
    let new = |name: &str| Classifier::new(&open(&folder(name)), &flex(), FloatDType::F32).map(drop);
    assert!(said(new("bert_words")).contains("no head for labels"));
    assert!(said(new("roberta_sequences")).contains("tokenizer.json"));
    let mask = |name: &str| MaskFiller::new(&open(&folder(name)), &flex(), FloatDType::F32).map(drop);
    assert!(said(mask("bert_sequences")).contains("no head that predicts masked tokens"));
}
