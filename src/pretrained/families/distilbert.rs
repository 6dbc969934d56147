//! DistilBERT.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::bert::{encoder, masked_language_head};
use super::plain::{Sizes, set_network};
use crate::activation::Activation;
use crate::model::ModelConfig;

pub(super) const DISTILBERT: Family = Family {
    model_types: &["distilbert"],
    config: distilbert,
    rules: names,
    // The table of positions is in the file however it was first filled.
    harmless: &["sinusoidal_pos_embds", "tie_weights_", "output_past"],
};

const SIZES: Sizes = Sizes { vocab_size: 30_522, d_model: 768, n_layers: 6, n_heads: 12, max_seq_len: 512 };

/// Half of BERT's layers, and neither token types nor a pooler.
fn distilbert(hf: &mut HfConfig) -> ModelConfig {
    hf.alias("hidden_size", "dim");
    hf.alias("num_hidden_layers", "n_layers");
    hf.alias("num_attention_heads", "n_heads");
    let mut config = encoder(hf, &SIZES);
    let activation = activation(hf, "activation", Activation::Gelu);
    let d_ff = hf.size("hidden_dim", 3072);
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff;
    });
    config.head = Some(masked_language_head(activation));
    config
}

fn names() -> Rules {
    Rules::new(&[
        ("embedding.tokens", "embeddings.word_embeddings.weight"),
        ("embedding.positions", "embeddings.position_embeddings.weight"),
        ("embedding.norm", "embeddings.LayerNorm"),
        ("layers.N.attention.query", "transformer.layer.N.attention.q_lin"),
        ("layers.N.attention.key", "transformer.layer.N.attention.k_lin"),
        ("layers.N.attention.value", "transformer.layer.N.attention.v_lin"),
        ("layers.N.attention.output", "transformer.layer.N.attention.out_lin"),
        ("layers.N.attention_norm.post", "transformer.layer.N.sa_layer_norm"),
        ("layers.N.feed_forward.up", "transformer.layer.N.ffn.lin1"),
        ("layers.N.feed_forward.down", "transformer.layer.N.ffn.lin2"),
        ("layers.N.feed_forward_norm.post", "transformer.layer.N.output_layer_norm"),
    ])
    .with_roots(&[
        ("head.dense", "vocab_transform"),
        ("head.norm", "vocab_layer_norm"),
        ("head.weight", "vocab_projector.weight"),
        ("head.bias", "vocab_projector.bias"),
    ])
}
