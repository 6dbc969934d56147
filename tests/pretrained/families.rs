//! What families mean by their configs, with the tensors that transformers writes for them.

use burn::module::Module;
use burnformer::activation::Activation;
use burnformer::attention::{QkNormScope, RotaryScaling, RotaryStyle};
use burnformer::embedding::EmbeddingScale;
use burnformer::model::{LayerPattern, LayerRotary, ModelConfig, ModelKind};
use burnformer::norm::NormKind;
use burnformer::positions::Positions;
use burnformer::transformer_block::{BlockTopology, NormPlacement};
use serde_json::{Value, json};

use crate::common::Changed;
use crate::family_tensors::*;
use crate::folder::{Folder, assert_says, filled, with};

pub fn falcon(more: Value) -> Value {
    let keys = json!({
        "model_type": "falcon", "vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
    });
    with(keys, more)
}

/// The sizes of [`PROJECTIONS`].
fn llama_shaped(model_type: &str, n_layers: usize, more: Value) -> Value {
    let keys = json!({
        "model_type": model_type, "vocab_size": 9, "hidden_size": 16, "intermediate_size": 20,
        "num_hidden_layers": n_layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 12,
    });
    with(keys, more)
}

pub fn stablelm_12b() -> Value {
    let keys = json!({
        "qk_layernorm": true, "use_parallel_residual": true, "use_qkv_bias": true, "partial_rotary_factor": 0.5,
    });
    llama_shaped("stablelm", 1, keys)
}

fn opt(more: Value) -> Value {
    let keys = json!({
        "model_type": "opt", "vocab_size": 9, "hidden_size": 16, "ffn_dim": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 12,
    });
    with(keys, more)
}

/// The configuration of a checkpoint whose tensors fill it and leave nothing.
#[track_caller]
fn complete(config: Value, lists: &[&str], n_layers: usize) -> ModelConfig {
    let tensors = made(&lists.concat(), n_layers);
    let (model, report) = filled(&config, &tensors);
    assert_eq!(report.unused, [""; 0]);
    let sum: usize = tensors.values().map(|array| array.values.len()).sum();
    assert_eq!(model.num_params(), sum);
    model.config().clone()
}

#[test]
fn falcon_has_four_kinds_of_blocks() {
    let config = complete(falcon(json!({"new_decoder_architecture": true, "num_kv_heads": 2})), &[FALCON_40B], 1);
    assert_eq!((config.block.topology, config.attention.n_kv_heads), (BlockTopology::Parallel, Some(2)));

    let new = json!({
        "new_decoder_architecture": true, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 40,
    });
    let config = complete(falcon(new), &[FALCON_11B], 1);
    assert_eq!(config.block.topology, BlockTopology::ParallelSharedNorm);
    assert!(!config.head.expect("a head").tied);

    let rw = json!({"multi_query": false, "parallel_attn": false, "bias": true, "alibi": true, "num_kv_heads": 4});
    let config = complete(falcon(rw), &[FALCON_RW], 1);
    assert_eq!((config.block.topology, config.attention.n_kv_heads), (BlockTopology::Sequential, None));
    let Positions::Alibi(alibi) = config.positions else { panic!("{:?}", config.positions) };
    assert!(alibi.scaled && alibi.rounded);

    // The flags that do not go together.
    for (key, value) in [("parallel_attn", json!(false)), ("num_ln_in_parallel_attn", json!(3))] {
        let keys = falcon(with(json!({"new_decoder_architecture": true}), json!({key: value})));
        assert_says(&Folder::new(&keys).message(), &[&format!("`{key}`")]);
    }
}

#[test]
fn opt_has_three_kinds_of_norms() {
    let post = opt(json!({"do_layer_norm_before": false, "word_embed_proj_dim": 8}));
    let config = complete(post, &[OPT_350M], 2);
    assert_eq!(config.block.placement, NormPlacement::Post);
    assert!(!config.final_norm);
    assert_eq!(config.d_embedding(), 8);

    let galactica =
        json!({"enable_bias": false, "layer_norm_elementwise_affine": false, "activation_function": "gelu"});
    let config = complete(opt(galactica), &[GALACTICA], 2);
    assert_eq!(config.norm.kind, NormKind::LayerNoAffine);
    assert_eq!(config.block.placement, NormPlacement::Pre);
    assert!(config.final_norm);
}

