//! The presets: each loads, is valid, and has the parameter count of the model it describes.

use burnformer::attention::{MultiHeadAttentionConfig, ProjectionBias};
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{LayerRotary, ModelConfig, preset_names, preset_text};

/// Every preset and how many parameters it has, a tied head counted once. Where a checkpoint is published, this is the
/// number of values in it.
const COUNTS: &[(&str, u64)] = &[
    // 10,000 · 128 + 4 · 128² + 4 · 128
    ("attention-block", 1_346_048),
    // 12 · 4096², and two norms of 2 · 4096
    ("classic-block", 201_342_976),
    // 4 · 32² + 4 · 32, and 2 · 32 · 64 + 64 + 32, and two norms of 2 · 32
    ("encoder-layer", 8_544),
    // 37,000 · 512 and six times 4 · 512² (no biases), 2 · 512 · 2048 + 2048 + 512, and two norms of 2 · 512
    ("transformer-base-encoder", 37_846_016),
    ("gpt2", 124_439_808),
    ("gpt2-medium", 354_823_168),
    ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200),
    // With d = 12,288: 96 · (12 d² + 13 d) and (50,257 + 2,048) · d and a norm of 2 d
    ("gpt3-175b", 174_604_259_328),
    ("bert-base", 109_482_240),
    ("bert-large", 335_141_888),
    ("minilm-l6", 22_713_216),
    ("llama-2-7b", 6_738_415_616),
    ("llama-2-13b", 13_015_864_320),
    ("llama-2-70b", 68_976_648_192),
    ("llama-3-8b", 8_030_261_248),
    ("llama-3-70b", 70_553_706_496),
    ("llama-3.2-1b", 1_235_814_400),
    ("mistral-7b", 7_241_732_096),
    ("mixtral-8x7b", 46_702_792_704),
    ("qwen2.5-0.5b", 494_032_768),
    ("qwen3-0.6b", 596_049_920),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-3-1b", 999_885_952),
    ("olmo-2-1b", 1_484_916_736),
    ("phi-2", 2_779_683_840),
    ("phi-3-mini", 3_821_079_552),
    ("pythia-160m", 162_322_944),
    ("falcon-7b", 6_921_720_704),
    ("bloom-560m", 559_214_592),
    ("mpt-7b", 6_649_286_656),
    ("opt-125m", 125_239_296),
    ("stablelm-3b", 2_795_443_200),
    ("starcoder2-3b", 3_030_371_328),
    ("smollm2-135m", 134_515_008),
    ("t5-small", 60_506_624),
    // With the pooler; without it 85,798,656, and 86,567,656 with the classifier of 1000 labels in its place.
    ("vit-base", 86_389_248),
];

/// Presets that no published checkpoint belongs to.
const WITHOUT_CHECKPOINT: [&str; 5] =
    ["attention-block", "classic-block", "encoder-layer", "transformer-base-encoder", "gpt3-175b"];

