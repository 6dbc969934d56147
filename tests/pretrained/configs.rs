//! Config files: what is understood, and what is said about the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use burnformer::pretrained::{Checkpoint, read_config, supported_model_types};
use serde_json::{Value, json};

use crate::common::{Array, Changed, fixtures, flex};
use crate::folder::{Folder, WEIGHTS, assert_says, config_of, filled, parameters, tensors_of};

/// What the config is said to be wrong with.
#[track_caller]
fn fault(changed: Changed) -> String {
    match changed.model_config() {
        Ok(config) => panic!("it is valid: {config:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unknown_families_are_named_with_what_there_is() {
    let message = fault(Changed::new("llama").with("model_type", "lama"));
    assert_says(&message, &["config.json", "`model_type` `lama` is not supported, did you mean `llama`?", "qwen3"]);
    for family in ["deepseek_v3", "gpt_oss", "mt5", "whisper"] {
        let message = fault(Changed::new("llama").with("model_type", family));
        assert_says(&message, &[&format!("`{family}` is not supported; supported are")]);
    }
    assert_says(&fault(Changed::new("llama").without("model_type")), &["`model_type` is missing"]);
    assert!(supported_model_types().all(|family| message.contains(family)));
    assert!(supported_model_types().count() >= 28);
}

/// A family that is read and not compared with transformers would be a promise that nobody keeps.
#[test]
fn every_family_has_a_fixture_with_reference_outputs() {
    let mut compared = BTreeSet::new();
    let folders = ["checkpoints", "tasks"].map(|folder| fixtures().join(folder));
    for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("the folder can be read")) {
        let folder = entry.expect("the folder can be read").path();
        for file in ["config.json", "config.old.json", "model.safetensors", "golden.safetensors"] {
            assert!(folder.join(file).is_file(), "{} lacks {file}", folder.display());
        }
        let text = std::fs::read_to_string(folder.join("config.json")).expect("the config can be read");
        let config: Value = serde_json::from_str(&text).expect("the config is JSON");
        compared.insert(config["model_type"].as_str().expect("it names its family").to_owned());
    }
    let lacking: Vec<&str> = supported_model_types().filter(|family| !compared.contains(*family)).collect();
    assert!(lacking.is_empty(), "no tiny checkpoint in tests/fixtures for {lacking:?}; see CONTRIBUTING.md");
}

/// `defaults.json` holds what transformers fills in; `defaults.py` writes it.
#[test]
fn a_file_that_says_nothing_takes_the_defaults_of_its_family() {
    let defaults: Vec<Value> = serde_json::from_str(include_str!("defaults.json")).expect("a list");
    let mut families: Vec<&str> = defaults.iter().filter_map(|config| config["model_type"].as_str()).collect();
    families.push("gemma3");
    assert!(supported_model_types().all(|family| families.contains(&family)), "{families:?}");
    for full in &defaults {
        let read = |config: &Value| {
            let folder = Folder::new(config);
            read_config(folder.path().join("config.json")).unwrap_or_else(|error| panic!("{config}: {error}"))
        };
        let silent = json!({"model_type": full["model_type"]});
        assert_eq!(read(&silent), read(full), "{}", full["model_type"]);
    }
}

#[test]
fn keys_that_are_not_understood_are_named() {
    for (name, key, value, said) in [
        ("llama", "hidden_size", json!("16"), r#"`hidden_size` must be a whole number from 0 to 2147483647, got "16""#),
        ("llama", "hidden_size", json!(16.5), "got 16.5"),
        ("llama", "num_hidden_layers", json!(-1), "got -1"),
        ("llama", "num_hidden_layers", json!(2_000_000), "must be at most 10000"),
        ("llama", "rms_norm_eps", json!("small"), r#"`rms_norm_eps` must be a number, got "small""#),
        ("llama", "tie_word_embeddings", json!("yes"), "must be true or false"),
        ("llama", "hidden_act", json!("swiglu"), "`hidden_act` `swiglu` is not known"),
        ("llama", "hidden_act", json!("gelu_neww"), "did you mean `gelu_new`?"),
        ("llama", "attn_logit_softcapping", json!(50.0), "`attn_logit_softcapping` = 50.0 is not understood"),
        ("llama", "sliding_window", json!(4), "`sliding_window` = 4 is not understood"),
        ("llama", "hiden_act", json!("gelu"), r#"`hiden_act` = "gelu" is not understood"#),
        ("llama", "partial_rotary_factor", json!(0.5), "this family turns whole heads"),
        ("llama", "rope_scaling", json!({"rope_type": "yarm"}), "did you mean `yarn`?"),
        ("llama", "rope_scaling", json!({"rope_type": "linear"}), "`rope_scaling.factor` is missing"),
        ("llama", "quantization_config", json!({"bits": 4}), "the weights are quantised"),
        ("llama", "layer_types", json!(["full_attention"]), "must hold 2 entries"),
        ("llama", "layer_types", json!(["full_attention", "linear_attention"]), "holds `linear_attention`"),
        ("bert", "position_embedding_type", json!("relative_key"), "`relative_key` is not supported"),
        ("bert", "add_cross_attention", json!(true), "cross-attention"),
        ("bert", "is_encoder_decoder", json!(true), "encoder and decoder"),
        ("gemma", "use_bidirectional_attention", json!(true), "`use_bidirectional_attention` is true"),
        ("gemma3_text", "use_bidirectional_attention", json!(true), "`use_bidirectional_attention` is true"),
        ("gpt_neox", "rope_theta", json!(7), "`rope_theta` = 7, and this family takes 2000 from another key"),
        ("mpt", "no_bias", json!(false), "`no_bias` is false"),
        ("mpt", "attn_config", json!({"alibi": false}), "`attn_config.alibi` is false"),
        ("mpt", "attn_config", json!({"attn_uses_sequence_id": true}), "`attn_config.attn_uses_sequence_id` = true"),
    ] {
        assert_says(&fault(Changed::old(name).with(key, value)), &["config.json", said]);
    }
    // All of them at once.
    let both = Changed::old("llama").with("hidden_size", "16").with("vocab_size", json!(null)).with("alibi", true);
    assert_says(&fault(both), &["`hidden_size`", "`vocab_size` must be a whole number, got null", "`alibi` = true"]);
}

#[test]
fn keys_without_meaning_do_no_harm() {
    let want = Changed::old("llama").model_config().expect("valid");
    for (key, value) in [
        ("sliding_window", json!(null)),
        ("head_dim", json!(null)),
        ("rope_scaling", json!(null)),
        ("rope_parameters", json!({})),
        ("rope_theta", json!(10_000)),
        ("vocab_size", json!(35.0)),
        ("some_program", json!({"version": 3, "nested": {"deep": [1, 2]}})),
        ("torch_dtype", json!("torch.float32")),
        ("dtype", json!("bfloat16")),
        ("eos_token_id", json!([1, 2])),
        ("bos_token_id", json!(null)),
        ("architectures", json!(null)),
        ("architectures", json!("LlamaForCausalLM")),
        ("is_encoder_decoder", json!(false)),
        ("attention_dropout", json!(0.1)),
        ("some_switch", json!(false)),
    ] {
        let config = Changed::old("llama").with(key, value.clone()).model_config();
        assert_eq!(config.unwrap_or_else(|error| panic!("{key} = {value}: {error}")), want, "{key} = {value}");
    }
    // Python writes numbers that JSON does not have.
    let folder = Folder::copy("llama");
    let text = config_of("llama", "config.json").to_string();
    folder.write("config.json", text.replacen('{', r#"{"time_step_limit": [0.0, Infinity],"#, 1).as_bytes());
    assert_eq!(folder.loaded().0.config(), &want);
    folder.write("config.json", text.replacen('{', r#"{"rope_theta": NaN,"#, 1).as_bytes());
    assert_says(&folder.message(), &[r#"`rope_theta` must be a number, got "NaN""#]);
    // Without key/value heads of their own, the queries' heads count, which this file does not fit.
    let heads = Changed::old("llama").with("num_key_value_heads", json!(null)).load(&flex());
    assert_says(
        &heads.expect_err("another shape").to_string(),
        &["k_proj.weight` has shape [12, 24] and should have [24, 24]"],
    );
}

#[test]
fn files_that_are_no_config_are_refused() {
    let folder = Folder::copy("llama");
    for (text, said) in [
        (&b"{"[..], "is not valid JSON"),
        (b"[1, 2]", "is not a JSON object, but [1,2]"),
        (b"", "is not valid JSON"),
        (b"\xff\xfe", "is not a text file"),
        (b"{}", "`model_type` is missing"),
    ] {
        folder.write("config.json", text);
        assert_says(&folder.message(), &["config.json", said]);
    }
    folder.remove("config.json");
    assert_says(&folder.message(), &["config.json"]);
    let message = |path: PathBuf| Checkpoint::open(path).expect_err("no folder").to_string();
    assert_says(&message(folder.path().join("nowhere")), &["nowhere", "there is no such folder"]);
    assert_says(&message(folder.path().join(WEIGHTS)), &[WEIGHTS, "give the folder it is in"]);
}

#[test]
fn the_text_part_of_a_model_that_sees_is_loaded() {
    let text = config_of("gemma3_text", "config.json");
    let config = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256,
        "vision_config": {"hidden_size": 7}, "text_config": text,
    });
    let mut tensors: BTreeMap<String, Array> =
        tensors_of("gemma3_text").into_iter().map(|(name, array)| (format!("language_model.{name}"), array)).collect();
    tensors.insert("vision_tower.patch.weight".into(), Array { shape: vec![1], values: vec![0.0] });
    let (model, report) = filled(&config, &tensors);
    assert_eq!(report.unused, ["vision_tower.patch.weight"]);
    assert!(parameters(&model) == parameters(&Folder::copy("gemma3_text").loaded().0));
}
