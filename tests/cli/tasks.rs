//! `fill-mask`, `classify`, and the other commands on models of images.

use super::*;

fn task(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tasks").join(name);
    folder.to_str().expect("UTF-8").to_owned()
}

fn results(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(&task(name)).join("results.json")).expect("the results can be read");
    serde_json::from_str(&text).expect("a list")
}

/// Six digits of tiny models' probabilities.
#[track_caller]
fn assert_near(found: &Value, want: &Value) {
    let [found, want] = [found, want].map(|value| value.as_f64().expect("a number"));
    assert!((found - want).abs() < 1e-5, "{found}, not {want}");
}

#[test]
fn masks_are_filled() {
    for name in ["bert_words", "roberta_words"] {
        let want = results(name);
        let texts: Vec<&str> = want.iter().map(|entry| entry["text"].as_str().expect("a text")).collect();
        let found = json(&[&["fill-mask", &task(name), "--top-k", "4", "--text"], &texts[..]].concat());
        for (found, want) in found.as_array().expect("a list").iter().zip(&want) {
            assert_eq!(found["text"], want["text"]);
            for (found, want) in
                found["masks"].as_array().expect("a list").iter().zip(want["masks"].as_array().expect(""))
            {
                assert!(found["position"].is_u64());
                let candidates = found["candidates"].as_array().expect("a list");
                assert_eq!(candidates.len(), 4);
                for (found, want) in candidates.iter().zip(want.as_array().expect("a list")) {
                    assert_eq!((&found["token"], &found["id"]), (&want["token_str"], &want["token"]));
                    assert_eq!(found["sequence"], want["sequence"]);
                    assert_near(&found["score"], &want["score"]);
                }
            }
        }
    }
    let shown = run(&["fill-mask", &task("bert_words"), "--text", "Paris is the [MASK] of France.", "--top-k", "1"]);
    assert_eq!(shown.code, 0);
    assert!(
        shown.stdout.contains("paris is the city of france.") && shown.stdout.contains("0.1436"),
        "{}",
        shown.stdout
    );
}

#[test]
fn texts_tokens_questions_and_images_are_labelled() {
    for name in ["bert_sequences", "distilbert_sequences"] {
        let want = results(name);
        let (pairs, alone): (Vec<&Value>, Vec<&Value>) = want.iter().partition(|entry| entry["pair"].is_string());
        let texts: Vec<&str> = alone.iter().map(|entry| entry["text"].as_str().expect("a text")).collect();
        let found = json(&[&["classify", &task(name), "--text"], &texts[..]].concat());
        let [text, pair] = ["text", "pair"].map(|key| pairs[0][key].as_str().expect("a text"));
        let paired = json(&["classify", &task(name), "--text", text, "--pair", pair]);
        assert_eq!(paired[0]["pair"], pair);
        let found = found.as_array().expect("a list").iter().zip(alone);
        for (found, want) in found.chain([(&paired[0], pairs[0])]) {
            assert_eq!(found["text"], want["text"]);
            let labels = found["labels"].as_array().expect("a list");
            assert_eq!(labels.len(), 3);
            for (found, want) in labels.iter().zip(want["labels"].as_array().expect("a list")) {
                assert_eq!(found["label"], want["label"]);
                assert_near(&found["score"], &want["score"]);
            }
        }
        let first = json(&["classify", &task(name), "--text", texts[0], "--top-k", "1"]);
        assert_eq!(first[0]["labels"].as_array().expect("a list").len(), 1);
    }

    let want = &results("bert_tokens")[0];
    let found = json(&["classify", &task("bert_tokens"), "--text", want["text"].as_str().expect("a text")]);
    let found = found[0]["tokens"].as_array().expect("a list");
    assert_eq!(found.len(), want["tokens"].as_array().expect("a list").len());
    for (found, want) in found.iter().zip(want["tokens"].as_array().expect("a list")) {
        assert_eq!((&found["label"], &found["token"], &found["end"]), (&want["entity"], &want["word"], &want["end"]));
        assert_near(&found["score"], &want["score"]);
    }

    for want in results("bert_answers") {
        let [question, context] = ["question", "context"].map(|key| want[key].as_str().expect("a text"));
        let longest = want["longest"].to_string();
        let model = task("bert_answers");
        let request = ["classify", &model, "--question", question, "--context", context, "--longest-answer", &longest];
        let found = json(&request);
        for key in ["answer", "start", "end", "question"] {
            assert_eq!(found[key], want[key]);
        }
        assert_near(&found["score"], &want["score"]);
        let shown = run(&request).stdout;
        assert!(shown.starts_with(want["answer"].as_str().expect("a text")), "{shown}");
    }

    let model = task("vit_images");
    let golden = format!("{model}/golden.safetensors");
    for backend in backends() {
        let found = json(&["classify", &model, "--pixels", &golden, "--backend", &backend]);
        let found = found.as_array().expect("a list");
        assert_eq!(found.len(), 3);
        for image in found {
            let scores: Vec<f64> = image["labels"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|label| label["score"].as_f64().expect(""))
                .collect();
            assert!(scores.len() == 5 && scores.is_sorted_by(|a, b| a >= b), "{image}");
            assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{image}");
        }
    }
}

