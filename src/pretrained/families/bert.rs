//! BERT and RoBERTa.

use super::super::hf_activation::activation;
use super::super::hf_config::HfConfig;
use super::super::rules::Rules;
use super::Family;
use super::plain::{Sizes, plain_decoder, set_embedding, set_network};
use crate::activation::Activation;
use crate::head::HeadConfig;
use crate::model::{ModelConfig, ModelKind};
use crate::positions::{LearnedPositions, Positions};
use crate::transformer_block::NormPlacement;

pub(super) const BERT: Family = Family { model_types: &["bert"], config: bert, rules: bert_names, harmless: HARMLESS };

pub(super) const ROBERTA: Family = Family {
    model_types: &["roberta", "xlm-roberta", "camembert"],
    config: roberta,
    rules: roberta_names,
    harmless: HARMLESS,
};

/// Of the first published pooler, whose sizes were never other than the model's.
const HARMLESS: &[&str] = &[
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
];

const BERT_SIZES: Sizes = Sizes { vocab_size: 30_522, d_model: 768, n_layers: 12, n_heads: 12, max_seq_len: 512 };

/// An encoder with norms behind the sums, and a head that predicts masked tokens.
pub(super) fn encoder(hf: &mut HfConfig, sizes: &Sizes) -> ModelConfig {
    let mut config = plain_decoder(hf, sizes);
    config.kind = ModelKind::Encoder;
    config.block.placement = NormPlacement::Post;
    config.final_norm = false;
    config.norm.eps = 1e-12;
    config.positions = Positions::Learned(LearnedPositions::default());
    set_embedding(&mut config, |embedding| embedding.norm = true);
    config
}

/// What follows the last layer of an encoder: a dense layer, this activation, a norm, the token table, a bias.
pub(super) fn masked_language_head(activation: Activation) -> HeadConfig {
    HeadConfig::new(true).with_bias(true).with_transform(activation)
}

fn base(hf: &mut HfConfig, sizes: &Sizes) -> ModelConfig {
    let mut config = encoder(hf, sizes);
    config.norm.eps = hf.number("layer_norm_eps", 1e-12);
    let activation = activation(hf, "hidden_act", Activation::Gelu);
    let d_ff = hf.size("intermediate_size", 3072);
    set_network(&mut config, |network| {
        network.activation = activation;
        network.d_ff = d_ff;
    });
    let n_types = hf.size("type_vocab_size", 2);
    set_embedding(&mut config, |embedding| embedding.n_types = n_types);
    if hf.flag("is_decoder", false) {
        config.kind = ModelKind::Decoder;
    }
    if let Some(kind) = hf.optional_text("position_embedding_type").filter(|kind| kind != "absolute") {
        hf.fault("position_embedding_type", format!("`{kind}` is not supported; only `absolute` is"));
    }
    config.head = Some(masked_language_head(activation));
    config.pooler = true;
    config
}

fn bert(hf: &mut HfConfig) -> ModelConfig {
    base(hf, &BERT_SIZES)
}

/// Positions begin behind the row of the padding token, and the length in the file counts the rows before them.
fn roberta(hf: &mut HfConfig) -> ModelConfig {
    let is_roberta = hf.optional_text("model_type").as_deref() == Some("roberta");
    let vocab_size = if is_roberta { 50_265 } else { BERT_SIZES.vocab_size };
    let mut config = base(hf, &Sizes { vocab_size, ..BERT_SIZES });
    let padding_id = hf.size("pad_token_id", 1);
    let offset = padding_id + 1;
    match config.max_seq_len.checked_sub(offset).filter(|len| *len > 0) {
        Some(max_seq_len) => config.max_seq_len = max_seq_len,
        None => hf.fault("max_position_embeddings", format!("must be above {offset}, as padding takes rows too")),
    }
    config.positions = Positions::Learned(LearnedPositions { offset, padding_id: u32::try_from(padding_id).ok() });
    // Whatever the activation of the layers is.
    config.head = Some(masked_language_head(Activation::Gelu));
    config
}

const LAYERS: &[(&str, &str)] = &[
    ("embedding.tokens", "embeddings.word_embeddings.weight"),
    ("embedding.positions", "embeddings.position_embeddings.weight"),
    ("embedding.types", "embeddings.token_type_embeddings.weight"),
    ("embedding.norm", "embeddings.LayerNorm"),
    ("layers.N.attention.query", "encoder.layer.N.attention.self.query"),
    ("layers.N.attention.key", "encoder.layer.N.attention.self.key"),
    ("layers.N.attention.value", "encoder.layer.N.attention.self.value"),
    ("layers.N.attention.output", "encoder.layer.N.attention.output.dense"),
    ("layers.N.attention_norm.post", "encoder.layer.N.attention.output.LayerNorm"),
    ("layers.N.feed_forward.up", "encoder.layer.N.intermediate.dense"),
    ("layers.N.feed_forward.down", "encoder.layer.N.output.dense"),
    ("layers.N.feed_forward_norm.post", "encoder.layer.N.output.LayerNorm"),
    ("pooler.dense", "pooler.dense"),
];

fn bert_names() -> Rules {
    Rules::new(LAYERS)
        .with_roots(&[
            ("head.dense", "cls.predictions.transform.dense"),
            ("head.norm", "cls.predictions.transform.LayerNorm"),
            ("head.weight", "cls.predictions.decoder.weight"),
            ("head.bias", "cls.predictions.bias"),
        ])
        .or("head.bias", "cls.predictions.decoder.bias")
        .with_old_norm_names()
        // Whether one sentence follows another.
        .ignoring(&["cls.seq_relationship.weight", "cls.seq_relationship.bias"])
}

fn roberta_names() -> Rules {
    Rules::new(LAYERS)
        .with_roots(&[
            ("head.dense", "lm_head.dense"),
            ("head.norm", "lm_head.layer_norm"),
            ("head.weight", "lm_head.decoder.weight"),
            ("head.bias", "lm_head.bias"),
        ])
        .or("head.bias", "lm_head.decoder.bias")
        .with_old_norm_names()
}
