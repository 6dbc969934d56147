//! `burnformer cost`: published figures, as its JSON gives them.

use super::*;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_classic_block_costs_what_papers_say() {
    let cost = json(&["cost", "classic-block", "--seq", "2048"]);
    let block = &cost["blocks"][0];
    let (attention, feed_forward) =
        (&block["parameters"]["attention"]["total"], &block["parameters"]["feed_forward"]["total"]);
    // 12 d², about 201 million; attention is a third of it.
    assert_eq!(attention.as_u64().zip(feed_forward.as_u64()).map(|(a, f)| a + f), Some(201_326_592));
    assert!((number(&cost["parameters"]["attention_share"]) - 1.0 / 3.0).abs() < 1e-4, "{cost}");
    // 0.82 and 0.069 TFLOP.
    assert_eq!(block["weight_flops"], 824_633_720_832u64);
    assert_eq!(block["flops"]["scores"], 68_719_476_736u64);
    assert_eq!(block["flops"]["projections"], 8u64 * 2048 * 4096 * 4096);
    assert_eq!(block["flops"]["feed_forward"], 16u64 * 2048 * 4096 * 4096);
    assert_eq!(block["crossover"]["full"], 24_576);
    assert_eq!(cost["flops"]["full"]["scores"], 68_719_476_736u64);
    assert_eq!(cost["flops"]["visible"]["scores"], 2u64 * 2048 * 2049 * 4096);
    // Twice the sequences, twice the work.
    let twice = json(&["cost", "classic-block", "--seq", "2048", "--batch", "2"]);
    assert_eq!(twice["flops"]["full"]["total"], 2 * (824_633_720_832u64 + 68_719_476_736));
}

#[test]
fn six_n_d_and_what_it_leaves_out() {
    let run = ["cost", "llama-2-7b", "--seq", "32768", "--train-tokens", "2e12", "--parameters", "7B"];
    let compute = &json(&run)["training_compute"];
    assert_eq!(number(&compute["six_n_d"]), 8.4e22);
    let undercount = number(&compute["undercount"]["full"]);
    assert!((undercount - 12.0 * 32.0 * 4096.0 * 32_768.0 / 4.2e10).abs() < 1e-9, "{undercount}");
    let visible = number(&compute["undercount"]["visible"]);
    assert!((visible / undercount - 32_769.0 / 65_536.0).abs() < 1e-9, "{visible}");
    let corrected = number(&compute["corrected"]["full"]);
    assert!((corrected / 8.4e22 - 1.0 - undercount).abs() < 1e-9, "{corrected}");
}

#[test]
fn several_models_make_a_table() {
    let models = ["gpt2", "llama-2-7b", "llama-2-70b", "mistral-7b"];
    let costs = json(&[&["cost"], &models[..]].concat());
    let heads: Vec<[u64; 4]> = costs
        .as_array()
        .expect("a list")
        .iter()
        .map(|cost| {
            ["d_model", "n_heads", "n_kv_heads", "d_head"].map(|key| cost["shape"][key].as_u64().expect("a size"))
        })
        .collect();
    assert_eq!(heads, [[768, 12, 12, 64], [4096, 32, 32, 128], [8192, 64, 8, 128], [4096, 32, 8, 128]]);
    assert_eq!(costs[2]["parameters"]["total"], 68_976_648_192u64);
    assert_eq!(costs[3]["model"], "mistral-7b");

    let table = run(&[&["cost"], &models[..]].concat());
    assert_eq!((table.code, table.stderr.as_str()), (0, ""));
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert_eq!(lines.len(), 1 + models.len(), "{}", table.stdout);
    assert!(lines[0].starts_with("model") && lines[3].contains("68,976,648,192"), "{}", table.stdout);
}

#[test]
fn checkpoints_and_files_are_counted_from_their_configuration() {
    let (_folder, path) = config(&[]);
    let from_file = json(&["cost", &path, "--seq", "9"]);
    assert_eq!(from_file["parameters"]["total"], json(&["run", &path])["parameters"]);
    let folder = checkpoint("llama");
    let from_folder = json(&["cost", text(&folder), "--seq", "9"]);
    let counts: Value = serde_json::from_str(include_str!("../fixtures/flops.json")).expect("JSON");
    assert_eq!(from_folder["parameters"]["total"], counts["checkpoints"]["llama"]["parameters"]);
    assert_eq!(from_folder["flops"]["full"]["total"], counts["checkpoints"]["llama"]["flops"]);
    // A configuration is enough, as are nine tokens.
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, of) in counts["configs"].as_object().expect("an object").iter().filter(|(name, _)| *name != "vit") {
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, of["config"].to_string()).expect("the file is written");
        let cost = json(&["cost", text(&path), "--seq", "9"]);
        assert_eq!(cost["parameters"]["total"], of["parameters"], "{name}");
        assert_eq!(cost["flops"]["full"]["total"], of["flops"], "{name}");
    }
    // 2 layers, keys and values, 2 heads, 9 tokens of 4 features, in 32 and in 16 bits.
    let path = folder.path().join("llama_gqa.json");
    for (dtype, bytes) in [("f32", 1152), ("f16", 576), ("bf16", 576), ("f64", 2304)] {
        let cost = json(&["cost", text(&path), "--seq", "9", "--dtype", dtype]);
        assert_eq!((&cost["kv_cache"]["per_sequence"], &cost["dtype"]), (&bytes.into(), &dtype.into()));
    }
    let t5 = json(&["cost", "t5-small", "--seq", "5", "--source-seq", "9"]);
    assert_eq!((&t5["seq"], &t5["source_seq"]), (&5.into(), &9.into()));
    assert_eq!(t5["kv_cache"]["encoder_memory"], 6 * 9 * 2 * 512 * 4);
}

