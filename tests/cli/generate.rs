//! `burnformer generate`.

use std::io::Write;
use std::process::Stdio;

use burnformer::generation::{GenerationOptions, Prompt, TextGenerator};
use burnformer::pretrained::Checkpoint;

use super::*;
use crate::common::{Array, Changed, Fixture, Numbers, fixtures, flex};

const ROW: &str = "1,5,9,2,7,3,11,4,8";

/// What is written to the standard input of a run.
fn run_with_input(arguments: &[&str], input: &str) -> Run {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("there is a pipe").write_all(input.as_bytes()).expect("it is read");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
    Run { code: output.status.code().expect("a code"), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A tiny checkpoint with a tokenizer: one whose vocabulary has been made as large as the tokenizer's.
fn with_tokenizer() -> Changed {
    const VOCAB_SIZE: usize = 300;
    let changed = Changed::new("llama").with("vocab_size", VOCAB_SIZE).weights(|tensors| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let width = tensors[name].shape[1];
            let deviation = (width as f64).sqrt().recip();
            let values = Numbers::new(9).normals(VOCAB_SIZE * width).iter().map(|x| x * deviation).collect();
            tensors.insert(name.into(), Array { shape: vec![VOCAB_SIZE, width], values });
        }
    });
    let to = changed.path().join("tokenizer.json");
    std::fs::copy(fixtures().join("text/byte_level/tokenizer.json"), to).expect("copied");
    let config = r#"{"bos_token": "<|bos|>", "eos_token": {"content": "<|end|>"}, "chat_template": "x"}"#;
    std::fs::write(changed.path().join("tokenizer_config.json"), config).expect("written");
    // The file comes before the key.
    let template =
        "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
    std::fs::write(changed.path().join("chat_template.jinja"), template).expect("written");
    changed
}