fn preset(name: &str) -> ModelConfig {
    ModelConfig::preset(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_preset_loads_and_is_valid() {
    for name in preset_names() {
        let config = preset(name);
        config.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(config.description.is_some(), "{name} has no description");
        assert!(config.source.is_some(), "{name} does not say where its numbers come from");
    }
}

#[test]
fn every_preset_has_the_published_count() {
    for name in preset_names() {
        let config = preset(name);
        match config.published_parameters {
            Some(published) => assert_eq!(config.n_parameters(), published, "{name}"),
            None => assert!(WITHOUT_CHECKPOINT.contains(&name), "{name} has no published_parameters"),
        }
    }
}

#[test]
fn every_preset_has_the_pinned_count() {
    let names: Vec<_> = preset_names().collect();
    let pinned: Vec<_> = COUNTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, pinned);
    for (name, count) in COUNTS {
        assert_eq!(preset(name).n_parameters(), *count, "{name}");
    }
}

#[test]
fn every_preset_survives_being_written() {
    for name in preset_names() {
        let config = preset(name);
        let read = ModelConfig::from_toml(&config.to_toml()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read, config, "{name}");
    }
}

#[test]
fn attention_has_four_square_matrices_whatever_the_heads() {
    for n_heads in [8, 32, 128] {
        let attention = MultiHeadAttentionConfig::new(4096, n_heads).with_bias(ProjectionBias::NONE);
        assert_eq!(attention.n_parameters(), 4 * 4096 * 4096, "{n_heads} heads");
    }
    assert_eq!(MultiHeadAttentionConfig::new(128, 4).n_parameters(), 66_048);
}

#[test]
fn parts_of_the_size_of_llama_70b() {
    let attention = MultiHeadAttentionConfig::new(8192, 64).with_bias(ProjectionBias::NONE);
    assert_eq!(attention.n_parameters(), 268_435_456);
    // Eight key and value heads, as the model has: keys and values are an eighth.
    assert_eq!(attention.with_n_kv_heads(8).n_parameters(), 150_994_944);
    let feed_forward = FeedForwardConfig::new(8192, 4 * 8192).with_bias(false);
    assert_eq!(feed_forward.n_parameters(), 536_870_912);
}

#[test]
fn windows_are_where_the_models_have_them() {
    let gemma_2 = preset("gemma-2-2b").layer_patterns();
    assert_eq!(gemma_2.len(), 26);
    for (layer, pattern) in gemma_2.iter().enumerate() {
        assert_eq!(pattern.window, layer.is_multiple_of(2).then_some(4096), "layer {layer}");
        assert_eq!(pattern.rotary, LayerRotary::Global, "layer {layer}");
    }
    let gemma_3 = preset("gemma-3-1b").layer_patterns();
    assert_eq!(gemma_3.len(), 26);
    for (layer, pattern) in gemma_3.iter().enumerate() {
        let is_full = [5, 11, 17, 23].contains(&layer);
        assert_eq!(pattern.window, (!is_full).then_some(512), "layer {layer}");
        assert_eq!(pattern.rotary, if is_full { LayerRotary::Global } else { LayerRotary::Local }, "layer {layer}");
    }
    for (name, window) in [("mistral-7b", 4096), ("phi-3-mini", 2047), ("starcoder2-3b", 4096)] {
        assert!(preset(name).layer_patterns().iter().all(|pattern| pattern.window == Some(window)), "{name}");
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    for (slip, near) in [("gtp2", "gpt2"), ("lama-2-7b", "llama-2-7b"), ("Gemma-3-1b", "gemma-3-1b")] {
        let message = preset_text(slip).expect_err("there is no such preset").to_string();
        assert!(message.contains(&format!("`{slip}`")), "{message}");
        assert!(message.contains(&format!("did you mean `{near}`?")), "{message}");
    }
    let message = preset_text("0000").expect_err("there is no such preset").to_string();
    assert!(!message.contains("did you mean"), "{message}");
}

#[cfg(feature = "flex")]
mod built {
    use burn::module::Module;
    use burn::tensor::Device;

    use super::*;

    /// The same model with every part it has, small.
    fn shrunken(name: &str) -> ModelConfig {
        let mut config = preset(name);
        config.published_parameters = None;
        config.n_layers = 2;
        config.max_seq_len = 32;
        if let Some(patches) = &mut config.patches {
            (patches.image_size, patches.patch_size) = ([9, 12], [4, 3]);
            config.max_seq_len = patches.seq_len();
        }
        if let Some(embedding) = &mut config.embedding {
            embedding.vocab_size = 50;
        }
        // 16 features per head, so that 0.25 and 0.4 of them are an even number.
        config.attention.n_heads = 4;
        config.attention.n_kv_heads = config.attention.n_kv_heads.map(|n| if n == 1 { 1 } else { 2 });
        config.attention.d_head = config.attention.d_head.map(|_| 16);
        config.d_model = if config.attention.d_head.is_some() { 40 } else { 64 };
        if let Some(feed_forward) = &mut config.feed_forward {
            feed_forward.d_ff = 24;
        }
        if let Some(mixture) = &mut config.mixture {
            (mixture.n_experts, mixture.n_active, mixture.expert.d_ff) = (3, 2, 24);
        }
        if let Some(encoder) = &mut config.encoder {
            (encoder.d_model, encoder.n_layers, encoder.attention.n_heads) = (config.d_model, 2, 4);
        }
        for layer in &mut config.layers {
            layer.window = layer.window.map(|_| 4);
        }
        config
    }

    #[test]
    fn the_count_of_the_configuration_is_the_one_of_the_module() {
        let device = Device::flex();
        for name in preset_names() {
            let config = shrunken(name);
            config.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(config.init(&device).num_params() as u64, config.n_parameters(), "{name}");
        }
    }
}
