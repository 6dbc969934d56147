//! The architectures of GGUF files: what each calls the keys of a `config.json` and the tensors of a checkpoint.
//!
//! To add one: list what differs from [`LLAMA_NAMES`] and [`DECODER`], and add a tiny file to the fixtures. What its
//! writers change in the numbers is in [`Change`].

use super::config::{Key, Rope, number, optional_number, optional_size, size};
use super::names::Change;
use crate::error::nearest;

/// A value of `general.architecture`.
pub(super) struct Architecture {
    pub name: &'static str,
    /// The `model_type` of the family, and the class that transformers has for it.
    pub model_type: &'static str,
    pub class: &'static str,
    /// Keys of the header and what they are called in a `config.json`.
    pub keys: &'static [&'static [Key]],
    pub rope: Rope,
    /// What no key of the header says.
    pub implied: &'static [Implied],
    /// Tensors without `.weight` and `.bias`, in the file and in a checkpoint; the last table that has a name counts.
    pub names: &'static [&'static [(&'static str, &'static str)]],
    /// What is different about the numbers of tensors.
    pub changes: &'static [(&'static str, Change)],
    /// Keys that change no outputs.
    pub harmless: &'static [&'static str],
}

/// What follows from something else than a key.
#[derive(Clone, Copy)]
pub(super) enum Implied {
    /// Always this text.
    Text(&'static str, &'static str),
    /// Whether the file has this tensor.
    IfTensor(&'static str, &'static str),
    /// Whether the file lacks this tensor.
    UnlessTensor(&'static str, &'static str),
    /// What the scores are divided by is the width of a head, except in the largest model, which has this many layers:
    /// there it is the model's width per head.
    GemmaScale { largest: usize },
}

pub(super) const ARCHITECTURES: &[&Architecture] =
    &[&LLAMA, &QWEN2, &QWEN3, &GEMMA, &GEMMA2, &GEMMA3, &GPT2, &PHI3, &STARCODER2, &STABLELM, &NEMOTRON, &BLOOM];

/// The architecture of that name, or what is wrong with the name.
pub(super) fn find(name: &str) -> Result<&'static Architecture, String> {
    let known = || ARCHITECTURES.iter().map(|architecture| architecture.name);
    if let Some(found) = ARCHITECTURES.iter().find(|architecture| architecture.name == name) {
        return Ok(found);
    }
    let advice = match nearest(name, known()) {
        // Numbered names are near each other and stand for different models.
        Some(near) if !name.starts_with(near) => format!(", did you mean `{near}`?"),
        _ => String::new(),
    };
    Err(format!("`{name}` is not supported{advice}; supported are {}", known().collect::<Vec<_>>().join(", ")))
}

/// Keys of a decoder.
const DECODER: &[Key] = &[
    size("context_length", "max_position_embeddings"),
    size("embedding_length", "hidden_size"),
    size("block_count", "num_hidden_layers"),
    size("feed_forward_length", "intermediate_size"),
    size("attention.head_count", "num_attention_heads"),
    optional_size("attention.key_length", "head_dim"),
];

const RMS_NORM: &[Key] = &[number("attention.layer_norm_rms_epsilon", "rms_norm_eps")];

