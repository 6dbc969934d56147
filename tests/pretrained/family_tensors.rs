//! The tensors that transformers writes for families without a fixture, one per line: name, then shape. `N` stands for
//! the number of a layer.

use std::collections::BTreeMap;

use crate::common::Array;

pub const FALCON_40B: &str = "
    transformer.ln_f.bias 16
    transformer.ln_f.weight 16
    transformer.word_embeddings.weight 9 16
    transformer.h.N.ln_attn.bias 16
    transformer.h.N.ln_attn.weight 16
    transformer.h.N.ln_mlp.bias 16
    transformer.h.N.ln_mlp.weight 16
    transformer.h.N.mlp.dense_4h_to_h.weight 16 64
    transformer.h.N.mlp.dense_h_to_4h.weight 64 16
    transformer.h.N.self_attention.dense.weight 16 16
    transformer.h.N.self_attention.query_key_value.weight 32 16";

pub const FALCON_11B: &str = "
    lm_head.weight 9 16
    transformer.ln_f.bias 16
    transformer.ln_f.weight 16
    transformer.word_embeddings.weight 9 16
    transformer.h.N.input_layernorm.bias 16
    transformer.h.N.input_layernorm.weight 16
    transformer.h.N.mlp.dense_4h_to_h.weight 16 40
    transformer.h.N.mlp.dense_h_to_4h.weight 40 16
    transformer.h.N.self_attention.dense.weight 16 16
    transformer.h.N.self_attention.query_key_value.weight 32 16";

pub const FALCON_RW: &str = "
    transformer.ln_f.bias 16
    transformer.ln_f.weight 16
    transformer.word_embeddings.weight 9 16
    transformer.h.N.input_layernorm.bias 16
    transformer.h.N.input_layernorm.weight 16
    transformer.h.N.mlp.dense_4h_to_h.bias 16
    transformer.h.N.mlp.dense_4h_to_h.weight 16 64
    transformer.h.N.mlp.dense_h_to_4h.bias 64
    transformer.h.N.mlp.dense_h_to_4h.weight 64 16
    transformer.h.N.post_attention_layernorm.bias 16
    transformer.h.N.post_attention_layernorm.weight 16
    transformer.h.N.self_attention.dense.bias 16
    transformer.h.N.self_attention.dense.weight 16 16
    transformer.h.N.self_attention.query_key_value.bias 48
    transformer.h.N.self_attention.query_key_value.weight 48 16";

pub const STABLELM_12B: &str = "
    lm_head.weight 9 16
    model.embed_tokens.weight 9 16
    model.norm.bias 16
    model.norm.weight 16
    model.layers.N.input_layernorm.bias 16
    model.layers.N.input_layernorm.weight 16
    model.layers.N.mlp.down_proj.weight 16 20
    model.layers.N.mlp.gate_proj.weight 20 16
    model.layers.N.mlp.up_proj.weight 20 16
    model.layers.N.self_attn.k_layernorm.norms.0.weight 4
    model.layers.N.self_attn.k_layernorm.norms.1.weight 4
    model.layers.N.self_attn.q_layernorm.norms.0.weight 4
    model.layers.N.self_attn.q_layernorm.norms.1.weight 4
    model.layers.N.self_attn.q_layernorm.norms.2.weight 4
    model.layers.N.self_attn.q_layernorm.norms.3.weight 4
    model.layers.N.self_attn.k_proj.bias 8
    model.layers.N.self_attn.k_proj.weight 8 16
    model.layers.N.self_attn.o_proj.weight 16 16
    model.layers.N.self_attn.q_proj.bias 16
    model.layers.N.self_attn.q_proj.weight 16 16
    model.layers.N.self_attn.v_proj.bias 8
    model.layers.N.self_attn.v_proj.weight 8 16";

