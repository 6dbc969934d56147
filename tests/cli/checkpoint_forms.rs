//! `inspect` and `convert`.

use serde_json::json;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn inspecting_shows_where_each_parameter_comes_from() {
    let report = json(&["inspect", text(&checkpoint("llama"))]);
    assert_eq!(report["config"]["d_model"], 24);
    let tensors = report["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), 21);
    let key = json!({
        "parameter": "layers.1.attention.key.weight", "shape": [24, 12],
        "tensor": "model.layers.1.self_attn.k_proj.weight", "stored_dtype": "F32", "stored_shape": [12, 24],
    });
    assert!(tensors.contains(&key), "{tensors:?}");
    let count: u64 = tensors
        .iter()
        .map(|tensor| tensor["shape"].as_array().expect("a shape").iter().filter_map(Value::as_u64).product::<u64>())
        .sum();
    assert_eq!(report["parameters"], count);
    for list in ["unused", "ignored", "missing", "faults"] {
        assert_eq!(report[list], json!([]), "{list}");
    }
    let shown = run(&["inspect", text(&checkpoint("llama"))]);
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    let line = |start: &str| {
        let line =
            shown.stdout.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{}", shown.stdout));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        line("layers.0..1.attention.key.weight"),
        [
            "layers.0..1.attention.key.weight",
            "[24, 12]",
            "model.layers.0..1.self_attn.k_proj.weight",
            "[12, 24]",
            "F32"
        ]
    );
    assert!(shown.stdout.contains("d_model = 24") && shown.stdout.contains("stored as F32 (21 tensors)"));
}

#[test]
fn layers_that_differ_are_shown_apart() {
    let folder = copied(&checkpoint("llama"));
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).expect("read");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let kept = tensors.iter().filter(|(name, _)| !name.contains("layers.1.mlp.up") && *name != "model.norm.weight");
    let extra = tensors.tensor("model.norm.weight").expect("a norm");
    let written = kept.chain([("classifier.weight", extra.clone()), ("model.rotary_emb.inv_freq", extra)]);
    std::fs::write(&path, safetensors::serialize(written, None).expect("serialized")).expect("written");

    let shown = run(&["inspect", text(folder.path()), "--json"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (1, ""), "a check that does not hold");
    let report: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(report["missing"], json!(["layers.1.feed_forward.up.weight", "final_norm.weight"]));
    assert_eq!(report["unused"], json!(["classifier.weight"]));
    assert_eq!(report["ignored"], json!(["model.rotary_emb.inv_freq"]));
    let up =
        report["tensors"].as_array().expect("a list").iter().find(|tensor| tensor["parameter"] == "final_norm.weight");
    assert_eq!(up, Some(&json!({"parameter": "final_norm.weight", "shape": [24]})));
    let shown = run(&["inspect", text(folder.path())]);
    assert_eq!(shown.code, 1);
    for part in [
        "layers.0.attention.query.weight",
        "layers.1.attention.query.weight",
        "not used:\n  classifier.weight",
        "ignored:\n  model.rotary_emb.inv_freq",
        "there is no tensor for `final_norm.weight` (`model.norm.weight` in the file)",
    ] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
}

#[test]
fn layers_and_experts_that_are_alike_are_shown_once() {
    let shown = run(&["inspect", text(&checkpoint("mixtral"))]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let experts: Vec<Vec<&str>> = shown
        .stdout
        .lines()
        .filter(|line| line.contains(".experts."))
        .map(|line| line.split_whitespace().filter(|cell| cell.contains("experts")).collect())
        .collect();
    let config = json(&["config", "show", text(&checkpoint("mixtral"))]);
    let [layers, experts_in_all] = ["/n_layers", "/mixture/n_experts"]
        .map(|key| config.pointer(key).and_then(Value::as_u64).expect("a number") - 1);
    let (ours, theirs) =
        (format!("layers.0..{layers}.mixture.experts.0..{experts_in_all}"), format!("experts.0..{experts_in_all}.w"));
    assert_eq!(experts.len(), 3, "gate, up and down: {}", shown.stdout);
    for row in experts {
        assert!(row[0].starts_with(&ours) && row[1].contains(&theirs), "{row:?}");
    }
}

#[test]
fn configurations_are_inspected_without_weights() {
    let report = json(&["inspect", "gpt2"]);
    assert_eq!(report["parameters"], 124_439_808);
    let query = json!({"parameter": "layers.11.attention.query.weight", "shape": [768, 768]});
    assert!(report["tensors"].as_array().expect("a list").contains(&query));
    let shown = run(&["inspect", "gpt2"]);
    let line = shown.stdout.lines().find(|line| line.starts_with("layers.0..11.attention.query.weight "));
    assert!(shown.code == 0 && line.is_some_and(|line| line.ends_with(" [768, 768]")), "{}", shown.stdout);
    let (_folder, path) = config(&[]);
    assert_eq!(json(&["inspect", &path])["config"]["n_layers"], 2);
}

/// A `config.json` of the hub is as good as one of ours.
#[test]
fn a_hub_configuration_is_enough_for_random_weights() {
    let path = checkpoint("llama").join("config.json");
    let path = text(&path);
    let whole = json(&["inspect", text(&checkpoint("llama"))]);
    let alone = json(&["inspect", path]);
    assert_eq!((&alone["config"], &alone["parameters"]), (&whole["config"], &whole["parameters"]));
    assert_eq!(json(&["config", "show", path]), whole["config"]);
    assert_eq!(json(&["config", "check", path])["ok"], true);
    let run = run(&["run", path, "--seq", "3"]);
    assert!(run.code == 0 && run.stderr.contains("weights: random"), "{}", run.stderr);
    error(&["convert", path, "--out", "x"], &["has no weights to convert"]);
}

#[test]
fn converting_keeps_the_model() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let golden = checkpoint("gpt2").join("golden.safetensors");
    let source = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(fixture("containers/gpt2/pytorch_model.bin"), source.path().join("pytorch_model.bin"))
        .expect("copied");
    std::fs::copy(checkpoint("gpt2").join("config.json"), source.path().join("config.json")).expect("copied");
    let logits = |model: &Path| json(&["logits", text(model), "--tokens", "1,5,9,4"])["data"].clone();
    let want = logits(source.path());
    let mut model = source.path().to_owned();
    for (form, file, tensors) in
        [("hub", "model.safetensors", 29), ("pack", "model.bpk", 36), ("native", "model.safetensors", 36)]
    {
        let to = place.path().join(form);
        let report = json(&["convert", text(&model), "--out", text(&to), "--to", form]);
        assert_eq!((&report["format"], &report["dtype"]), (&json!(form), &json!("f32")), "{report}");
        assert_eq!((&report["out"], &report["tensors"]), (&json!(text(&to)), &json!(tensors)), "{report}");
        assert_eq!(report["bytes"], std::fs::metadata(to.join(file)).expect("it is there").len());
        let mut files: Vec<&str> =
            report["files"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        files.sort_unstable();
        assert_eq!(files, entries(&to));
        assert_eq!(logits(&to), want, "{form}");
        assert_eq!(json(&["verify", text(&to), "--golden", text(&golden), "--tolerance", "1e-5"])["ok"], true);
        model = to;
    }
    let small = place.path().join("small");
    let shown = run(&["convert", text(&model), "--out", text(&small), "--dtype", "bf16"]);
    assert!(shown.code == 0 && shown.stdout.contains("native, 36 tensors, bf16"), "{}{}", shown.stdout, shown.stderr);
    error(
        &["convert", text(&model), "--out", text(&small), "--to", "hub", "--force"],
        &["has no configuration for the hub"],
    );
    error(&["convert", text(&model), "--out", text(&small), "--to", "gguf"], &["gguf", "hub, native, pack"]);
    error(&["convert", text(&model), "--out", text(&small), "--dtype", "f64"], &["f64", "bf16"]);
    assert_eq!(entries(place.path()), ["hub", "native", "pack", "small"], "nothing is left over");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let (model, to) = (checkpoint("llama"), place.path().join("to"));
    let convert = ["convert", text(&model), "--out", text(&to)];
    std::fs::create_dir(&to).expect("a folder");
    std::fs::write(to.join("notes.txt"), b"mine").expect("written");
    error(&convert, &[text(&to), "is not empty", "--force"]);
    error(&[&convert[..], &["--force"]].concat(), &[text(&to), "holds no model"]);
    assert_eq!(entries(&to), ["notes.txt"]);
    std::fs::remove_file(to.join("notes.txt")).expect("removed");
    assert_eq!(run(&convert).code, 0);
    error(&convert, &["is not empty"]);
    assert_eq!(run(&[&convert[..], &["--force", "--to", "pack"]].concat()).code, 0);
    assert_eq!(entries(&to), ["config.json", "generation_config.json", "model.bpk"]);
    error(&["convert", text(&to), "--out", text(&to), "--force"], &["holds the model that is to be converted"]);
    error(&["convert", text(&model), "--out", text(&place.path().join("no/such"))], &["there is no folder"]);
    assert_eq!(entries(place.path()), ["to"]);
}

/// A disk that is full, as far as the program can tell: no file may grow past a few blocks.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let place = tempfile::tempdir().expect("a temporary folder");
    for form in ["hub", "pack"] {
        let to = place.path().join("to");
        let command = format!(
            "trap '' XFSZ; ulimit -f 8; exec {PROGRAM} convert {} --out {} --to {form}",
            checkpoint("llama").display(),
            to.display()
        );
        let output = Command::new("sh").args(["-c", &command]).output().expect("it starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{form}: {stderr}");
        assert!(stderr.contains("cannot be written"), "{form}: {stderr}");
        assert_eq!(entries(place.path()), [""; 0], "{form}");
    }
}

#[test]
fn weights_that_are_not_finite_are_a_warning() {
    let (folder, name) = with_a_nan(&checkpoint("llama"));
    let warning = format!("warning: tensor `{name}` holds numbers that are NaN or infinite");
    let result = run(&["run", text(folder.path()), "--tokens", "1,2"]);
    assert_eq!((result.code, result.stderr.trim()), (0, warning.as_str()));
    let result = run(&["run", text(folder.path()), "--tokens", "1,2", "--quiet"]);
    assert_eq!((result.code, result.stderr.as_str()), (0, ""));
    let golden = checkpoint("llama").join("golden.safetensors");
    let result = run(&["verify", text(folder.path()), "--golden", text(&golden)]);
    assert_eq!((result.code, result.stderr.trim()), (1, warning.as_str()));
    let to = folder.path().join("to");
    let result = run(&["convert", text(folder.path()), "--out", text(&to)]);
    assert!(result.code == 0 && result.stderr.contains(&warning), "{}", result.stderr);
}
