//! A published model of 135 million parameters. `scripts/fetch-models` fetches it; `scripts/env` says where it lies.

use std::ops::ControlFlow;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use burnformer::generation::{GenerationOptions, Message, Prompt, TextGenerator};
use burnformer::pretrained::Checkpoint;
use serde_json::{Value, json};

use crate::common::{devices, fixtures};

const TOKENS: usize = 24;

#[test]
fn a_published_model_gives_what_it_gives_in_transformers() {
    let models = std::env::var_os("BURNFORMER_MODELS").map(PathBuf::from).unwrap_or_default();
    let path = models.join("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.is_file() {
        println!("skipped: there is no file `{}`; run scripts/fetch-models", path.display());
        return;
    }
    let fixture = std::fs::read(fixtures().join("smollm2.json")).expect("the fixture is there");
    let fixture: Vec<Value> = serde_json::from_slice(&fixture).expect("JSON");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let tokenizer = checkpoint.tokenizer().unwrap_or_else(|error| panic!("{error}")).expect("it has a tokenizer");
    let prompt = |case: &Value| match case["prompt"].as_str() {
        Some(text) => Prompt::from(text),
        None => Prompt::Chat(serde_json::from_value::<Vec<Message>>(case["prompt"].clone()).expect("messages")),
    };
    for (backend, device) in devices() {
        let (model, _) = checkpoint.load(&device, FloatDType::F32).unwrap_or_else(|error| panic!("{backend}: {error}"));
        let generator = TextGenerator::new(&model, &tokenizer).expect("they fit");
        let encoded: Vec<_> = fixture.iter().map(|case| generator.encode(&prompt(case)).expect("it encodes")).collect();
        let generate = |prompts: &[_], options: &GenerationOptions| {
            let options = options.clone().with_stop_ids(tokenizer.stop_ids.clone());
            let generated = generator.generate(prompts, &options, &mut |_, _| ControlFlow::Continue(()));
            generated.unwrap_or_else(|error| panic!("{backend}: {error}")).outputs
        };
        // A software GPU takes seconds for each token, and other backends than flex a minute for all prompts.
        let tokens = if backend == "wgpu" { 4 } else { TOKENS };
        let alone = generate(&encoded[..1], &GenerationOptions::new(tokens).with_prefill_chunk(2));
        let want = fixture[0]["greedy"].as_array().expect("ids");
        assert_eq!(json!(alone[0].tokens), json!(want[..tokens]), "{backend}: {}", alone[0].text);
        if backend != "flex" {
            continue;
        }
        let together = generate(&encoded, &GenerationOptions::new(TOKENS));
        for ((case, encoded), found) in fixture.iter().zip(&encoded).zip(together) {
            assert_eq!(json!(encoded.ids), case["ids"], "{backend}");
            assert_eq!(json!(found.tokens), case["greedy"], "{backend}: {}", found.text);
            assert_eq!(found.text, case["text"], "{backend}");
        }
    }
}
