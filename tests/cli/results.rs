//! What commands give when they do what they are asked.

use burn::tensor::FloatDType;
use burnformer::backend::DeviceName;
use burnformer::sentence::SentenceEncoder;

use super::*;

#[test]
fn a_good_configuration_is_checked_and_shown() {
    let (_folder, path) = config(&[]);
    let checked = json(&["config", "check", &path]);
    assert_eq!(checked["ok"], true);
    let shown = run(&["config", "show", &path]);
    let (_again, path_again) = config(&[]);
    std::fs::write(&path_again, shown.stdout).expect("written");
    assert_eq!(json(&["config", "check", &path_again]), checked);
    let presets = json(&["config", "list"]);
    let gpt2 = presets.as_array().expect("a list").iter().find(|preset| preset["name"] == "gpt2").expect("gpt2");
    assert_eq!(gpt2["parameters"], 124_439_808);
    assert_eq!(json(&["config", "show", "gpt2"])["n_layers"], 12);
}

#[test]
fn run_reports_one_forward() {
    let (_folder, path) = config(&[]);
    let mut reports = Vec::new();
    for backend in backends() {
        let report = json(&["run", &path, "--backend", &backend, "--batch", "2", "--seq", "7", "--seed", "3"]);
        assert_eq!(report["backend"], backend.as_str());
        assert_eq!(report["shape"], serde_json::json!([2, 7, 32]));
        assert!(report["seconds"].as_f64().expect("a number") > 0.0);
        assert!(report["output"]["mean"].is_number() && report["output"]["std"].as_f64().expect("a number") > 0.0);
        let top = report["top"].as_array().expect("a list");
        let logits: Vec<f64> = top.iter().map(|entry| entry["logit"].as_f64().expect("a number")).collect();
        assert!(top.len() == 5 && logits.is_sorted_by(|a, b| a >= b) && top[0]["token"].is_u64(), "{report}");
        reports.push((floats(&report["output"]["first"]), report["parameters"].clone()));
    }
    for (first, parameters) in &reports {
        assert_eq!(*parameters, reports[0].1);
        assert!(largest_difference(first, &reports[0].0) < 1e-5, "a seed means the same on every backend");
    }
    let report = json(&["run", "encoder-layer", "--batch", "2", "--seq", "5"]);
    assert_eq!((&report["shape"], &report["parameters"]), (&serde_json::json!([2, 5, 32]), &8544.into()));
    assert!(report.get("top").is_none(), "{report}");
    let run = run(&["run", &path, "--seed", "3"]);
    assert!(run.stderr.contains("random, seed 3"), "{}", run.stderr);
}

#[test]
fn checkpoints_give_their_golden_outputs() {
    let backends = backends();
    for name in ["llama", "bert_bare", "gpt2", "gemma3_text", "bloom"] {
        let folder = checkpoint(name);
        let golden = folder.join("golden.safetensors");
        // A GPU backend takes seconds to start.
        for backend in backends.iter().filter(|backend| *backend != "wgpu" || name == "llama") {
            let result = json(&["verify", text(&folder), "--golden", text(&golden), "--backend", backend]);
            assert_eq!(result["ok"], true, "{name} on {backend}");
            let outputs = result["outputs"].as_array().expect("a list");
            assert_eq!(outputs.len(), if name == "bert_bare" { 2 } else { 1 });
            for output in outputs {
                assert!(output["max_rel"].as_f64().expect("a number") <= 1e-4, "{name} on {backend}: {output}");
                assert!(output["max_abs"].is_number() && output["name"].is_string());
                assert_eq!(output["argmax_agreement"], 1.0, "{name} on {backend}");
            }
        }
        let Run { code, stdout, .. } =
            run(&["verify", text(&folder), "--golden", text(&golden), "--tolerance", "1e-12", "--json"]);
        let result: Value = serde_json::from_str(&stdout).expect("JSON");
        assert_eq!((code, &result["ok"]), (1, &false.into()), "{name}");
    }
    let [llama, golden] = [checkpoint("llama"), checkpoint("gpt2").join("golden.safetensors")];
    assert_eq!(run(&["verify", text(&llama), "--golden", text(&golden)]).code, 1, "another model's values");
}

