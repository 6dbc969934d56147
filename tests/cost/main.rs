//! What a configuration costs, against numbers from elsewhere: modules that are built, PyTorch's counter of operations,
//! published figures, and products recorded from the real forward.

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "capture")]
mod counted;
mod flops;
mod memory;
mod parameters;
mod training;

use burnformer::model::ModelConfig;
use burnformer::pretrained::read_config;
use serde_json::Value;

fn preset(name: &str) -> ModelConfig {
    ModelConfig::preset(name).unwrap_or_else(|error| panic!("{error}"))
}

/// The preset `name` with every part it has, small, and all sizes different.
fn shrunk(name: &str) -> ModelConfig {
    let mut config = preset(name);
    (config.published_parameters, config.max_seq_len) = (None, 40);
    // Several layers of each kind of the pattern, and a part of it at the end.
    config.layers.iter_mut().for_each(|layer| layer.repeat = layer.repeat.min(2));
    config.n_layers = 5;
    if let Some(patches) = &mut config.patches {
        (patches.image_size, patches.patch_size) = ([13, 20], [4, 3]);
        config.max_seq_len = patches.seq_len();
    }
    if let Some(embedding) = &mut config.embedding {
        embedding.vocab_size = 53;
    }
    // 16 features per head, so that a quarter and two fifths of them are even numbers.
    let attention = &mut config.attention;
    attention.n_kv_heads = attention.n_kv_heads.map(|n_kv_heads| if n_kv_heads == 1 { 1 } else { 3 });
    attention.n_heads = 6;
    attention.d_head = attention.d_head.map(|_| 16);
    config.d_model = if attention.d_head.is_some() { 56 } else { 96 };
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.d_ff = 28;
    }
    if let Some(mixture) = &mut config.mixture {
        (mixture.n_experts, mixture.n_active, mixture.expert.d_ff) = (5, 2, 22);
    }
    if let Some(encoder) = &mut config.encoder {
        (encoder.d_model, encoder.n_layers, encoder.attention.n_heads) = (config.d_model, 3, 4);
        encoder.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.d_ff = 18);
    }
    for layer in &mut config.layers {
        layer.window = layer.window.map(|_| 4);
    }
    config.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
    config
}

/// What PyTorch counts, as `tests/fixtures/flops.py` wrote it.
fn torch_counts() -> Value {
    let path = common::fixtures().join("flops.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration of a checkpoint beside the tests.
fn checkpoint_config(name: &str) -> ModelConfig {
    let path = common::checkpoint_folder(name).join("config.json");
    read_config(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A configuration of the Hugging Face hub.
fn hub_config(config: &Value) -> ModelConfig {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).expect("the config can be written");
    read_config(&path).unwrap_or_else(|error| panic!("{config}: {error}"))
}