#[test]
fn a_machine_gives_times() {
    let cost = json(&["cost", "llama-2-7b", "--peak-flops", "10T", "--bandwidth", "400G", "--seq", "128"]);
    let roofline = &cost["roofline"];
    assert_eq!(roofline["machine"], serde_json::json!({"peak_flops": 1e13, "bandwidth": 4e11}));
    assert_eq!(number(&roofline["ridge"]), 25.0);
    assert_eq!(roofline["decode"]["time"]["bound"], "memory");
    assert_eq!(roofline["prefill"]["time"]["bound"], "compute");
    for call in ["forward", "prefill", "decode", "training_step"] {
        let work = &roofline[call];
        let seconds = number(&work["time"]["seconds"]);
        let of_flops = number(&work["flops"]) / 1e13;
        let of_bytes = number(&work["bytes"]) / 4e11;
        assert!((seconds / of_flops.max(of_bytes) - 1.0).abs() < 1e-12, "{call}: {work}");
        assert!((number(&work["intensity"]) - of_flops * 25.0 / of_bytes).abs() < 1e-6 * of_flops / of_bytes * 25.0);
    }
    assert!(json(&["cost", "gpt2"])["roofline"]["machine"].is_null());
    let measured = json(&["cost", "encoder-layer", "--measure", "--backend", &backends()[0], "--quiet"]);
    assert!(number(&measured["roofline"]["machine"]["peak_flops"]) > 1e9, "{measured}");
    assert!(number(&measured["roofline"]["machine"]["bandwidth"]) > 1e8, "{measured}");
}

#[test]
fn people_read_sections() {
    let text = run(&["cost", "qwen3-30b-a3b", "--peak-flops", "1e15", "--bandwidth", "3.3T", "--dtype", "bf16"]);
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    for part in
        ["128 experts", "30,532,122,624", "active", "6ND", "crossover", "with all experts", "bound by", "FLOP/byte"]
    {
        assert!(text.stdout.contains(part), "`{part}` is not in:\n{}", text.stdout);
    }
    let windows = run(&["cost", "gemma-3-1b"]).stdout;
    assert!(windows.contains("22 layers, window 512") && windows.contains("beyond the windows"), "{windows}");
    let both = run(&["cost", "t5-small"]).stdout;
    assert!(both.contains("6 encoder layers") && both.contains("in the encoder"), "{both}");
    assert_eq!(run(&["cost", "vit-base"]).code, 0);
}

#[test]
fn nonsense_is_refused() {
    error(&["cost"], &["MODEL"]);
    error(&["cost", "gtp2"], &["did you mean `gpt2`?"]);
    error(&["cost", "gpt2", "--seq", "1025"], &["`gpt2`", "1025", "1024", "max_seq_len"]);
    error(&["cost", "llama-2-7b", "gpt2", "--seq", "1025"], &["`gpt2`", "1025"]);
    error(&["cost", "vit-base", "--seq", "5"], &["197", "images"]);
    error(&["cost", "gpt2", "--source-seq", "5"], &["encoder"]);
    for (flag, number) in [
        ("--seq", "0"),
        ("--batch", "0"),
        ("--batch", "five"),
        ("--train-tokens", "-1"),
        ("--train-tokens", "3Q"),
        ("--parameters", "NaN"),
    ] {
        error(&["cost", "gpt2", flag, number], &[flag]);
    }
    error(&["cost", "gpt2", "--peak-flops", "0", "--bandwidth", "1G"], &["--peak-flops"]);
    error(&["cost", "gpt2", "--peak-flops", "1T", "--bandwidth", "inf"], &["--bandwidth"]);
    error(&["cost", "gpt2", "--peak-flops", "1T"], &["--bandwidth"]);
    error(&["cost", "gpt2", "--bandwidth", "1T"], &["--peak-flops"]);
    error(&["cost", "gpt2", "--measure", "--peak-flops", "1T", "--bandwidth", "1G"], &["--measure"]);
    error(&["cost", "gpt2", "--backend", "flex"], &["--measure"]);
    error(&["cost", "gpt2", "--dtype", "f23"], &["f23", "bf16"]);
    error(&["cost", "llama-2-7b", "--batch", "1000000000000", "--seq", "4096"], &["64 bits"]);
}
