//! Which keys of a `config.json` have no bearing on what a model computes.

use serde_json::Value;

/// Whether a key that nothing has read could change what the model computes.
///
/// Values that switch something off cannot. Objects are taken for notes of some program unless they are known: what
/// models compute with stands beside the other numbers of a config.
pub(super) fn may_matter(key: &str, value: &Value) -> bool {
    match value {
        _ if is_harmless(key) => false,
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(keys) => !keys.is_empty() && (OBJECTS.contains(&key) || is_quantization(key)),
    }
}

/// Objects that change what a model computes.
const OBJECTS: &[&str] = &[
    "attn_config",
    "ffn_config",
    "full_attention",
    "moe_config",
    "pruned_heads",
    "rope_parameters",
    "rope_scaling",
    "sliding_attention",
    "ssm_cfg",
];

/// Whether a key describes quantised weights.
pub(super) fn is_quantization(key: &str) -> bool {
    QUANTIZED.contains(&key)
}

const QUANTIZED: &[&str] = &["quantization_config", "quantization", "compression_config"];

/// Whether a key has no bearing on the outputs of any model, given the same tokens.
fn is_harmless(key: &str) -> bool {
    let is_private = key.starts_with('_');
    let is_dropout = key.contains("dropout") || key.ends_with("_pdrop") || key == "layerdrop";
    is_private || is_dropout || HARMLESS.contains(&key)
}

/// Keys about training, generation, tokens, labels, and how and by what a file was written.
const HARMLESS: &[&str] = &[
    // What and whose it is.
    "architectures",
    "auto_map",
    "language",
    "license",
    "model_type",
    "name_or_path",
    "transformers_version",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "torch_dtype",
    "dtype",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    // What its family is in any case.
    "is_decoder",
    // How it runs.
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "flash_attn",
    "fused_dense",
    "fused_rotary",
    "gradient_checkpointing",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "pretraining_tp",
    "return_dict",
    "use_cache",
    "use_flash_attention",
    "use_flash_attn",
    "use_memory_efficient_attention",
    // Training.
    "embedding_size_multiple",
    "init_device",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "router_aux_loss_coef",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "z_loss_coefficient",
    // Tokens.
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "mask_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "tokenizer_class",
    "model_max_length",
    "prefix",
    // Generation.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // Labels of other heads.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
];
