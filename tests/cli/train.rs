//! The command `train`: what it refuses, how it ends, and that it goes on where it was killed.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// The end of a training file, which replaces lines of [`CONFIG`] as a model's table.
fn training(keys: &str) -> (TempDir, String, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("run.toml");
    let model = CONFIG
        .replace("vocab_size = 32", "vocab_size = 256")
        .replace("max_seq_len = 12", "max_seq_len = 16")
        .replace("\n[", "\n[model.");
    std::fs::write(&config, format!("{keys}\n[model]{model}")).expect("it is written");
    let data = folder.path().join("text.txt");
    let lines: String = (0..200).map(|line| format!("line {line} says {}\n", line * line % 97)).collect();
    std::fs::write(&data, lines).expect("it is written");
    let (config, data) = (text(&config).to_owned(), text(&data).to_owned());
    (folder, config, data)
}

const SHORT: &str = "steps = 6\nbatch = 2\nseq = 8\nvalidation = { share = 0.1, every = 3, windows = 4 }";

fn out(folder: &TempDir) -> String {
    text(&folder.path().join("out")).to_owned()
}

#[test]
fn a_run_gives_a_model_that_generates() {
    let (folder, config, data) = training(SHORT);
    let out = out(&folder);
    let summary = json(&["train", &config, "--data", &data, "--out", &out]);
    assert_eq!(summary["complete"], true);
    assert_eq!(summary["steps"], 6);
    let loss = summary["validation_loss"].as_f64().expect("a number");
    assert!((summary["perplexity"].as_f64().expect("a number") - loss.exp()).abs() < 1e-9);
    let text = json(&["generate", &out, "--prompt", "line", "--max-new-tokens", "3"]);
    assert_eq!(text["prompt_tokens"], 4);
    assert_eq!(text["tokens"].as_array().expect("a list").len(), 3);
}