#[test]
fn any_split_of_a_sequence_gives_the_same_logits() {
    let folder = checkpoint("gemma3_text");
    let logits = |backend: &str, rest: &[&str]| {
        let row = ["logits", text(&folder), "--backend", backend, "--tokens", "1,5,9,2,7,3,11,4,8"];
        json(&[&row, rest].concat())
    };
    for backend in backends() {
        let whole = logits(&backend, &[]);
        assert_eq!(whole["shape"], serde_json::json!([1, 9, 39]));
        // A GPU backend takes seconds to start.
        let all = ["4,5", "9", "3,3,3", "8,1", "1,1,1,1,1,1,1,1,1", "0,9"];
        for chunks in if backend == "wgpu" { &all[..2] } else { &all[..] } {
            let split = logits(&backend, &["--chunks", chunks]);
            assert_eq!(split["shape"], whole["shape"]);
            let difference = largest_difference(&floats(&split["data"]), &floats(&whole["data"]));
            assert!(difference < 1e-4, "{backend}, {chunks}: {difference}");
        }
        // A row that is padded on the left gives what it gives alone.
        let padded = "0,0,1,5,9,2,7,3,11";
        let rest =
            ["--attention-mask", "1,1,1,1,1,1,1,1,1", "--tokens", padded, "--attention-mask", "0,0,1,1,1,1,1,1,1"];
        let both = floats(&logits(&backend, &[&rest[..], &["--chunks", "4,5"]].concat())["data"]);
        let difference = largest_difference(&both[(9 + 2) * 39..], &floats(&whole["data"])[..7 * 39]);
        assert!(difference < 1e-4, "{backend}, padded: {difference}");
    }
}

#[test]
fn parity_compares_a_model() {
    let report = json(&["parity", "encoder-layer", "--backends", &backends()[0], "--quiet"]);
    assert_eq!(report["ok"], true);
    for key in ["backend", "case", "max_abs", "rel_l2", "tolerance", "ok"] {
        assert!(report["rows"][0].get(key).is_some(), "{key}");
    }
    error(&["parity", "--backends", "flux"], &["`flux`", "did you mean `flex`?"]);
}

#[test]
fn bench_measures_rows() {
    let rows = json(&["bench", "--backend", &backends()[0], "--rows", "block", "--samples", "1", "--quiet"]);
    let row = &rows[0];
    assert_eq!((&row["row"], &row["unit"]), (&"block".into(), &"GFLOP/s".into()));
    assert!(row["seconds"].as_f64().expect("a number") > 0.0 && row["rate"].as_f64().expect("a number") > 0.0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_reader_that_leaves_is_no_error() {
    let script = format!("set -o pipefail; '{}' config list | head -1 > /dev/null", crate::PROGRAM);
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The model is fetched by `scripts/fetch-models`; `scripts/env` says where it lies.
#[test]
fn sentences_have_their_embeddings() {
    let models = std::env::var_os("BURNFORMER_MODELS").map(PathBuf::from).unwrap_or_default();
    let folder = models.join("all-minilm-l6-v2");
    if !folder.is_dir() {
        println!("skipped: there is no folder `{}`; run scripts/fetch-models", folder.display());
        return;
    }
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/minilm.json")).expect("JSON");
    let sentences: Vec<&str> =
        fixture["sentences"].as_array().expect("a list").iter().map(|text| text.as_str().expect("text")).collect();
    let available = backends();
    for backend in Backend::compiled().filter(|backend| available.iter().any(|name| name == backend.name())) {
        let embed =
            |texts: &[&str]| json(&[&["embed", text(&folder), "--backend", backend.name(), "--text"], texts].concat());
        // Software Vulkan takes minutes for all of them.
        let sentences = if backend == Backend::Wgpu { &sentences[..10] } else { &sentences[..] };
        let together = embed(sentences);
        let device = DeviceName::new(backend).open().expect("it is available");
        let encoder = SentenceEncoder::open(&folder, &device, FloatDType::F32).expect("the model is whole");
        let whole = fixture["embeddings"].as_array().expect("a list").len();
        let step = fixture["step"].as_u64().expect("a number") as usize;
        for (index, sentence) in sentences.iter().enumerate() {
            let mut found = vec![floats(&together["embeddings"][index])];
            // All of them alone on the fastest backend, the first ones on each.
            if index < whole || backend == Backend::Flex {
                let alone = encoder.encode(&[(*sentence).to_owned()]).expect("the text is embedded").remove(0);
                found.push(alone.into_iter().map(f64::from).collect());
            }
            for found in found {
                let difference = match index.checked_sub(whole) {
                    None => largest_difference(&found, &floats(&fixture["embeddings"][index])),
                    Some(index) => {
                        let thinned: Vec<f64> = found.iter().step_by(step).copied().collect();
                        largest_difference(&thinned, &floats(&fixture["thinned"][index]))
                    }
                };
                assert!(difference < 1e-4, "{backend}: {sentence}: {difference}");
            }
        }
    }
    // Nothing, and more than the model reads.
    let odd = json(&["embed", text(&folder), "--text", "", &"word ".repeat(400)]);
    for embedding in odd["embeddings"].as_array().expect("a list") {
        let length: f64 = floats(embedding).iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
}
