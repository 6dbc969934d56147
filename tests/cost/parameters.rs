//! Parameters by part, against the modules that are built from the same configurations.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burnformer::activation::Activation;
use burnformer::attention::MultiHeadAttentionConfig;
use burnformer::cost::Parameters;
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::mixture_of_experts::{MixtureOfExpertsConfig, SharedExpertConfig};
use burnformer::model::{LayerPattern, ModelConfig, ModelKind, preset_names};
use burnformer::positions::{LearnedPositions, Positions};
use burnformer::task_head::{TaskHeadConfig, TaskInput};
use burnformer::transformer_block::{BlockLayout, NormPlacement};

use crate::common::{checkpoint_folder, flex};
use crate::{checkpoint_config, hub_config, preset, shrunk, torch_counts};

/// How many parameters of a built module belong to which part, told by their names.
fn counted(config: &ModelConfig) -> BTreeMap<&'static str, u64> {
    #[derive(Default)]
    struct Count {
        path: Vec<String>,
        found: BTreeMap<&'static str, u64>,
    }
    impl ModuleVisitor for Count {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            *self.found.entry(part_of(&self.path)).or_default() += param.lazy_shape().num_elements() as u64;
        }
    }
    let mut count = Count::default();
    config.init(&flex()).visit(&mut count);
    count.found
}

fn part_of(path: &[String]) -> &'static str {
    let has = |name: &str| path.iter().any(|part| part == name);
    let is_norm = |part: &String| part == "norm" || part.ends_with("_norm");
    match () {
        () if path.iter().any(is_norm) => "norms",
        () if has("relative_bias") => "relative bias",
        () if has("cross_attention") => "cross-attention",
        () if has("attention") => "self-attention",
        () if has("experts") => "experts",
        () if has("router") || has("shared_gate") => "router",
        () if has("shared") => "shared",
        () if has("feed_forward") => "dense",
        () if has("project_in") => "projection in",
        () if has("project_out") => "projection out",
        () if has("pooler") => "pooler",
        () if has("task") => "task",
        () if has("head") && has("dense") => "transform",
        () if has("head") => "logits",
        () if has("positions") => "positions",
        () if has("types") => "types",
        () if has("patches") => "patches",
        () if has("tokens") => "tokens",
        () => panic!("{path:?} belongs to no part"),
    }
}

#[track_caller]
fn assert_parts(name: &str, config: &ModelConfig) {
    let parameters = Parameters::of(config);
    let Parameters { embedding, attention, feed_forward, head, .. } = &parameters;
    let parts = [
        ("norms", parameters.norms),
        ("relative bias", attention.relative_bias),
        ("cross-attention", attention.cross_attention),
        ("self-attention", attention.self_attention),
        ("experts", feed_forward.experts),
        ("router", feed_forward.router),
        ("shared", feed_forward.shared),
        ("dense", feed_forward.dense),
        ("projection in", embedding.projection),
        ("projection out", head.projection),
        ("pooler", head.pooler),
        ("task", head.task),
        ("transform", head.transform),
        ("logits", head.logits),
        ("positions", embedding.positions),
        ("types", embedding.types),
        ("patches", embedding.patches),
        ("tokens", embedding.tokens),
    ];
    let parts: BTreeMap<&str, u64> = parts.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(parts, counted(config), "{name}");
    assert_eq!(parts.values().sum::<u64>(), parameters.total, "{name}: the parts make up the whole");
    let sums = embedding.total + attention.total + feed_forward.total + parameters.norms + head.total;
    assert_eq!(sums, parameters.total, "{name}: the sums make up the whole");
    assert_eq!(parameters.total, config.n_parameters(), "{name}");
}

#[test]
fn parts_are_those_of_the_built_module() {
    for name in preset_names() {
        assert_parts(name, &shrunk(name));
    }
    for name in checkpoint_names() {
        assert_parts(&name, &checkpoint_config(&name));
    }
}

fn checkpoint_names() -> Vec<String> {
    let folder = checkpoint_folder("");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.map(|entry| entry.expect("the folder can be read").file_name());
    names.map(|name| name.into_string().expect("UTF-8")).collect()
}

