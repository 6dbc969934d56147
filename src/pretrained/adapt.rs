//! Fits a configuration to a checkpoint: published configs do not say which heads a file holds, and some say it wrongly.
//! What is in the file counts, as it does in transformers; what a configuration asks for and the file lacks is an error
//! when the weights are loaded.

use super::hf_layers::compressed;
use super::rules::BoundRules;
use crate::model::ModelConfig;

/// Fits `config`, which has everything its family can have, to the tensors for which `is_there` knows the names. The
/// matrix of a tied head, where it is stored, `is_copy` of the token table or not.
pub(super) fn to_tensors(
    config: &mut ModelConfig,
    rules: &BoundRules,
    architecture: Option<&str>,
    is_copy: bool,
    is_there: impl Fn(&str) -> bool,
) {
    let has = |path: &str| rules.names(path).iter().any(|name| is_there(name));
    config.pooler &= has("pooler.dense.weight");
    let has_matrix = has("head.weight");
    if let Some(head) = &mut config.head {
        // A stored matrix wins over the token table, whatever the config says about tying.
        head.tied &= !has_matrix || is_copy;
        head.bias |= has("head.bias");
        let is_whole = match head.transform {
            Some(_) => has("head.dense.weight"),
            None => has_matrix || !architecture.is_some_and(has_no_head),
        };
        if !is_whole {
            config.head = None;
        }
    }
    let bias = &mut config.attention.bias;
    for (flag, path) in [
        (&mut bias.query, "layers.0.attention.query.bias"),
        (&mut bias.key, "layers.0.attention.key.bias"),
        (&mut bias.value, "layers.0.attention.value.bias"),
        (&mut bias.output, "layers.0.attention.output.bias"),
    ] {
        *flag |= has(path);
    }
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.bias |= has("layers.0.feed_forward.down.bias");
    }
}

/// Leaves out what says no more than the defaults do, so that two spellings of a configuration become one.
pub(super) fn tidy(config: &mut ModelConfig) {
    let d_model = config.d_model;
    let default_d_head =
        d_model.checked_div(config.attention.n_heads).filter(|d| d * config.attention.n_heads == d_model);
    let attention = &mut config.attention;
    attention.d_head = attention.d_head.filter(|d_head| Some(*d_head) != default_d_head);
    attention.n_kv_heads = attention.n_kv_heads.filter(|n_kv_heads| *n_kv_heads != attention.n_heads);
    let d_head = attention.d_head.or(default_d_head).unwrap_or(1);
    attention.scale = attention.scale.filter(|scale| *scale != (d_head as f64).sqrt().recip());
    // Widths of parts are the model's where they are left out.
    attention.d_model = 0;
    if let Some(feed_forward) = &mut config.feed_forward {
        feed_forward.d_model = 0;
    }
    if let Some(mixture) = &mut config.mixture {
        (mixture.d_model, mixture.expert.d_model) = (0, 0);
        if let Some(shared) = &mut mixture.shared {
            shared.expert.d_model = 0;
        }
    }
    if let Some(embedding) = &mut config.embedding {
        embedding.d_embedding = embedding.d_embedding.filter(|d_embedding| *d_embedding != d_model);
    }
    config.layers = compressed(&config.layers);
    if let Some(encoder) = &mut config.encoder {
        tidy(encoder);
    }
}

/// Fits `config`, which has everything its family can have, to the name of a transformers class.
pub(super) fn to_architecture(config: &mut ModelConfig, architecture: Option<&str>) {
    let Some(name) = architecture else { return };
    let predicts_masks = name.contains("MaskedLM") || name.contains("PreTraining") || name.contains("LMHead");
    let is_masked = config.head.as_ref().is_some_and(|head| head.transform.is_some());
    if is_masked && !predicts_masks || has_no_head(name) {
        config.head = None;
    }
    config.pooler &= !predicts_masks || name.contains("PreTraining");
}

/// Whether a transformers class has no language-model head.
fn has_no_head(architecture: &str) -> bool {
    let is_bare = architecture.ends_with("Model") && !architecture.contains("Head");
    is_bare || ["Classification", "QuestionAnswering"].iter().any(|task| architecture.contains(task))
}