#[test]
fn encoders_count_positions_in_their_own_ways() {
    let sizes = json!({
        "vocab_size": 9, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1,
    });
    let config = complete(with(sizes, json!({"model_type": "roberta"})), &[ROBERTA], 2);
    let Positions::Learned(learned) = config.positions else { panic!("{:?}", config.positions) };
    assert_eq!((config.max_seq_len, learned.offset, learned.padding_id), (12, 2, Some(1)));
    assert_eq!((config.kind, config.norm.eps), (ModelKind::Encoder, 1e-12));

    let distilbert = json!({
        "model_type": "distilbert", "vocab_size": 9, "dim": 16, "hidden_dim": 20, "n_layers": 2, "n_heads": 4,
        "max_position_embeddings": 12,
    });
    let config = complete(distilbert, &[DISTILBERT], 2);
    assert_eq!((config.max_seq_len, config.norm.eps), (12, 1e-12));
    let head = config.head.expect("a head");
    assert!(head.tied && head.bias && head.transform == Some(Activation::Gelu));
}

#[test]
fn norms_of_queries_and_keys_come_in_four_shapes() {
    let scope = |config: &ModelConfig| config.attention.qk_norm.map(|norm| (norm.scope, norm.norm.kind));
    let config = complete(stablelm_12b(), &[STABLELM_12B], 1);
    assert_eq!(scope(&config), Some((QkNormScope::PerHeadOwnWeight, NormKind::LayerNoBias)));
    assert_eq!(config.block.topology, BlockTopology::ParallelSharedNorm);

    let config = llama_shaped("cohere", 2, json!({"use_qk_norm": true}));
    let config = complete(config, &[PROJECTIONS, COHERE_NORMS, COHERE_QK_NORMS], 2);
    assert_eq!(scope(&config), Some((QkNormScope::PerHeadOwnWeight, NormKind::LayerNoBias)));

    let phi = complete(llama_shaped("phi", 2, json!({"qk_layernorm": true})), &[PHI_WITH_QK_NORMS], 2);
    assert_eq!(scope(&phi), Some((QkNormScope::PerHead, NormKind::Layer)));
    assert!(phi.head.expect("a head").bias);

    let olmo2 =
        complete(llama_shaped("olmo2", 2, json!({"tie_word_embeddings": true})), &[PROJECTIONS, OLMO2_NORMS], 2);
    assert_eq!(scope(&olmo2), Some((QkNormScope::FullWidth, NormKind::Rms)));
}

fn windows(config: &ModelConfig) -> Vec<(Option<usize>, LayerRotary)> {
    config.layer_patterns().iter().map(|LayerPattern { window, rotary, .. }| (*window, *rotary)).collect()
}