pub const OPT_350M: &str = "
    model.decoder.embed_positions.weight 14 16
    model.decoder.embed_tokens.weight 9 8
    model.decoder.project_in.weight 16 8
    model.decoder.project_out.weight 8 16
    model.decoder.layers.N.fc1.bias 20
    model.decoder.layers.N.fc1.weight 20 16
    model.decoder.layers.N.fc2.bias 16
    model.decoder.layers.N.fc2.weight 16 20
    model.decoder.layers.N.final_layer_norm.bias 16
    model.decoder.layers.N.final_layer_norm.weight 16
    model.decoder.layers.N.self_attn.k_proj.bias 16
    model.decoder.layers.N.self_attn.k_proj.weight 16 16
    model.decoder.layers.N.self_attn.out_proj.bias 16
    model.decoder.layers.N.self_attn.out_proj.weight 16 16
    model.decoder.layers.N.self_attn.q_proj.bias 16
    model.decoder.layers.N.self_attn.q_proj.weight 16 16
    model.decoder.layers.N.self_attn.v_proj.bias 16
    model.decoder.layers.N.self_attn.v_proj.weight 16 16
    model.decoder.layers.N.self_attn_layer_norm.bias 16
    model.decoder.layers.N.self_attn_layer_norm.weight 16";

pub const GALACTICA: &str = "
    model.decoder.embed_positions.weight 14 16
    model.decoder.embed_tokens.weight 9 16
    model.decoder.layers.N.fc1.weight 20 16
    model.decoder.layers.N.fc2.weight 16 20
    model.decoder.layers.N.self_attn.k_proj.weight 16 16
    model.decoder.layers.N.self_attn.out_proj.weight 16 16
    model.decoder.layers.N.self_attn.q_proj.weight 16 16
    model.decoder.layers.N.self_attn.v_proj.weight 16 16";

pub const ROBERTA: &str = "
    lm_head.bias 9
    lm_head.dense.bias 16
    lm_head.dense.weight 16 16
    lm_head.layer_norm.bias 16
    lm_head.layer_norm.weight 16
    roberta.embeddings.LayerNorm.bias 16
    roberta.embeddings.LayerNorm.weight 16
    roberta.embeddings.position_embeddings.weight 14 16
    roberta.embeddings.token_type_embeddings.weight 1 16
    roberta.embeddings.word_embeddings.weight 9 16
    roberta.encoder.layer.N.attention.output.LayerNorm.bias 16
    roberta.encoder.layer.N.attention.output.LayerNorm.weight 16
    roberta.encoder.layer.N.attention.output.dense.bias 16
    roberta.encoder.layer.N.attention.output.dense.weight 16 16
    roberta.encoder.layer.N.attention.self.key.bias 16
    roberta.encoder.layer.N.attention.self.key.weight 16 16
    roberta.encoder.layer.N.attention.self.query.bias 16
    roberta.encoder.layer.N.attention.self.query.weight 16 16
    roberta.encoder.layer.N.attention.self.value.bias 16
    roberta.encoder.layer.N.attention.self.value.weight 16 16
    roberta.encoder.layer.N.intermediate.dense.bias 20
    roberta.encoder.layer.N.intermediate.dense.weight 20 16
    roberta.encoder.layer.N.output.LayerNorm.bias 16
    roberta.encoder.layer.N.output.LayerNorm.weight 16
    roberta.encoder.layer.N.output.dense.bias 16
    roberta.encoder.layer.N.output.dense.weight 16 20";

pub const DISTILBERT: &str = "
    distilbert.embeddings.LayerNorm.bias 16
    distilbert.embeddings.LayerNorm.weight 16
    distilbert.embeddings.position_embeddings.weight 12 16
    distilbert.embeddings.word_embeddings.weight 9 16
    vocab_layer_norm.bias 16
    vocab_layer_norm.weight 16
    vocab_projector.bias 9
    vocab_transform.bias 16
    vocab_transform.weight 16 16
    distilbert.transformer.layer.N.attention.k_lin.bias 16
    distilbert.transformer.layer.N.attention.k_lin.weight 16 16
    distilbert.transformer.layer.N.attention.out_lin.bias 16
    distilbert.transformer.layer.N.attention.out_lin.weight 16 16
    distilbert.transformer.layer.N.attention.q_lin.bias 16
    distilbert.transformer.layer.N.attention.q_lin.weight 16 16
    distilbert.transformer.layer.N.attention.v_lin.bias 16
    distilbert.transformer.layer.N.attention.v_lin.weight 16 16
    distilbert.transformer.layer.N.ffn.lin1.bias 20
    distilbert.transformer.layer.N.ffn.lin1.weight 20 16
    distilbert.transformer.layer.N.ffn.lin2.bias 16
    distilbert.transformer.layer.N.ffn.lin2.weight 16 20
    distilbert.transformer.layer.N.output_layer_norm.bias 16
    distilbert.transformer.layer.N.output_layer_norm.weight 16
    distilbert.transformer.layer.N.sa_layer_norm.bias 16
    distilbert.transformer.layer.N.sa_layer_norm.weight 16";

