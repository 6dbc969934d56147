//! Looking into the attention of a model while it runs, and switching heads off.

use std::fmt;

use burn::tensor::Tensor;
use serde::Serialize;

use super::config::{ModelConfig, ModelKind};

/// Which attention of a layer is meant.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPart {
    /// Self-attention of an encoder.
    Encoder,
    /// Self-attention of a decoder.
    Decoder,
    /// Attention of a decoder over what its encoder has made of the source.
    Cross,
}

impl AttentionPart {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Encoder, Self::Decoder, Self::Cross];

    /// The name, as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
            Self::Cross => "cross",
        }
    }
}

impl fmt::Display for AttentionPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One attention of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionPlace {
    /// Which of its layer.
    pub part: AttentionPart,
    /// The layer, counted from 0 in its stack.
    pub layer: usize,
}

impl ModelConfig {
    /// What the self-attention of the blocks is; that of an encoder beside them is
    /// [`AttentionPart::Encoder`].
    pub fn attention_part(&self) -> AttentionPart {
        match self.kind {
            ModelKind::Encoder => AttentionPart::Encoder,
            ModelKind::Decoder => AttentionPart::Decoder,
        }
    }
}

/// Looks into the attention of a model during
/// [`Transformer::forward_observed`](super::Transformer::forward_observed).
///
/// Each method does nothing unless it is written. `()` is the observer that does nothing at all.
pub trait AttentionObserver {
    /// Whether [`see_weights`](Self::see_weights) is to be called for `place`. It then computes by the composed kernel,
    /// which holds the whole score square.
    fn wants_weights(&self, _place: AttentionPlace) -> bool {
        false
    }

    /// Takes the weights of `place`, before dropout: each row sums to 1, or to 0 where every key is hidden. They are
    /// given layer by layer and not kept for longer than this call.
    ///
    /// # Shapes
    ///
    /// - weights: `[batch, n_heads, query_len, key_len]`
    fn see_weights(&mut self, _place: AttentionPlace, _weights: Tensor<4>) {}

    /// Factors on the outputs of the heads of `place`, before the output projection mixes them: 0 switches a head off.
    /// `None` leaves all as they are.
    ///
    /// # Shapes
    ///
    /// - output: `[1 or batch, n_heads]`
    fn gates(&self, _place: AttentionPlace) -> Option<Tensor<2>> {
        None
    }
}

impl AttentionObserver for () {}

/// An observer that also keeps the weights of one part, for [`ModelOutput::weights`](super::ModelOutput::weights).
pub(super) struct Collector<'a> {
    pub observer: &'a mut dyn AttentionObserver,
    pub collected: Option<AttentionPart>,
    pub weights: Vec<Tensor<4>>,
}

impl AttentionObserver for Collector<'_> {
    fn wants_weights(&self, place: AttentionPlace) -> bool {
        self.collected == Some(place.part) || self.observer.wants_weights(place)
    }

    fn see_weights(&mut self, place: AttentionPlace, weights: Tensor<4>) {
        if self.collected == Some(place.part) {
            self.weights.push(weights.clone());
        }
        if self.observer.wants_weights(place) {
            self.observer.see_weights(place, weights);
        }
    }

    fn gates(&self, place: AttentionPlace) -> Option<Tensor<2>> {
        self.observer.gates(place)
    }
}