#[test]
fn families_differ_in_which_layers_slide_and_turn() {
    let tied = json!({"tie_word_embeddings": true});
    let (slides, sees_all) = ((Some(4096), LayerRotary::Local), (None, LayerRotary::Global));
    let olmo3 = llama_shaped(
        "olmo3",
        5,
        with(
            tied.clone(),
            json!({
                "rope_theta": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 2},
            }),
        ),
    );
    let config = complete(olmo3, &[PROJECTIONS, OLMO2_NORMS], 5);
    assert_eq!(windows(&config), [slides, slides, slides, sees_all, slides]);
    let Positions::Rotary(rotary) = config.positions else { panic!("{:?}", config.positions) };
    let local = rotary.local.expect("a rotation of sliding layers");
    assert_eq!((rotary.global.theta, rotary.global.scaling), (7.0, RotaryScaling::Linear { factor: 2.0 }));
    assert_eq!((local.theta, local.scaling), (500_000.0, RotaryScaling::None));

    let config = complete(llama_shaped("cohere2", 5, json!({})), &[PROJECTIONS, COHERE_NORMS], 5);
    let (slides, sees_all) = ((Some(4096), LayerRotary::Global), (None, LayerRotary::None));
    assert_eq!(windows(&config), [slides, slides, slides, sees_all, slides]);
    let Positions::Rotary(rotary) = config.positions else { panic!("{:?}", config.positions) };
    assert_eq!((rotary.global.theta, rotary.global.style), (10_000.0, RotaryStyle::Interleaved));

    let config = complete(llama_shaped("smollm3", 4, json!({})), &[PROJECTIONS, PRE_NORMS], 4);
    let (turns, rests) = ((None, LayerRotary::Global), (None, LayerRotary::None));
    assert_eq!(windows(&config), [turns, turns, turns, rests]);
    let listed = llama_shaped("smollm3", 2, json!({"no_rope_layers": [0, 1]}));
    assert_eq!(windows(&complete(listed, &[PROJECTIONS, PRE_NORMS], 2)), [rests, turns]);

    // Qwen has the keys of a window in nearly every file, and uses it in nearly none.
    let qwen = json!({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 5});
    let config = Changed::old("qwen2").config(|config| *config = with(config.clone(), qwen)).model_config();
    assert_eq!(windows(&config.expect("valid")), [(None, LayerRotary::Global), (Some(5), LayerRotary::Global)]);
    let off = Changed::old("qwen2").with("sliding_window", 5).model_config().expect("valid");
    assert_eq!(off.layers, [LayerPattern::default()]);
    let listed = Changed::old("mistral").with("layer_types", json!(["full_attention", "sliding_attention"]));
    assert_eq!(
        windows(&listed.model_config().expect("valid")),
        [(None, LayerRotary::Global), (Some(4), LayerRotary::Global)]
    );
}

#[test]
fn families_with_factors_and_norms_of_their_own() {
    let granite = llama_shaped(
        "granite",
        1,
        json!({
            "tie_word_embeddings": true, "embedding_multiplier": 12.0, "attention_multiplier": 0.5,
            "residual_multiplier": 0.25, "logits_scaling": 8,
        }),
    );
    let config = complete(granite, &[PROJECTIONS, PRE_NORMS], 1);
    assert_eq!(config.embedding.as_ref().expect("an embedding").scale, EmbeddingScale::Constant(12.0));
    assert_eq!((config.attention.scale, config.block.residual_multiplier), (None, 0.25), "1/√4 is the default");
    assert_eq!(config.head.expect("a head").scale, 0.125);

    let olmo = llama_shaped("olmo", 1, json!({"tie_word_embeddings": true, "clip_qkv": 8.0}));
    let config = complete(olmo, &[PROJECTIONS], 1);
    assert_eq!((config.norm.kind, config.norm.eps), (NormKind::LayerNoAffine, 1e-5));
    assert_eq!(config.attention.clip_qkv, Some(8.0));

    let config = complete(llama_shaped("nemotron", 1, json!({})), &[NEMOTRON], 1);
    let network = config.feed_forward.expect("a network");
    assert_eq!(
        (network.activation, network.gated, config.norm.kind),
        (Activation::ReluSquared, false, NormKind::LayerPlusOne)
    );
    let Positions::Rotary(rotary) = config.positions else { panic!("{:?}", config.positions) };
    assert_eq!(rotary.global.fraction, 0.5);
}

#[test]
fn longrope_takes_the_length_at_top_level() {
    let lists = json!({"type": "su", "short_factor": [1.0, 2.0], "long_factor": [3, 4]});
    let keys = json!({"rope_scaling": lists, "original_max_position_embeddings": 6, "max_position_embeddings": 24});
    let config = Changed::old("phi3").config(|config| *config = with(config.clone(), keys)).model_config();
    let Positions::Rotary(rotary) = config.expect("valid").positions else { panic!("no rotary positions") };
    let want = RotaryScaling::Longrope {
        short_factor: vec![1.0, 2.0],
        long_factor: vec![3.0, 4.0],
        original_max_seq_len: 6,
        max_seq_len: 24,
        factor: None,
        attention_factor: None,
    };
    assert_eq!(rotary.global.scaling, want);
}