const LLAMA_NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("blk.N.attn_norm", "model.layers.N.input_layernorm"),
    ("blk.N.attn_q", "model.layers.N.self_attn.q_proj"),
    ("blk.N.attn_k", "model.layers.N.self_attn.k_proj"),
    ("blk.N.attn_v", "model.layers.N.self_attn.v_proj"),
    ("blk.N.attn_output", "model.layers.N.self_attn.o_proj"),
    ("blk.N.ffn_norm", "model.layers.N.post_attention_layernorm"),
    ("blk.N.ffn_gate", "model.layers.N.mlp.gate_proj"),
    ("blk.N.ffn_up", "model.layers.N.mlp.up_proj"),
    ("blk.N.ffn_down", "model.layers.N.mlp.down_proj"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

const QK_NORMS: &[(&str, &str)] = &[
    ("blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"),
    ("blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"),
];

const SANDWICH_NORMS: &[(&str, &str)] = &[
    ("blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"),
    ("blk.N.ffn_norm", "model.layers.N.pre_feedforward_layernorm"),
    ("blk.N.post_ffw_norm", "model.layers.N.post_feedforward_layernorm"),
];

/// Norms whose weights the file gives with the 1 that the model adds to them.
const NORMS_PLUS_ONE: &[(&str, Change)] = &[
    ("blk.N.attn_norm", Change::PlusOne),
    ("blk.N.attn_q_norm", Change::PlusOne),
    ("blk.N.attn_k_norm", Change::PlusOne),
    ("blk.N.post_attention_norm", Change::PlusOne),
    ("blk.N.ffn_norm", Change::PlusOne),
    ("blk.N.post_ffw_norm", Change::PlusOne),
    ("output_norm", Change::PlusOne),
];

/// The network as it was before gates.
const PLAIN_NETWORK: &[(&str, &str)] =
    &[("blk.N.ffn_up", "model.layers.N.mlp.c_fc"), ("blk.N.ffn_down", "model.layers.N.mlp.c_proj")];

const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    keys: &[DECODER, RMS_NORM],
    rope: Rope::Whole,
    implied: &[
        Implied::IfTensor("attention_bias", "blk.0.attn_output.bias"),
        Implied::IfTensor("mlp_bias", "blk.0.ffn_down.bias"),
    ],
    names: &[LLAMA_NAMES],
    changes: &[("blk.N.attn_q", Change::InterleavedQueries), ("blk.N.attn_k", Change::InterleavedKeys)],
    harmless: &[],
};

const QWEN2: Architecture =
    Architecture { name: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", implied: &[], changes: &[], ..LLAMA };

const QWEN3: Architecture = Architecture {
    name: "qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    implied: &[Implied::IfTensor("attention_bias", "blk.0.attn_output.bias")],
    names: &[LLAMA_NAMES, QK_NORMS],
    ..QWEN2
};

const GEMMA: Architecture = Architecture {
    name: "gemma",
    model_type: "gemma",
    class: "GemmaForCausalLM",
    implied: &[Implied::Text("hidden_activation", "gelu_pytorch_tanh")],
    changes: NORMS_PLUS_ONE,
    ..QWEN2
};

const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    keys: &[
        DECODER,
        RMS_NORM,
        &[
            number("attn_logit_softcapping", "attn_logit_softcapping"),
            number("final_logit_softcapping", "final_logit_softcapping"),
            size("attention.sliding_window", "sliding_window"),
        ],
    ],
    implied: &[Implied::Text("hidden_activation", "gelu_pytorch_tanh"), Implied::GemmaScale { largest: 46 }],
    names: &[LLAMA_NAMES, SANDWICH_NORMS],
    ..GEMMA
};

const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    keys: &[
        DECODER,
        RMS_NORM,
        &[
            optional_number("final_logit_softcapping", "final_logit_softcapping"),
            size("attention.sliding_window", "sliding_window"),
            optional_size("attention.sliding_window_pattern", "sliding_window_pattern"),
        ],
    ],
    rope: Rope::WithLocal { key: "rope_local_base_freq" },
    implied: &[Implied::Text("hidden_activation", "gelu_pytorch_tanh"), Implied::GemmaScale { largest: 62 }],
    names: &[LLAMA_NAMES, SANDWICH_NORMS, QK_NORMS],
    ..GEMMA
};

