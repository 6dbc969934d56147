//! Which tensor goes where, and how its numbers get there.

use std::collections::BTreeSet;

use burn::module::Module;
use burn::tensor::FloatDType;
use burnformer::attention::ProjectionBias;
use burnformer::model::{ModelConfig, ModelInput};
use burnformer::pretrained::{Checkpoint, LoadProgress, LoadReport, read_config};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::json;

use crate::common::{
    Array, argmax, assert_apart, assert_close, checkpoint_folder, devices, flex, golden, logits, values,
};
use crate::families::{falcon, stablelm_12b};
use crate::family_tensors::{FALCON_40B, STABLELM_12B, made};
use crate::folder::{
    Folder, WEIGHTS, assert_says, config_of, file, file_as, filled, names, parameters, tensors_of, weights_of,
};

/// The unused tensors of a report, but for those with which Gemma 3 sees.
fn unused(report: &LoadReport) -> Vec<&String> {
    report.unused.iter().filter(|tensor| !is_for_seeing(tensor)).collect()
}

fn is_for_seeing(tensor: &str) -> bool {
    tensor.contains("vision_tower.") || tensor.contains("multi_modal_projector.")
}

#[test]
fn every_fixture_fills_its_model() {
    for name in names() {
        let tensors = tensors_of(&name);
        let configs = ["config.json", "config.old.json"].map(|file| {
            let folder = Folder::new(&config_of(&name, file));
            folder.write(WEIGHTS, &weights_of(&name));
            let checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let (model, report) =
                checkpoint.load(&flex(), FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(unused(&report), [""; 0], "{name}");
            assert_eq!(checkpoint.report(&flex()).expect("it loads"), report, "{name}");

            let used: BTreeSet<&String> = report.loaded.iter().map(|(_, tensor)| tensor).collect();
            let ignored: BTreeSet<&String> = report.ignored.iter().collect();
            assert!(used.is_disjoint(&ignored), "{name}");
            let is_known = |tensor: &String| used.contains(tensor) || ignored.contains(tensor) || is_for_seeing(tensor);
            assert!(tensors.keys().all(is_known), "{name}");
            let in_file: usize = used.iter().map(|tensor| tensors[*tensor].values.len()).sum();
            assert_eq!(model.num_params(), in_file, "{name}");
            assert_eq!(checkpoint.config().n_parameters(), in_file as u64, "{name}");

            let paths: Vec<String> = parameters(&model).into_keys().collect();
            let loaded: BTreeSet<&String> = report.loaded.iter().map(|(parameter, _)| parameter).collect();
            assert_eq!(paths.iter().collect::<BTreeSet<_>>(), loaded, "{name}");
            checkpoint.config().clone()
        });
        assert_eq!(configs[0], configs[1], "{name}: two spellings, two models");
        let file = checkpoint_folder(&name).join("config.json");
        let alone = read_config(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(alone, configs[0], "{name}: the config without the weights");
        assert_eq!(ModelConfig::from_toml(&alone.to_toml()), Ok(alone), "{name}: as TOML");
    }
}

/// A tensor's name without the prefix of its family.
fn bare(name: &str) -> String {
    let prefixes = ["model.decoder.", "model.", "transformer.", "gpt_neox.", "bert.", "roberta.", "distilbert."];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name).to_owned()
}

#[test]
fn every_fixture_loads_under_other_prefixes() {
    for name in names() {
        let tensors = tensors_of(&name);
        let want = parameters(&Folder::copy(&name).loaded().0);
        for (what, rename) in [("no prefix", bare as fn(&str) -> String), ("one more", |name| format!("outer.{name}"))]
        {
            let renamed = tensors.iter().map(|(tensor, array)| (rename(tensor), array.clone())).collect();
            let folder = Folder::new(&config_of(&name, "config.json"));
            folder.write(WEIGHTS, &file(&renamed));
            let (model, report) = folder.load().unwrap_or_else(|error| panic!("{name}, {what}: {error}"));
            assert_eq!(unused(&report), [""; 0], "{name}, {what}");
            assert!(parameters(&model) == want, "{name}, {what}");
        }
    }
}

#[test]
fn a_linear_weight_is_turned_unless_it_is_stored_the_other_way() {
    let array = |name: &str, tensor: &str| tensors_of(name)[tensor].clone();
    let model = Folder::copy("llama").loaded().0;
    let key = values(model.layers[1].attention.key.weight.val());
    let stored = array("llama", "model.layers.1.self_attn.k_proj.weight");
    assert_eq!(stored.shape, [12, 24]);
    assert_eq!(key, stored.transposed().values);

    let parameters = parameters(&Folder::copy("gpt2").loaded().0);
    assert_eq!(
        parameters["layers.0.attention.output.weight"],
        array("gpt2", "transformer.h.0.attn.c_proj.weight").values
    );
    let fused = array("gpt2", "transformer.h.0.attn.c_attn.weight").transposed();
    assert_eq!(parameters["layers.0.attention.key.weight"], fused.part(18..36).transposed().values);
    let bias = array("gpt2", "transformer.h.0.attn.c_attn.bias");
    assert_eq!(parameters["layers.0.attention.value.bias"], bias.part(36..54).values);
}

#[test]
fn fused_projections_are_cut_by_head_or_by_kind() {
    // Grouped heads: each of two blocks holds two queries, a key and a value of four rows.
    let tensors = made(FALCON_40B, 1);
    let fused = &tensors["transformer.h.0.self_attention.query_key_value.weight"];
    assert_eq!(fused.shape, [32, 16]);
    let config = falcon(json!({"new_decoder_architecture": true, "num_kv_heads": 2}));
    let got = parameters(&filled(&config, &tensors).0);
    let rows = |ranges: [std::ops::Range<usize>; 2]| Array::joined(&ranges.map(|range| fused.part(range)));
    assert_eq!(got["layers.0.attention.query.weight"], rows([0..8, 16..24]).transposed().values);
    assert_eq!(got["layers.0.attention.key.weight"], rows([8..12, 24..28]).transposed().values);
    assert_eq!(got["layers.0.attention.value.weight"], rows([12..16, 28..32]).transposed().values);

    // Gate rows first.
    let fused = &tensors_of("phi3")["model.layers.0.mlp.gate_up_proj.weight"];
    let got = parameters(&Folder::copy("phi3").loaded().0);
    assert_eq!(got["layers.0.feed_forward.gate.weight"], fused.part(0..14).transposed().values);
    assert_eq!(got["layers.0.feed_forward.up.weight"], fused.part(14..28).transposed().values);

    // A norm per head.
    let tensors = made(STABLELM_12B, 1);
    let got = parameters(&filled(&stablelm_12b(), &tensors).0);
    let norm = |head: usize| tensors[&format!("model.layers.0.self_attn.q_layernorm.norms.{head}.weight")].clone();
    assert_eq!(got["layers.0.attention.query_norm.weight"], Array::joined(&[0, 1, 2, 3].map(norm)).values);
}

#[test]
fn numbers_of_every_float_type_are_read() {
    let tensors = tensors_of("llama");
    let name = "model.layers.0.mlp.up_proj.weight";
    for (dtype, rounded) in [
        (Dtype::F64, (|x| x) as fn(f64) -> f64),
        (Dtype::F32, |x| f64::from(x as f32)),
        (Dtype::F16, |x| f16::from_f64(x).to_f64()),
        (Dtype::BF16, |x| bf16::from_f64(x).to_f64()),
    ] {
        // Numbers that need more than 32 bits.
        let mut tensors = tensors.clone();
        tensors.values_mut().flat_map(|array| &mut array.values).for_each(|x| *x *= 1.0 + 1e-9);
        let folder = Folder::new(&config_of("llama", "config.json"));
        folder.write(WEIGHTS, &file_as(&tensors, dtype));
        let checkpoint = Checkpoint::open(folder.path()).expect("it opens");
        for wanted in [FloatDType::F64, FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
            let (model, _) = checkpoint.load(&flex(), wanted).expect("it loads");
            let up = model.layers[0].feed_forward.as_ref().expect("a network").up.weight.val();
            assert_eq!(FloatDType::from(up.dtype()), wanted);
            let narrow = |x: f64| match wanted {
                FloatDType::F16 => f16::from_f32(x as f32).to_f64(),
                FloatDType::BF16 => bf16::from_f32(x as f32).to_f64(),
                FloatDType::F32 => f64::from(x as f32),
                _ => x,
            };
            let want: Vec<f64> = tensors[name].transposed().values.iter().map(|x| narrow(rounded(*x))).collect();
            assert_eq!(values(up), want, "{dtype} as {wanted:?}");
        }
    }
}

/// Weights rounded to 8 bits change the logits of this checkpoint, which go up to 3.9, by at most 0.0375 in transformers,
/// and weights rounded to 11 bits by at most 0.0032; which token is the likeliest stays the same.
#[test]
fn files_of_half_precision_are_widened_on_every_backend() {
    let golden = golden("llama");
    let (rows, want) = (golden.rows("input_ids"), golden.array("logits"));
    let vocab_size = want.shape[2];
    for (dtype, bound) in [(Dtype::BF16, 0.04), (Dtype::F16, 0.004)] {
        let folder = Folder::new(&config_of("llama", "config.json"));
        folder.write(WEIGHTS, &file_as(&tensors_of("llama"), dtype));
        for (name, device) in devices() {
            let (model, _) = Checkpoint::open(folder.path())
                .and_then(|checkpoint| checkpoint.load(&device, FloatDType::F32))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let got = logits(&model, &ModelInput::tokens(&rows));
            assert_close(&format!("{name}, {dtype}"), &got, &want.values, bound);
            assert_eq!(argmax(&got, vocab_size), argmax(&want.values, vocab_size), "{name}, {dtype}");
            // The file is not the one that the values come from.
            assert_apart(&format!("{name}, {dtype}"), &got, &want.values, bound / 30.0);
        }
    }
}

#[test]
fn loaded_parameters_can_be_trained() {
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).expect("it opens");
    let (model, _) = checkpoint.load(&flex().autodiff(), FloatDType::F32).expect("it loads");
    assert!(model.layers[0].attention.query.weight.val().is_require_grad());
    let (model, _) = checkpoint.load(&flex(), FloatDType::F32).expect("it loads");
    assert!(model.train().layers[0].attention.query.weight.val().is_require_grad());
}