#[test]
fn models_of_images_run() {
    let vit = task("vit");
    let golden = format!("{vit}/golden.safetensors");
    let report = json(&["run", &vit, "--batch", "2"]);
    assert_eq!(report["shape"], serde_json::json!([2, 13, 18]));
    assert_eq!(json(&["run", &task("vit_images")])["shape"], serde_json::json!([1, 1, 5]));
    assert_eq!(json(&["logits", &vit, "--pixels", &golden])["shape"], serde_json::json!([3, 13, 18]));
    let verified = json(&["verify", &vit, "--golden", &golden, "--tolerance", "1e-5"]);
    assert_eq!((&verified["ok"], verified["outputs"].as_array().map(Vec::len)), (&true.into(), Some(2)));
    error(&["run", &vit, "--seq", "3"], &["reads images", "--seq"]);
    error(&["run", &vit, "--tokens", "1,2"], &["takes images, not token ids"]);
    error(&["logits", &vit], &["--tokens"]);
    error(&["logits", &vit, "--pixels", "missing.safetensors"], &["missing.safetensors"]);
    let other = format!("{}/golden.safetensors", task("vit_images"));
    error(&["logits", &vit, "--pixels", &other], &["[3, 12, 12]", "[2, 13, 20]"]);
    let words = format!("{}/golden.safetensors", task("bert_words"));
    error(&["classify", &task("vit_images"), "--pixels", &words], &["no tensor `pixel_values`"]);
}

#[test]
fn what_cannot_be_done_is_said() {
    let [words, sequences, tokens, answers] = ["bert_words", "bert_sequences", "bert_tokens", "bert_answers"].map(task);
    error(&["fill-mask", &words, "--text", "Paris is big."], &["there is no mask in `Paris is big.`", "`[MASK]`"]);
    error(&["fill-mask", &sequences, "--text", "[MASK]"], &["no head that predicts masked tokens"]);
    error(&["fill-mask", text(&checkpoint("llama")), "--text", "[MASK]"], &["no head that predicts masked tokens"]);
    error(&["fill-mask", text(&checkpoint("bert")), "--text", "[MASK]"], &["tokenizer.json"]);
    error(&["fill-mask", "bert-base", "--text", "[MASK]"], &["has no weights"]);
    error(&["classify", &words, "--text", "Paris"], &["no head for labels"]);
    error(&["classify", &task("roberta_sequences"), "--text", "Paris"], &["tokenizer.json"]);
    error(
        &["classify", &sequences, "--question", "Where?", "--context", "Paris"],
        &["labels whole texts", "answers questions"],
    );
    error(&["classify", &answers, "--text", "Paris"], &["answers questions", "labels whole texts"]);
    error(&["classify", &tokens, "--text", "a", "--pair", "b"], &["reads no pairs"]);
    error(&["classify", &sequences, "--text", "a", "b", "--pair", "c"], &["2 texts and 1 second texts"]);
    error(&["classify", &sequences], &["--text"]);
    error(&["classify", &answers, "--question", "Where?"], &["--context"]);
}

#[test]
fn weights_that_are_not_finite_are_a_warning_here_too() {
    let warned = |name: &str, command: &str, words: &str| {
        let (folder, tensor) = with_a_nan(Path::new(&task(name)));
        let result = run(&[command, text(folder.path()), "--text", words]);
        let warning = format!("warning: tensor `{tensor}` holds numbers that are NaN or infinite");
        assert_eq!((result.code, result.stderr.trim()), (0, warning.as_str()), "{name}");
    };
    warned("bert_words", "fill-mask", "paris is [MASK]");
    warned("bert_sequences", "classify", "paris");
}