const GPT2: Architecture = Architecture {
    name: "gpt2",
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    keys: &[&[
        size("context_length", "n_positions"),
        size("embedding_length", "n_embd"),
        size("block_count", "n_layer"),
        size("attention.head_count", "n_head"),
        optional_size("feed_forward_length", "n_inner"),
        number("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ]],
    rope: Rope::None,
    implied: &[],
    names: &[&[
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("blk.N.attn_norm", "transformer.h.N.ln_1"),
        ("blk.N.attn_qkv", "transformer.h.N.attn.c_attn"),
        ("blk.N.attn_output", "transformer.h.N.attn.c_proj"),
        ("blk.N.ffn_norm", "transformer.h.N.ln_2"),
        ("blk.N.ffn_up", "transformer.h.N.mlp.c_fc"),
        ("blk.N.ffn_down", "transformer.h.N.mlp.c_proj"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ]],
    changes: &[
        ("blk.N.attn_qkv", Change::Transposed),
        ("blk.N.attn_output", Change::Transposed),
        ("blk.N.ffn_up", Change::Transposed),
        ("blk.N.ffn_down", Change::Transposed),
    ],
    harmless: &[],
};

const PHI3: Architecture = Architecture {
    name: "phi3",
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    keys: &[DECODER, RMS_NORM, &[optional_size("attention.sliding_window", "sliding_window")]],
    rope: Rope::Partial,
    names: &[
        LLAMA_NAMES,
        &[("blk.N.attn_qkv", "model.layers.N.self_attn.qkv_proj"), ("blk.N.ffn_up", "model.layers.N.mlp.gate_up_proj")],
    ],
    ..QWEN2
};

const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    model_type: "starcoder2",
    class: "Starcoder2ForCausalLM",
    keys: &[DECODER, &[number("attention.layer_norm_epsilon", "norm_epsilon")]],
    implied: &[Implied::IfTensor("use_bias", "blk.0.attn_output.bias")],
    names: &[LLAMA_NAMES, PLAIN_NETWORK],
    ..QWEN2
};

const STABLELM: Architecture = Architecture {
    name: "stablelm",
    model_type: "stablelm",
    class: "StableLmForCausalLM",
    keys: &[DECODER, &[number("attention.layer_norm_epsilon", "layer_norm_eps")]],
    rope: Rope::Partial,
    implied: &[
        Implied::IfTensor("use_qkv_bias", "blk.0.attn_q.bias"),
        Implied::UnlessTensor("use_parallel_residual", "blk.0.ffn_norm.weight"),
    ],
    // Other programs tell it from the norm, too.
    harmless: &["use_parallel_residual"],
    ..QWEN2
};

const NEMOTRON: Architecture = Architecture {
    name: "nemotron",
    model_type: "nemotron",
    class: "NemotronForCausalLM",
    keys: &[DECODER, &[number("attention.layer_norm_epsilon", "norm_eps")]],
    rope: Rope::Partial,
    changes: NORMS_PLUS_ONE,
    ..QWEN2
};

const BLOOM: Architecture = Architecture {
    name: "bloom",
    model_type: "bloom",
    class: "BloomForCausalLM",
    keys: &[&[
        size("context_length", "seq_length"),
        size("embedding_length", "hidden_size"),
        size("block_count", "n_layer"),
        size("attention.head_count", "n_head"),
        number("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ]],
    rope: Rope::None,
    names: &[&[
        ("token_embd", "transformer.word_embeddings"),
        ("token_embd_norm", "transformer.word_embeddings_layernorm"),
        ("blk.N.attn_norm", "transformer.h.N.input_layernorm"),
        ("blk.N.attn_qkv", "transformer.h.N.self_attention.query_key_value"),
        ("blk.N.attn_output", "transformer.h.N.self_attention.dense"),
        ("blk.N.ffn_norm", "transformer.h.N.post_attention_layernorm"),
        ("blk.N.ffn_up", "transformer.h.N.mlp.dense_h_to_4h"),
        ("blk.N.ffn_down", "transformer.h.N.mlp.dense_4h_to_h"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ]],
    changes: &[("blk.N.attn_qkv", Change::StackedProjections)],
    // Four times the width in every model.
    harmless: &["feed_forward_length"],
    ..QWEN2
};