#[test]
fn progress_counts_parameters() {
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).expect("it opens");
    let mut seen = Vec::new();
    let (model, report) =
        checkpoint.load_with(&flex(), FloatDType::F32, &mut |progress| seen.push(progress)).expect("it loads");
    let total = parameters(&model).len();
    assert_eq!(report.loaded.len(), total);
    assert_eq!(seen, (1..=total).map(|done| LoadProgress { done, total }).collect::<Vec<_>>());
}

#[test]
fn a_stored_head_wins_over_a_tied_one() {
    // The config says tied, and the file has another matrix.
    let mut tensors = tensors_of("qwen3");
    let mut head = tensors["model.embed_tokens.weight"].clone();
    head.values.reverse();
    tensors.insert("lm_head.weight".into(), head.clone());
    let (model, report) = filled(&config_of("qwen3", "config.json"), &tensors);
    assert_eq!(report.unused, [""; 0]);
    assert_eq!(parameters(&model)["head.weight"], head.values);

    // The config says not tied, and the file has none.
    let folder = Folder::copy("llama");
    let mut tensors = tensors_of("llama");
    tensors.remove("lm_head.weight");
    folder.write(WEIGHTS, &file(&tensors));
    assert_says(&folder.message(), &[WEIGHTS, "`head.weight`", "`lm_head.weight`"]);

    // A class without a head.
    let mut config = config_of("llama", "config.json");
    config["architectures"] = json!(["LlamaModel"]);
    assert!(filled(&config, &tensors).0.head.is_none());
}

