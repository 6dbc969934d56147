//! What is refused, and how it is said.

use burnformer::backend::Backend;

use super::*;

/// What is put in place of what in a good configuration, and what the message must then hold.
type FaultyConfig = (&'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn faults_of_a_configuration_are_named() {
    let cases: [FaultyConfig; 12] = [
        (&[("n_layers", "n_layer")], &["`n_layer`", "did you mean `n_layers`?", "`n_layers` is missing"]),
        (&[("n_heads = 4", "n_head = 4")], &["attention.n_head", "did you mean `n_heads`?"]),
        (&[("d_model = 16\n", "")], &["`d_model` is missing"]),
        (&[("d_model = 16", "d_model = \"wide\"")], &["`d_model`", "wide"]),
        (&[("\"decoder\"", "\"decodr\"")], &["`kind`", "did you mean `decoder`?"]),
        (&[("d_model = 16", "d_model = 18")], &["18", "4"]),
        (&[("n_kv_heads = 2", "n_kv_heads = 3")], &["n_kv_heads", "3", "4"]),
        (&[("n_layers = 2", "n_layers = 0")], &["`n_layers` must be at least 1, got 0"]),
        (&[("vocab_size = 32", "vocab_size = 0")], &["vocab_size` must be at least 1, got 0"]),
        (
            &[("[positions.learned]\noffset = 0", "[positions.rotary.global]\nfraction = 0.75")],
            &["positions.rotary.global", "3"],
        ),
        (&[("eps = 1e-5", "eps = -1e-5")], &["norm.eps", "-0.00001"]),
        (
            &[("d_ff = 24", "d_ff = 0"), ("n_layers = 2", "n_layers = 0"), ("eps = 1e-5", "epz = 1e-5")],
            &["d_ff", "n_layers", "`norm.epz`", "did you mean `eps`?"],
        ),
    ];
    for (edits, parts) in cases {
        let (_folder, path) = config(edits);
        let line = error(&["config", "check", &path], parts);
        assert!(line.contains("config.toml"), "{line}");
        assert_eq!(error(&["run", &path], parts), line);
    }
}

#[test]
fn what_is_not_there_is_named() {
    error(&["run", "gtp2"], &["`gtp2`", "did you mean `gpt2`?"]);
    error(&["run", "gpt2", "--backend", "libtorc"], &["`libtorc`", "did you mean `libtorch`?"]);
    if !Backend::Cuda.is_compiled() {
        error(&["run", "gpt2", "--backend", "cuda"], &["`cuda`", "is not compiled in", "--features cuda"]);
    }
    error(&["run", "encoder-layer", "--dtype", "f23"], &["f23", "bf16"]);
    error(&["run", "no/such/folder"], &["no/such/folder", "no such file or folder"]);
    error(&["run", "missing.toml"], &["missing.toml", "no such file or folder"]);
    let empty = tempfile::tempdir().expect("a temporary folder");
    error(&["run", text(empty.path())], &["config.json"]);
    let bert = checkpoint("bert");
    error(&["verify", text(&bert), "--golden", "missing.safetensors"], &["missing.safetensors"]);
    error(&["verify", "gpt2", "--golden", "missing.safetensors"], &["`gpt2` has no weights"]);
    error(&["embed", "gpt2", "--text", "a"], &["`gpt2` has no weights"]);
    error(&["run", "gpt2", "--text", "a"], &["needs a tokenizer"]);
}

#[test]
fn wrong_usage_is_one_line() {
    error(&[], &["subcommand"]);
    error(&["config"], &["subcommand", "list, show, check"]);
    error(&["rum"], &["rum", "run"]);
    error(&["run"], &["<MODEL>"]);
    error(&["run", "gpt2", "--sed", "1"], &["--sed", "--seed"]);
    error(&["run", "gpt2", "--seq", "0"], &["--seq", "at least 1"]);
    error(&["run", "gpt2", "--tokens", "1,x"], &["`x` is not a number"]);
    error(&["bench", "--rows", "blok"], &["`blok`", "did you mean `block`?"]);
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["config", "--help"]] {
        let Run { code, stdout, stderr } = run(arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(stdout.contains("burnformer"), "{stdout}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused() {
    error(&["run", "gpt3-175b"], &["need 650.5 GiB", "are available"]);
    let (_folder, path) = config(&[("[positions.learned]\noffset = 0\n", "")]);
    error(&["run", &path, "--batch", "1000000", "--seq", "1000000"], &["the outputs need", "are available"]);
}

#[test]
fn token_ids_are_checked_alike_on_every_backend() {
    let (_folder, path) = config(&[]);
    for (ids, fault) in [("1,32,5", "32"), ("-1,5", "-1")] {
        for command in ["run", "logits"] {
            for backend in backends() {
                let line = error(&[command, &path, "--tokens", ids, "--backend", &backend], &[]);
                let expected = format!("token id {fault} is out of range: the vocabulary has 32, from 0 to 31");
                assert_eq!(line, format!("burnformer: error: input: {expected}\n"));
            }
        }
    }
}

#[test]
fn sequences_have_limits() {
    let (_folder, path) = config(&[]);
    let ids = "1,2,3,4,5,6,7,8,9,10,11,12,13";
    error(&["logits", &path, "--tokens", ids], &["13 tokens", "12"]);
    error(&["logits", &path, "--tokens", ids, "--chunks", "9,4"], &["13 tokens", "12"]);
    error(&["run", &path, "--seq", "13"], &["13 tokens", "12"]);
    error(&["logits", &path, "--tokens", "1,2,3", "--chunks", "2,2"], &["sum to 4", "3 tokens"]);
    error(&["logits", &path, "--tokens", "1,2", "--tokens", "1"], &["row 1 has 1", "2"]);
    error(&["logits", &path, "--tokens", "1,2", "--attention-mask", "1"], &["row 0 has 1 entries for 2 tokens"]);
    error(&["logits", &path, "--tokens", "1,2", "--attention-mask", "1,2"], &["0 is padding"]);
    error(&["logits", "encoder-layer", "--tokens", "1,2"], &["takes hidden states"]);
    let bert = checkpoint("bert");
    error(&["logits", text(&bert), "--tokens", "1,2", "--chunks", "1,1"], &["encoder"]);
}

#[test]
fn broken_weights_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [config, weights] = ["config.json", "model.safetensors"].map(|name| (name, checkpoint("llama").join(name)));
    std::fs::copy(config.1, folder.path().join(config.0)).expect("copied");
    let bytes = std::fs::read(weights.1).expect("read");
    let golden = checkpoint("llama").join("golden.safetensors");
    for content in [&bytes[..bytes.len() / 2], &bytes[..4], b"version https://git-lfs.github.com/spec/v1\n", b""] {
        std::fs::write(folder.path().join(weights.0), content).expect("written");
        error(&["verify", text(folder.path()), "--golden", text(&golden)], &["model.safetensors"]);
        let broken = folder.path().join(weights.0);
        error(&["verify", text(&checkpoint("llama")), "--golden", text(&broken)], &["model.safetensors"]);
    }
    std::fs::remove_file(folder.path().join(weights.0)).expect("removed");
    error(&["run", text(folder.path())], &[text(folder.path())]);
}