#[test]
fn ids_go_in_and_come_out() {
    let llama = checkpoint("llama");
    let golden = Fixture::at(&llama.join("golden.safetensors"));
    let row = golden.rows("input_ids")[0].iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let want = serde_json::json!(golden.rows("greedy")[0]);
    let padded = golden.rows("left_padded.input_ids");
    let shorter = padded[0][3..].iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for backend in backends() {
        let generate = |rest: &[&str]| {
            json(
                &[&["generate", text(&llama), "--max-new-tokens", "8", "--backend", &backend, "--tokens"], rest]
                    .concat(),
            )
        };
        let one = generate(&[&row]);
        assert_eq!(one["tokens"], want, "{backend}");
        assert_eq!(
            (&one["prompt_tokens"], &one["stop_reason"], &one["text"]),
            (&9.into(), &"length".into(), &Value::Null)
        );
        assert!(one["tokens_per_second"].as_f64().expect("a number") > 0.0);
        let two = generate(&[&row, "--tokens", &shorter, "--prefill-chunk", "2"]);
        assert_eq!(two["outputs"][0]["tokens"], want, "{backend}: in a batch, in pieces");
        let six: Vec<i64> = serde_json::from_value(two["outputs"][1]["tokens"].clone()).expect("ids");
        assert_eq!(six[..6], golden.rows("left_padded.greedy")[0], "{backend}: in a batch, in pieces");
    }
    let printed = run(&["generate", text(&llama), "--max-new-tokens", "8", "--tokens", &row]);
    let ids = golden.rows("greedy")[0].iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    assert_eq!((printed.code, printed.stdout), (0, format!("{ids}\n")));
    assert!(printed.stderr.contains("tokens/s"), "{}", printed.stderr);
    let quiet = run(&["generate", text(&llama), "--max-new-tokens", "8", "--tokens", &row, "--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

/// The start token is read from the folder's files.
#[test]
fn an_encoder_reads_the_prompt() {
    let t5 = checkpoint("t5");
    let arguments = ["generate", text(&t5), "--max-new-tokens", "8", "--repetition-penalty", "3", "--tokens"];
    let found = json(&[&arguments[..], &["13,5,34,7"]].concat());
    assert_eq!(found["tokens"], serde_json::json!([23, 9, 10, 15, 20, 3, 18, 7]));
    assert_eq!(found["prompt_tokens"], 4);
}

#[test]
fn sampling_follows_its_flags() {
    let llama = checkpoint("llama");
    let tokens = |rest: &[&str]| {
        let arguments = ["generate", text(&llama), "--tokens", ROW, "--max-new-tokens", "12"];
        json(&[&arguments, rest].concat())["tokens"].clone()
    };
    let greedy = tokens(&[]);
    assert_eq!(tokens(&["--seed", "5"]), greedy, "greedy draws nothing");
    assert_eq!(tokens(&["--temperature", "0"]), greedy);
    let hot = tokens(&["--temperature", "2", "--seed", "5"]);
    assert_eq!(tokens(&["--temperature", "2", "--seed", "5"]), hot);
    assert_ne!(hot, greedy);
    assert_ne!(tokens(&["--temperature", "2", "--seed", "6"]), hot, "another seed");
    for flags in [&["--top-k", "20"][..], &["--top-p", "0.9"], &["--min-p", "0.01"]] {
        assert_ne!(tokens(&[flags, &["--seed", "5"]].concat()), greedy, "{flags:?} alone samples");
    }
    for flags in [&["--top-k", "1"][..], &["--top-p", "0"], &["--min-p", "1"]] {
        assert_eq!(tokens(flags), greedy, "{flags:?} leaves one token");
    }
    assert_ne!(tokens(&["--repetition-penalty", "1000"]), greedy);
}

#[test]
fn text_goes_in_and_comes_out() {
    let folder = with_tokenizer();
    let model_path = text(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).expect("it opens");
    let tokenizer = checkpoint.tokenizer().expect("it is read").expect("it is there");
    let model = folder.load(&flex()).expect("it loads");
    let generator = TextGenerator::new(&model, &tokenizer).expect("they fit");
    let options = GenerationOptions::new(12).with_stop_ids(tokenizer.stop_ids.clone());
    let want = |prompts: &[&str]| {
        let prompts: Vec<_> = prompts.iter().map(|text| generator.encode(&Prompt::from(*text)).expect("ids")).collect();
        let go_on = &mut |_: usize, _: &str| std::ops::ControlFlow::Continue(());
        generator.generate(&prompts, &options, go_on).expect("it generates").outputs
    };
    let arguments = ["generate", model_path, "--max-new-tokens", "12"];
    let generate = |rest: &[&str]| json(&[&arguments, rest].concat());

    let one = want(&["One, two"]).remove(0);
    let found = generate(&["--prompt", "One, two"]);
    assert_eq!((&found["text"], &found["tokens"]), (&one.text.as_str().into(), &serde_json::json!(one.tokens)));
    let printed = run(&[&arguments[..], &["--prompt", "One, two"]].concat());
    assert_eq!((printed.code, printed.stdout), (0, one.text.clone() + "\n"));
    assert!(printed.stderr.contains("tokens/s"), "{}", printed.stderr);
    let piped = run_with_input(&[&arguments[..], &["--prompt", "-", "--quiet"]].concat(), "One, two");
    assert_eq!((piped.stdout, piped.stderr.as_str()), (one.text.clone() + "\n", ""));
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "One, two").expect("written");
    assert_eq!(generate(&["--prompt-file", text(&file)])["text"], one.text.as_str());

    let prompts = ["One, two", "The capital of France is"];
    let batch = generate(&["--prompt", prompts[0], "--prompt", prompts[1]]);
    for (found, want) in batch["outputs"].as_array().expect("a list").iter().zip(want(&prompts)) {
        assert_eq!(found["text"], want.text.as_str());
    }
    let printed = run(&[&arguments[..], &["--prompt", prompts[0], "--prompt", prompts[1]]].concat());
    assert!(printed.stdout.starts_with(&format!("[1] {}\n[2] ", one.text)), "{}", printed.stdout);

    let stop: String = one.text.chars().skip(2).take(2).collect();
    let stopped = generate(&["--prompt", "One, two", "--stop", &stop]);
    assert_eq!(stopped["text"], one.text.split(&stop).next().unwrap_or_default());
    assert_eq!(stopped["stop_reason"], "stop_string");

    let chat = generate(&["--chat", "--system", "Be brief.", "--prompt", "One, two"]);
    let rendered = tokenizer.encode_as_it_is("<|bos|>system: Be brief.\nuser: One, two\n").expect("ids");
    assert_eq!(chat["prompt_tokens"], rendered.len());
    let ids = rendered.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    assert_eq!(chat["tokens"], generate(&["--tokens", &ids])["tokens"]);
}

/// The end of a text as the model's files name it.
#[test]
fn files_say_where_a_text_ends() {
    let folder = with_tokenizer();
    let generate = |rest: &[&str]| {
        let arguments = ["generate", text(folder.path()), "--prompt", "One, two", "--max-new-tokens", "12"];
        json(&[&arguments, rest].concat())
    };
    let endless = generate(&["--ignore-eos"]);
    assert_eq!(endless["stop_reason"], "length");
    let token = endless["tokens"][4].as_u64().expect("an id");
    std::fs::write(folder.path().join("generation_config.json"), format!("{{\"eos_token_id\": [299999, {token}]}}"))
        .expect("written");
    let ended = generate(&[]);
    let tokens = ended["tokens"].as_array().expect("a list");
    assert_eq!(tokens.last().and_then(Value::as_u64), Some(token));
    assert!(tokens.len() <= 5);
    assert_eq!(ended["stop_reason"], "stop_token");
    assert_eq!(generate(&["--ignore-eos"])["tokens"], endless["tokens"]);
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let llama = checkpoint("llama");
    let llama = text(&llama);
    error(&["generate", llama], &["--prompt"]);
    error(&["generate", llama, "--prompt", "a"], &["no tokenizer", "--tokens"]);
    error(&["generate", "gpt2", "--prompt", "a"], &["no tokenizer"]);
    error(&["generate", llama, "--tokens", ""], &["the prompt is empty"]);
    error(&["generate", llama, "--tokens", "1", "--tokens", ""], &["prompt 2 is empty"]);
    error(&["generate", llama, "--tokens", "1,99999"], &["token id 99999 is out of range"]);
    error(&["generate", llama, "--tokens", "-1"], &["`-1`"]);
    error(&["generate", llama, "--tokens", &vec!["1"; 65].join(",")], &["65 tokens", "64"]);
    error(&["generate", llama, "--tokens", "1", "--temperature", "-1"], &["temperature", "at least 0", "-1"]);
    error(&["generate", llama, "--tokens", "1", "--temperature", "nan"], &["temperature", "NaN"]);
    error(&["generate", llama, "--tokens", "1", "--top-p", "1.5", "--min-p", "2"], &["top_p", "1.5", "min_p"]);
    error(&["generate", llama, "--tokens", "1", "--repetition-penalty", "0"], &["repetition_penalty"]);
    error(&["generate", llama, "--tokens", "1", "--prefill-chunk", "0"], &["prefill_chunk", "at least 1"]);
    error(&["generate", llama, "--tokens", "1", "--stop", "a"], &["stop strings need a tokenizer"]);
    error(&["generate", llama, "--tokens", "1", "--chat"], &["--chat"]);
    error(&["generate", llama, "--prompt", "1", "--system", "a"], &["--chat"]);
    error(&["generate", llama, "--prompt-file", "missing.txt"], &["missing.txt"]);
    error(&["generate", text(&checkpoint("bert")), "--tokens", "1"], &["encoder"]);

    let folder = with_tokenizer();
    let model = text(folder.path());
    error(&["generate", model, "--prompt", "a", "--stop", ""], &["stop_strings"]);
    error(&["generate", model, "--prompt", &"word ".repeat(100)], &["tokens", "64"]);
    let template = folder.path().join("chat_template.jinja");
    std::fs::write(&template, "\n{{ raise_exception('System role not supported') }}").expect("written");
    let chat = ["generate", model, "--prompt", "a", "--chat"];
    error(&chat, &["chat template, line 2", "System role not supported"]);
    std::fs::write(&template, "{% if %}").expect("written");
    error(&chat, &["chat template, line 1", "syntax error"]);
    std::fs::remove_file(&template).expect("removed");
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).expect("removed");
    error(&chat, &["no chat template"]);
    std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("written");
    error(&["generate", model, "--prompt", "a"], &["tokenizer.json"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_reader_may_leave_in_the_middle() {
    let llama = checkpoint("llama");
    let script = format!(
        "set -o pipefail; '{PROGRAM}' generate '{}' --tokens {ROW} --max-new-tokens 100000 | head -c 9",
        text(&llama)
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.stdout.len(), 9);
}