#[test]
fn parts_that_no_published_model_has_together() {
    let attention = || MultiHeadAttentionConfig::new(24, 4).with_n_kv_heads(2);
    let feed_forward = || FeedForwardConfig::new(24, 20).with_gated(true);
    let learned = Positions::Learned(LearnedPositions { offset: 2, padding_id: None });

    // A table of another width, with projections, a head with everything, and a task head that reads every token.
    let projected = ModelConfig::new(ModelKind::Encoder, 2, 16, attention(), feed_forward())
        .with_embedding(EmbeddingConfig::new(30).with_d_embedding(10).with_n_types(3).with_norm(true))
        .with_positions(learned.clone())
        .with_final_norm(true)
        .with_head(HeadConfig::new(false).with_bias(true).with_transform(Activation::Gelu))
        .with_task(TaskHeadConfig::new(TaskInput::EveryToken, 7).with_transform(Activation::Tanh))
        .with_block(BlockLayout::new(NormPlacement::Sandwich));
    assert_parts("projected", &projected);
    // A task head that reads the pooler, behind the same projection.
    let pooled = projected.clone().with_pooler(true).with_task(TaskHeadConfig::new(TaskInput::Pooled, 7));
    assert_parts("pooled", &pooled);

    // A mixture in some layers only, with a shared expert that is gated.
    let expert = FeedForwardConfig::new(24, 12).with_gated(true).with_bias(false);
    let shared = SharedExpertConfig { expert: FeedForwardConfig::new(24, 18), gated: true };
    let mut mixed = ModelConfig::new(ModelKind::Decoder, 5, 16, attention(), feed_forward())
        .with_mixture(MixtureOfExpertsConfig::new(expert, 4, 2).with_shared(shared))
        .with_layers(vec![
            LayerPattern { dense: true, ..LayerPattern::default() },
            LayerPattern { window: Some(3), repeat: 2, ..LayerPattern::default() },
        ]);
    mixed.feed_forward = Some(feed_forward());
    assert_parts("mixed", &mixed);
    let parameters = Parameters::of(&mixed);
    // Three layers of four experts, of which a token passes through two; two layers are dense.
    let expert = 3 * 24 * 12;
    assert_eq!(parameters.feed_forward.experts, 3 * 4 * expert);
    assert_eq!(parameters.feed_forward.active_experts, 3 * 2 * expert);
    assert_eq!(parameters.active, parameters.total - 3 * 2 * expert);

    // An encoder of other sizes than the decoder that reads it.
    let encoder = ModelConfig::new(ModelKind::Encoder, 3, 16, MultiHeadAttentionConfig::new(24, 6), feed_forward());
    let both = ModelConfig::new(ModelKind::Decoder, 2, 16, attention(), feed_forward())
        .with_embedding(EmbeddingConfig::new(30))
        .with_encoder(encoder.clone().with_final_norm(true));
    assert_parts("encoder and decoder", &both);
    let of_encoder = Parameters::of(&both).encoder.expect("there is an encoder");
    assert_eq!(of_encoder.total, encoder.with_final_norm(true).n_parameters());
}

/// Worked out by hand from the sizes in the papers.
#[test]
fn published_models_have_their_parts() {
    let gpt2 = Parameters::of(&preset("gpt2"));
    assert_eq!(gpt2.embedding.tokens, 50_257 * 768);
    assert_eq!(gpt2.embedding.positions, 1024 * 768);
    assert_eq!(gpt2.attention.total, 12 * (4 * 768 * 768 + 4 * 768));
    assert_eq!(gpt2.feed_forward.total, 12 * (2 * 768 * 3072 + 3072 + 768));
    assert_eq!(gpt2.norms, 25 * 2 * 768);
    assert_eq!(gpt2.head.total, 0, "the head is the token table");
    assert_eq!(gpt2.without_embeddings, 85_056_000);
    let share = 28_348_416.0 / 124_439_808.0;
    assert!((gpt2.attention_share - share).abs() < 1e-12, "{}", gpt2.attention_share);

    let classic = Parameters::of(&preset("classic-block"));
    assert_eq!(classic.attention.total + classic.feed_forward.total, 12 * 4096 * 4096);
    assert_eq!(classic.attention.total, 67_108_864);

    // The model card gives 12.9 billion.
    let mixtral = Parameters::of(&preset("mixtral-8x7b"));
    assert_eq!(mixtral.active, 12_879_925_248);
    // The model card gives 30.5 billion, of which 3.3 are active.
    let qwen = Parameters::of(&preset("qwen3-30b-a3b"));
    assert_eq!(qwen.active, 3_353_032_704);
    assert_eq!(qwen.active, qwen.total - 48 * (128 - 8) * 3 * 2048 * 768);
    let llama = Parameters::of(&preset("llama-2-7b"));
    assert_eq!(llama.head.logits, 32_000 * 4096);
    assert_eq!(llama.without_embeddings, llama.total - 32_000 * 4096, "a head of its own stays");
}

/// transformers' models of the same configurations.
#[test]
fn counts_are_those_of_transformers() {
    let torch = torch_counts();
    for (name, counts) in torch["configs"].as_object().expect("an object") {
        let parameters = Parameters::of(&hub_config(&counts["config"]));
        assert_eq!(counts["parameters"], parameters.total, "{name}");
    }
    for (name, counts) in torch["checkpoints"].as_object().expect("an object") {
        assert_eq!(counts["parameters"], Parameters::of(&checkpoint_config(name)).total, "{name}");
    }
    // Those of a public report.
    for (name, total) in [
        ("llama_gqa", 4944),
        ("mistral_window", 5968),
        ("gemma2_softcap", 6032),
        ("gpt2_square", 7616),
        ("gptneox_rot25", 17_120),
        ("qwen3_headdim8", 6000),
    ] {
        assert_eq!(torch["configs"][name]["parameters"], total, "{name}");
    }
}