/// The Llama skeleton without its norms.
pub const PROJECTIONS: &str = "
    model.embed_tokens.weight 9 16
    model.layers.N.mlp.down_proj.weight 16 20
    model.layers.N.mlp.gate_proj.weight 20 16
    model.layers.N.mlp.up_proj.weight 20 16
    model.layers.N.self_attn.k_proj.weight 8 16
    model.layers.N.self_attn.o_proj.weight 16 16
    model.layers.N.self_attn.q_proj.weight 16 16
    model.layers.N.self_attn.v_proj.weight 8 16";

pub const PRE_NORMS: &str = "
    model.norm.weight 16
    model.layers.N.input_layernorm.weight 16
    model.layers.N.post_attention_layernorm.weight 16";

pub const OLMO2_NORMS: &str = "
    model.norm.weight 16
    model.layers.N.post_attention_layernorm.weight 16
    model.layers.N.post_feedforward_layernorm.weight 16
    model.layers.N.self_attn.k_norm.weight 8
    model.layers.N.self_attn.q_norm.weight 16";

pub const COHERE_NORMS: &str = "
    model.norm.weight 16
    model.layers.N.input_layernorm.weight 16";

pub const COHERE_QK_NORMS: &str = "
    model.layers.N.self_attn.k_norm.weight 2 4
    model.layers.N.self_attn.q_norm.weight 4 4";

pub const PHI_WITH_QK_NORMS: &str = "
    lm_head.bias 9
    lm_head.weight 9 16
    model.embed_tokens.weight 9 16
    model.final_layernorm.bias 16
    model.final_layernorm.weight 16
    model.layers.N.input_layernorm.bias 16
    model.layers.N.input_layernorm.weight 16
    model.layers.N.mlp.fc1.bias 20
    model.layers.N.mlp.fc1.weight 20 16
    model.layers.N.mlp.fc2.bias 16
    model.layers.N.mlp.fc2.weight 16 20
    model.layers.N.self_attn.dense.bias 16
    model.layers.N.self_attn.dense.weight 16 16
    model.layers.N.self_attn.k_layernorm.bias 4
    model.layers.N.self_attn.k_layernorm.weight 4
    model.layers.N.self_attn.k_proj.bias 8
    model.layers.N.self_attn.k_proj.weight 8 16
    model.layers.N.self_attn.q_layernorm.bias 4
    model.layers.N.self_attn.q_layernorm.weight 4
    model.layers.N.self_attn.q_proj.bias 16
    model.layers.N.self_attn.q_proj.weight 16 16
    model.layers.N.self_attn.v_proj.bias 8
    model.layers.N.self_attn.v_proj.weight 8 16";

pub const NEMOTRON: &str = "
    lm_head.weight 9 16
    model.embed_tokens.weight 9 16
    model.norm.bias 16
    model.norm.weight 16
    model.layers.N.input_layernorm.bias 16
    model.layers.N.input_layernorm.weight 16
    model.layers.N.mlp.down_proj.weight 16 20
    model.layers.N.mlp.up_proj.weight 20 16
    model.layers.N.post_attention_layernorm.bias 16
    model.layers.N.post_attention_layernorm.weight 16
    model.layers.N.self_attn.k_proj.weight 8 16
    model.layers.N.self_attn.o_proj.weight 16 16
    model.layers.N.self_attn.q_proj.weight 16 16
    model.layers.N.self_attn.v_proj.weight 8 16";

/// The tensors of such lists, each number another one.
pub fn made(list: &str, n_layers: usize) -> BTreeMap<String, Array> {
    let mut next = 0.0;
    let mut tensors = BTreeMap::new();
    for line in list.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name");
        let shape: Vec<usize> = words.map(|size| size.parse().expect("a size")).collect();
        let layers = if name.contains(".N.") { n_layers } else { 1 };
        for layer in 0..layers {
            let values = (0..shape.iter().product()).map(|i: usize| next + i as f64).collect();
            next += shape.iter().product::<usize>() as f64;
            tensors.insert(name.replace(".N.", &format!(".{layer}.")), Array { shape: shape.clone(), values });
        }
    }
    tensors
}
