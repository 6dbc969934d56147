//! What makes a [`ModelConfig`] one that can be built.

use super::config::{LayerRotary, ModelConfig, ModelKind};
use crate::error::{ConfigError, Faults};
use crate::positions::{LearnedPositions, Positions, RotaryPositions};
use crate::task_head::TaskInput;
use crate::transformer_block::BlockTopology;

impl ModelConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// Every fault of every part, at once.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.d_model, "d_model");
        faults.positive(self.n_layers, "n_layers");
        faults.positive_len(self.max_seq_len, "max_seq_len");
        faults.probability(self.dropout, "dropout");
        for (width, key) in [
            (self.attention.d_model, "attention.d_model"),
            (self.feed_forward.as_ref().map_or(0, |ff| ff.d_model), "feed_forward.d_model"),
            (self.mixture.as_ref().map_or(0, |mixture| mixture.d_model), "mixture.d_model"),
            (self.cross_attention.as_ref().map_or(0, |cross| cross.d_model), "cross_attention.d_model"),
        ] {
            faults.require(width == 0 || width == self.d_model, key, || {
                format!("= {width} differs from the model's d_model = {}; leave it out", self.d_model)
            });
        }
        if let Some(embedding) = &self.embedding {
            faults.section("embedding", |faults| embedding.check(faults));
        }
        let attention = self.attention();
        if self.d_model > 0 {
            faults.section("attention", |faults| attention.check(faults));
            if let Some(feed_forward) = self.feed_forward() {
                faults.section("feed_forward", |faults| feed_forward.check(faults));
            }
            if let Some(mixture) = self.mixture() {
                faults.section("mixture", |faults| mixture.check(faults));
            }
        }
        if attention.d_head() > 0 {
            let is_bidirectional = self.kind == ModelKind::Encoder;
            faults.section("positions", |faults| self.positions.check(attention.d_head(), is_bidirectional, faults));
        }
        let added = matches!(self.positions, Positions::Learned(_) | Positions::Sinusoidal);
        faults.require(!added || self.embedding.is_some() || self.patches.is_some(), "positions", || {
            "are added to embeddings, and the model has no `embedding`".into()
        });
        self.check_patches(faults);
        self.check_task(faults);
        faults.section("norm", |faults| self.norm.check(faults));
        faults.section("block", |faults| self.block.check(faults));
        self.check_layers(faults);
        self.check_encoder(faults);
        if let Some(head) = &self.head {
            faults.section("head", |faults| head.check(faults));
            faults.require(self.embedding.is_some(), "head", || {
                "needs the vocabulary of an `embedding`, and the model has none".into()
            });
        }
    }

    fn check_patches(&self, faults: &mut Faults) {
        let Some(patches) = &self.patches else { return };
        faults.section("patches", |faults| patches.check(faults));
        faults.require(self.embedding.is_none(), "patches", || {
            "are what a model reads in place of token ids, and the model has an `embedding` too".into()
        });
        faults.require(self.kind == ModelKind::Encoder, "kind", || "must be `encoder` in a model of patches".into());
        let seq_len = patches.seq_len();
        faults.require(self.max_seq_len == seq_len, "max_seq_len", || {
            format!("must be {seq_len}, one for each patch and one for the class token, got {}", self.max_seq_len)
        });
        let is_fit = match self.positions {
            Positions::Learned(learned) => learned == LearnedPositions::default(),
            Positions::Sinusoidal => false,
            Positions::None | Positions::Rotary(_) | Positions::Alibi(_) | Positions::Relative(_) => true,
        };
        faults.require(is_fit, "positions", || {
            "of patches are learned without offset and padding, or act inside attention".into()
        });
    }

    fn check_task(&self, faults: &mut Faults) {
        let Some(task) = &self.task else { return };
        faults.section("task", |faults| task.check(faults));
        faults.require(task.input != TaskInput::Pooled || self.pooler, "task.input", || {
            "is `pooled`, and the model has no `pooler`".into()
        });
    }

    fn check_layers(&self, faults: &mut Faults) {
        faults.require(!self.layers.is_empty(), "layers", || "must have at least one entry".into());
        for (index, layer) in self.layers.iter().enumerate() {
            let key = |name: &str| format!("layers[{index}].{name}");
            faults.positive(layer.repeat, &key("repeat"));
            if let Some(window) = layer.window {
                faults.positive_len(window, &key("window"));
            }
            let has_local = matches!(&self.positions, Positions::Rotary(RotaryPositions { local: Some(_), .. }));
            faults.require(layer.rotary != LayerRotary::Local || has_local, &key("rotary"), || {
                "is `local`, and there is no `positions.rotary.local`".into()
            });
            faults.require(!layer.dense || self.mixture.is_some(), &key("dense"), || {
                "is set, and there is no `mixture` that the layer would have otherwise".into()
            });
            faults.require(!layer.dense || self.feed_forward.is_some(), &key("dense"), || {
                "is set, and there is no `feed_forward` for the layer".into()
            });
        }
        let is_used = self.mixture.is_none() || self.layers.iter().any(|layer| layer.dense);
        faults.require(self.feed_forward.is_none() || is_used, "feed_forward", || {
            "is used by no layer: where there is a `mixture`, layers have it only with `dense = true`".into()
        });
    }

    fn check_encoder(&self, faults: &mut Faults) {
        let Some(encoder) = &self.encoder else {
            faults.require(self.cross_attention.is_none(), "cross_attention", || {
                "has nothing to attend to: the model has no `encoder`".into()
            });
            return;
        };
        faults.require(self.kind == ModelKind::Decoder, "encoder", || "belongs into a decoder".into());
        faults.require(self.embedding.is_some(), "encoder", || {
            "reads the token embeddings of the decoder, which has no `embedding`".into()
        });
        faults.require(self.block.topology == BlockTopology::Sequential, "block.topology", || {
            "must be `sequential` in a decoder with an encoder".into()
        });
        if let (Some(cross), true) = (self.cross_attention(), self.d_model > 0) {
            faults.section("cross_attention", |faults| cross.check(faults));
        }
        faults.section("encoder", |faults| {
            encoder.check(faults);
            faults.require(encoder.kind == ModelKind::Encoder, "kind", || "must be `encoder`".into());
            faults.require(encoder.d_model == self.d_model, "d_model", || {
                format!("= {} differs from the decoder's d_model = {}", encoder.d_model, self.d_model)
            });
            for (is_there, key) in [
                (encoder.embedding.is_some(), "embedding"),
                (encoder.patches.is_some(), "patches"),
                (encoder.head.is_some(), "head"),
                (encoder.pooler, "pooler"),
                (encoder.task.is_some(), "task"),
            ] {
                faults.require(!is_there, key, || "belongs to the decoder; leave it out".into());
            }
        });
    }
}