#[test]
fn progress_is_plain_lines_on_stderr() {
    let (folder, config, data) = training(&format!("{SHORT}\nsamples = {{ every = 6, prompt = \"li\", tokens = 2 }}"));
    let Run { code, stdout, stderr } =
        run(&["train", &config, "--data", &data, "--out", &out(&folder), "--line-every", "2"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert!(stdout.contains("6 steps") && stdout.contains("perplexity"), "{stdout}");
    let starts: Vec<String> =
        stderr.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "step 1/6 loss",
        "step 2/6 loss",
        "step 3/6 validation",
        "step 4/6 loss",
        "step 6/6 loss",
        "step 6/6 sample:",
        "step 6/6 validation",
    ];
    assert_eq!(starts, expected, "{stderr}");
    assert!(stderr.lines().next().expect("a line").contains("tokens/s"), "{stderr}");
    let quiet = run(&["train", &config, "--data", &data, "--out", &out(&folder), "--resume", "--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

#[test]
fn flags_come_before_the_file() {
    let (folder, config, data) = training(SHORT);
    let out = out(&folder);
    let flags = ["--steps", "4", "--batch", "1", "--seq", "6", "--accumulation", "2", "--lr", "0.5", "--seed", "9"];
    let more = ["--checkpoint-every", "2", "--validate-every", "4", "--sample-every", "3", "--sample-prompt", "x"];
    json(&[["train", &config, "--data", &data, "--out", &out].as_slice(), &flags, &more].concat());
    let written = std::fs::read_to_string(Path::new(&out).join("training.json")).expect("it is there");
    let written: Value = serde_json::from_str(&written).expect("JSON");
    for (path, value) in [
        ("/steps", 4.0),
        ("/batch", 1.0),
        ("/seq", 6.0),
        ("/accumulation", 2.0),
        ("/schedule/learning_rate", 0.5),
        ("/seed", 9.0),
        ("/checkpoints/every", 2.0),
        ("/validation/every", 4.0),
        ("/samples/every", 3.0),
    ] {
        assert_eq!(written.pointer(path).and_then(Value::as_f64), Some(value), "{path}");
    }
    assert_eq!(written["samples"]["prompt"], "x");
}

#[test]
fn texts_that_cannot_be_trained_on_are_refused() {
    let (folder, config, data) = training(SHORT);
    let out = out(&folder);
    let refused = |content: &[u8], parts: &[&str]| {
        std::fs::write(&data, content).expect("it is written");
        error(&["train", &config, "--data", &data, "--out", &out], parts);
    };
    refused(b"", &["text.txt", "is empty"]);
    refused(b"text \xff\xfe and more", &["text.txt", "is not text", "0xff", "at 5"]);
    refused(b"text\0text", &["text.txt", "is not text", "zero byte at 4"]);
    refused(b"too few", &["text.txt", "has 7 tokens", "needs 9"]);
    refused(
        b"enough for a window, and not for validation",
        &["text.txt", "for validation 4 tokens", "validation.share"],
    );
    let missing = text(&folder.path().join("none.txt")).to_owned();
    error(&["train", &config, "--data", &missing, "--out", &out], &["none.txt", "No such file"]);
    assert!(!Path::new(&out).exists(), "nothing is written before all is known to be well");
}

#[test]
fn folders_that_are_not_as_they_must_be_are_refused() {
    let (folder, config, data) = training(SHORT);
    let out = out(&folder);
    let train = |more: &[&str], parts: &[&str]| {
        error(&[["train", &config, "--data", &data, "--out", &out].as_slice(), more].concat(), parts)
    };
    train(&["--resume"], &["out", "holds no checkpoint"]);
    std::fs::create_dir(&out).expect("it is made");
    std::fs::write(Path::new(&out).join("notes"), "mine").expect("it is written");
    train(&[], &["out", "is not empty", "--resume"]);
    train(&["--resume"], &["out", "holds no checkpoint"]);
    std::fs::remove_dir_all(&out).expect("it is there");
    json(&["train", &config, "--data", &data, "--out", &out]);
    train(&[], &["out", "is not empty", "--resume"]);
    train(&["--resume", "--steps", "7"], &["of another run", "`steps` differs"]);
    train(&["--resume", "--lr", "0.2"], &["of another run", "`schedule.learning_rate` differs"]);
    std::fs::write(&data, "another text, which is long enough for all of it. ".repeat(4)).expect("it is written");
    train(&["--resume"], &["of another run", "the text differs"]);
    let deep = text(&folder.path().join("no/such/out")).to_owned();
    error(&["train", &config, "--data", &data, "--out", &deep], &["no/such/out", "cannot be made"]);
}

#[test]
fn faults_of_a_training_file_are_named_all_at_once() {
    let (folder, config, data) = training("stepz = 3\nbatch = 0\n[optimizer]\nbeta_1 = 2.0");
    let parts = ["run.toml", "`stepz` is no key here, did you mean `steps`?", "`batch` must be at least 1", "beta_1"];
    error(&["train", &config, "--data", &data, "--out", &out(&folder)], &parts);
    let (folder, config, data) = training("seq = 17");
    let parts = ["`seq` must be at most the model's max_seq_len = 16, got 17"];
    error(&["train", &config, "--data", &data, "--out", &out(&folder)], &parts);
    let (folder, _, data) = training("");
    let bare = folder.path().join("bare.toml");
    std::fs::write(&bare, "steps = 3").expect("it is written");
    error(&["train", text(&bare), "--data", &data, "--out", &out(&folder)], &["bare.toml", "has no `model`"]);
    std::fs::write(&bare, "model = \"bert-base\"\nseq = 8").expect("it is written");
    let parts = ["`model.kind` must be `decoder`"];
    error(&["train", text(&bare), "--data", &data, "--out", &out(&folder)], &parts);
    std::fs::write(&bare, "model = \"gtp2\"").expect("it is written");
    error(&["train", text(&bare), "--data", &data, "--out", &out(&folder)], &["`gtp2`", "did you mean `gpt2`?"]);
    let (_short, config, _) = training(SHORT);
    let llama = checkpoint("llama");
    let flags = ["--from", text(&llama), "--seq", "8"];
    let parts = ["no tokenizer"];
    error(&[["train", &config, "--data", &data, "--out", &out(&folder)].as_slice(), &flags].concat(), &parts);
}

#[test]
fn numbers_that_are_not_finite_end_a_run_and_leave_the_last_checkpoint() {
    let (folder, config, data) = training("steps = 40\nbatch = 2\nseq = 8\ncheckpoints = { every = 1, keep = 2 }");
    let out = out(&folder);
    let train = ["train", config.as_str(), "--data", &data, "--out", &out, "--quiet"];
    // After the warm-up's first tenth, updates reach the end of what 32 bits hold.
    let line = error(&[train.as_slice(), &["--lr", "1e38"]].concat(), &["no longer finite at step"]);
    let step: usize = line
        .split("at step ")
        .nth(1)
        .and_then(|rest| rest.split(':').next())
        .and_then(|step| step.parse().ok())
        .unwrap_or_else(|| panic!("{line}"));
    assert!(!Path::new(&out).join("model.safetensors").exists());
    let mut kept: Vec<usize> = std::fs::read_dir(Path::new(&out).join("checkpoints"))
        .expect("it is there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("step-")?.parse().ok())
        .collect();
    kept.sort_unstable();
    assert!(kept.iter().all(|kept| *kept < step), "{kept:?}: {line}");
    match kept.last() {
        Some(last) => {
            assert!(line.contains(&format!("step-{last:08}")), "{line}");
            let folder = Path::new(&out).join(format!("checkpoints/step-{last:08}"));
            json(&["inspect", text(&folder)]);
        }
        None => assert!(line.contains("there is no checkpoint yet"), "{line}"),
    }
}

/// Starts a run and waits until it has written the checkpoint of a step.
fn start_until(arguments: &[&str], out: &Path, step: usize) -> Child {
    let child = Command::new(PROGRAM).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("it starts");
    let (wanted, began) = (out.join(format!("checkpoints/step-{step:08}")), Instant::now());
    while !wanted.exists() {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended before step {step}");
        assert!(began.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// The losses of all steps that the log holds.
fn logged(out: &Path) -> Vec<(u64, f64)> {
    let log = std::fs::read_to_string(out.join("metrics.jsonl")).expect("the log is there");
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("JSON");
        Some((value["step"].as_u64()?, value["loss"].as_f64()?))
    };
    log.lines().filter_map(line).collect()
}

#[test]
fn a_killed_run_goes_on_and_loses_one_interval_at_most() {
    let keys = "steps = 400\nbatch = 2\nseq = 8\nvalidation = { share = 0.0 }\ncheckpoints = { every = 10, keep = 3 }";
    let (folder, config, data) = training(keys);
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    let expected = json(&["train", &config, "--data", &data, "--out", text(&whole)]);
    let train = ["train", config.as_str(), "--data", &data, "--out", text(&killed)];
    // Twice, at moments of the machine's choosing.
    for (step, resume) in [(30, &[][..]), (120, &["--resume"][..])] {
        let mut child = start_until(&[train.as_slice(), resume].concat(), &killed, step);
        std::thread::sleep(Duration::from_millis(7));
        child.kill().expect("it is running");
        child.wait().expect("it ends");
        let (done, _) = *logged(&killed).last().expect("steps were made");
        let newest = std::fs::read_dir(killed.join("checkpoints"))
            .expect("it is there")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok())
            .max()
            .expect("there is one");
        assert!(done < 400, "it was not killed");
        assert!(done < newest + 11, "step {done} was made, and {newest} is the last that was written");
    }
    let resumed = json(&[train.as_slice(), &["--resume"]].concat());
    assert_eq!(resumed["loss"], expected["loss"]);
    assert_eq!(logged(&killed), logged(&whole));
    let weights = |out: &Path| std::fs::read(out.join("model.safetensors")).expect("it is there");
    assert_eq!(weights(&killed), weights(&whole));
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_last_checkpoint() {
    let keys = "steps = 8\nbatch = 2\nseq = 8\nvalidation = { share = 0.0 }\ncheckpoints = { every = 4, keep = 3 }";
    let (folder, config, data) = training(keys);
    let (whole, full) = (folder.path().join("whole"), folder.path().join("full"));
    json(&["train", &config, "--data", &data, "--out", text(&whole)]);
    // Stopped by a limit on files that is below the weights' size: as a disk that is full, it fails in mid-file.
    let limited = |more: &str| {
        let command = format!(
            "trap '' XFSZ; ulimit -f 16; exec '{PROGRAM}' train '{config}' --data '{data}' --out '{}' {more}",
            full.display()
        );
        let output = Command::new("sh").args(["-c", &command]).output().expect("it starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("cannot be written"), "{stderr}");
        stderr
    };
    let line = limited("--quiet");
    assert!(line.contains("the checkpoint of step 4 failed, there is none before it"), "{line}");
    let left = || -> Vec<String> {
        let entries = std::fs::read_dir(full.join("checkpoints")).expect("it is there");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(left(), Vec::<String>::new());
    std::fs::remove_dir_all(&full).expect("it is there");
    // The same with a checkpoint before: that of the other run, at half its way.
    std::fs::create_dir_all(full.join("checkpoints")).expect("it is made");
    let first = "checkpoints/step-00000004";
    std::fs::create_dir(full.join(first)).expect("it is made");
    for entry in std::fs::read_dir(whole.join(first)).expect("it is there") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, full.join(first).join(path.file_name().expect("a name"))).expect("it is copied");
    }
    let line = limited("--quiet --resume");
    assert!(line.contains("the checkpoint of step 8 failed, the one of step 4 is kept"), "{line}");
    assert_eq!(left(), ["step-00000004"]);
    let resumed = json(&["train", &config, "--data", &data, "--out", text(&full), "--resume"]);
    assert_eq!(resumed["complete"], true);
    assert_eq!(logged(&full)[..], logged(&whole)[4..]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_with_a_checkpoint() {
    let keys =
        "steps = 100000\nbatch = 2\nseq = 8\nvalidation = { share = 0.0 }\ncheckpoints = { every = 5, keep = 2 }";
    let (folder, config, data) = training(keys);
    let out = folder.path().join("out");
    let mut child = Command::new(PROGRAM)
        .args(["train", &config, "--data", &data, "--out", text(&out), "--json", "--line-every", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let began = Instant::now();
    while !out.join("checkpoints/step-00000010").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("it starts");
    assert!(sent.success());
    let _ = child.wait().expect("it ends");
    let output = child.wait_with_output().expect("it has ended");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summary["complete"], false);
    let steps = summary["steps"].as_u64().expect("a number");
    assert!(stderr.contains(&format!("stopped after step {steps}; go on with --resume")), "{stderr}");
    assert_eq!(logged(&out).last().expect("there are some").0, steps);
    assert!(out.join(format!("checkpoints/step-{steps:08}/optimizer.bpk")).is_file());
}

#[test]
fn several_devices_are_named_with_how_they_work_together() {
    let (folder, config, data) = training(SHORT);
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let train = ["train", config.as_str(), "--data", &data, "--out"];
    let both = ["--backend", "flex,flex"];
    error(&[&train, [text(&two)].as_slice(), &both].concat(), &["several devices", "`--parallel`"]);
    let one = json(&[train.as_slice(), &[text(&one)]].concat());
    let two = json(&[&train, [text(&two)].as_slice(), &both, &["--parallel", "multi"]].concat());
    let loss = |summary: &Value| summary["loss"].as_f64().expect("a number");
    assert!((loss(&one) - loss(&two)).abs() < 1e-5, "{one} {two}");
}

#[cfg(feature = "remote")]
#[test]
fn devices_of_two_processes_have_the_losses_of_one() {
    let keys = "steps = 4\nbatch = 4\nseq = 8\nvalidation = { share = 0.1, every = 2, windows = 4 }";
    let (folder, config, data) = training(keys);
    let servers = [(); 2].map(|()| crate::remote::Server::start("flex", None));
    let both = format!("{},{}", servers[0].device, servers[1].device);
    let losses = |name: &str, flags: &[&str]| -> Vec<f64> {
        let out = folder.path().join(name);
        let train = ["train", config.as_str(), "--data", &data, "--out", text(&out)];
        let summary = json(&[train.as_slice(), flags].concat());
        let mut losses: Vec<f64> = logged(&out).into_iter().map(|(_, loss)| loss).collect();
        assert_eq!(losses.len(), 4, "{name}");
        losses.push(summary["validation_loss"].as_f64().expect("it was measured"));
        losses
    };
    let here = losses("here", &[]);
    for parallel in ["multi", "sharded", "ddp"] {
        let there = losses(parallel, &["--backend", &both, "--parallel", parallel]);
        // Composed operations there, fused ones here, and gradients that are added up in another order.
        let difference = largest_difference(&there, &here);
        assert!(difference < 1e-4, "{parallel}: {difference}");
    }
}