#[test]
fn heads_and_poolers_are_where_their_tensors_are() {
    let bert = Folder::copy("bert").loaded().0;
    assert!(bert.head.is_some() && bert.pooler.is_none());
    let bare = Folder::copy("bert_bare").loaded().0;
    assert!(bare.head.is_none() && bare.pooler.is_some());
    // The name in the config does not count.
    let mut config = config_of("bert", "config.json");
    config["architectures"] = json!(["BertModel"]);
    assert!(filled(&config, &tensors_of("bert")).0.head.is_some());
}

#[test]
fn tensors_that_are_no_parameters_are_ignored_by_name_and_others_reported() {
    let square = Array { shape: vec![2, 2], values: vec![0.5; 4] };
    for (name, ignored, unused) in [
        ("gpt2", &["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"][..], "transformer.h.0.attn.biases"),
        ("gpt_neox", &["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"], "bias"),
        ("llama", &["model.layers.0.self_attn.rotary_emb.inv_freq"], "score.weight"),
        ("bert", &["cls.seq_relationship.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids"], "x"),
    ] {
        let mut tensors = tensors_of(name);
        let before = Folder::copy(name).loaded().1;
        for added in ignored.iter().copied().chain([unused]) {
            assert!(tensors.insert(added.to_owned(), square.clone()).is_none());
        }
        let (_, report) = filled(&config_of(name, "config.json"), &tensors);
        assert_eq!(report.unused, [unused], "{name}");
        assert_eq!(report.loaded, before.loaded, "{name}");
        assert!(
            ignored.iter().all(|name| report.ignored.iter().any(|ignored| ignored == name)),
            "{:?}",
            report.ignored
        );
    }
    let report = Folder::copy("bert_bare").loaded().1;
    assert_eq!(report.ignored, ["embeddings.position_ids"]);
}

#[test]
fn biases_that_only_the_file_tells_of_are_used() {
    let mut tensors = tensors_of("llama");
    for layer in 0..2 {
        for (name, rows) in [("q_proj", 24), ("k_proj", 12), ("v_proj", 12)] {
            let bias = Array { shape: vec![rows], values: vec![0.5; rows] };
            tensors.insert(format!("model.layers.{layer}.self_attn.{name}.bias"), bias);
        }
    }
    let mut config = config_of("llama", "config.old.json");
    config["pretraining_tp"] = json!(2);
    let (model, report) = filled(&config, &tensors);
    assert_eq!(report.unused, [""; 0]);
    assert_eq!(model.config().attention.bias, ProjectionBias::QKV);
}

/// A device that cannot compute with a type says so.
#[test]
fn types_that_a_device_lacks_are_refused() {
    let checkpoint = Checkpoint::open(checkpoint_folder("llama")).expect("it opens");
    for (backend, device) in devices() {
        for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
            let is_there = device.supports_dtype(dtype);
            assert_eq!(checkpoint.load(&device, dtype).is_ok(), is_there, "{backend}, {dtype:?}");
        }
    }
}
