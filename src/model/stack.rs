//! The blocks of a model with what they share in one call, and the norm that follows them.

use burn::tensor::{Device, Tensor};

use super::cache::{Cache, EncodedMemory, Step};
use super::config::{LayerRotary, ModelConfig, ModelKind};
use super::observer::{AttentionObserver, AttentionPart, AttentionPlace};
use crate::attention::{AttentionMask, AttentionRequest, HeadTap, MaskForm, RelativeBias, RotaryAngles, supports};
use crate::error::Error;
use crate::norm::Norm;
use crate::positions::{Positions, RotaryPositions};
use crate::transformer_block::{BlockContext, BlockTaps, TransformerBlock};

/// Some blocks in a row, of an encoder or a decoder.
#[derive(Clone, Copy)]
pub(super) struct Stack<'a> {
    pub config: &'a ModelConfig,
    pub layers: &'a [TransformerBlock],
    pub relative_bias: Option<&'a RelativeBias>,
    pub final_norm: Option<&'a Norm>,
}

impl Stack<'_> {
    /// Applies the blocks and the norm to `x`, `[batch, seq, d_model]`, which the cache has been told of, under the eyes of
    /// `observer`.
    pub fn run(
        &self,
        mut x: Tensor<3>,
        cache: &mut Cache,
        memory: Option<&EncodedMemory>,
        observer: &mut dyn AttentionObserver,
    ) -> Tensor<3> {
        let shared = SharedContext::new(self, cache, &x.device());
        for (index, (layer, pattern)) in self.layers.iter().zip(&self.config.layer_patterns()).enumerate() {
            let scores = shared.scores(pattern.window);
            let context = BlockContext {
                mask: &scores.mask,
                rotary: shared.rotary(pattern.rotary),
                bias: scores.bias.as_ref(),
                cache: cache.layer(index),
                memory: memory.map(|memory| memory.of_layer(index)),
            };
            let [attention, cross] = self.places(index);
            let tap = |place| HeadTap { gates: observer.gates(place), keeps_weights: observer.wants_weights(place) };
            let taps = BlockTaps { attention: tap(attention), cross_attention: tap(cross) };
            let (y, weights) = layer.forward_tapped(x, context, &taps);
            x = y;
            for (place, weights) in [(attention, weights.attention), (cross, weights.cross_attention)] {
                if let Some(weights) = weights {
                    observer.see_weights(place, weights);
                }
            }
        }
        match self.final_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }

    /// Self- and cross-attention of a layer.
    fn places(&self, layer: usize) -> [AttentionPlace; 2] {
        [self.config.attention_part(), AttentionPart::Cross].map(|part| AttentionPlace { part, layer })
    }

    /// Fails where a kernel that the configuration names cannot honour a call.
    pub fn check_kernel(
        &self,
        batch: usize,
        step: &Step,
        observer: &dyn AttentionObserver,
        device: &Device,
    ) -> Result<(), Error> {
        let mut places = (0..self.layers.len()).flat_map(|layer| self.places(layer));
        let attention = &self.config.attention;
        let is_windowed = self.config.layers.iter().any(|layer| layer.window.is_some());
        let mask = match self.config.kind {
            _ if is_windowed || step.has_padding() => MaskForm::General,
            ModelKind::Decoder => MaskForm::Causal,
            ModelKind::Encoder => MaskForm::None,
        };
        let request = AttentionRequest {
            scores: [batch, attention.n_heads, step.new_len(), step.key_len()],
            n_kv_heads: attention.n_kv_heads(),
            mask,
            biased: matches!(self.config.positions, Positions::Alibi(_) | Positions::Relative(_)),
            softcapped: attention.softcap.is_some(),
            dropout: attention.dropout > 0.0 && device.is_autodiff(),
            return_weights: places.any(|place| observer.wants_weights(place)),
            autodiff: device.is_autodiff(),
        };
        supports(attention.kernel, &request, device).map_err(Error::Input)
    }
}

/// What the layers of one call share.
struct SharedContext {
    /// One entry per window that occurs; `None` is no window.
    scores: Vec<(Option<usize>, ScoreContext)>,
    global: Option<RotaryAngles>,
    local: Option<RotaryAngles>,
}

/// What acts on scores.
struct ScoreContext {
    mask: AttentionMask,
    bias: Option<Tensor<4>>,
}

impl SharedContext {
    fn new(stack: &Stack, cache: &Cache, device: &Device) -> Self {
        let config = stack.config;
        let attention = config.attention();
        let d_head = attention.d_head();
        let positions = cache.positions();
        let (mut global, mut local) = (None, None);
        if let Positions::Rotary(RotaryPositions { global: everywhere, local: nearby }) = &config.positions {
            global = Some(everywhere.angles(d_head, &positions, device));
            local = nearby.as_ref().map(|rotary| rotary.angles(d_head, &positions, device));
        }
        let bias = match &config.positions {
            Positions::Alibi(alibi) => {
                Some(alibi.bias(attention.n_heads, &cache.key_positions(), attention.scale(), device))
            }
            _ => stack.relative_bias.map(|bias| bias.forward(&positions, &cache.key_positions())),
        };
        let mut scores: Vec<(Option<usize>, ScoreContext)> = Vec::new();
        for window in config.layers.iter().map(|pattern| pattern.window) {
            if scores.iter().all(|(of, _)| *of != window) {
                let mask = cache.mask(config.kind, window, device);
                let (kept, all) = (cache.key_len(window), cache.key_len(None));
                let bias = bias.clone().map(|bias| if kept < all { bias.slice_dim(3, all - kept..all) } else { bias });
                scores.push((window, ScoreContext { mask, bias }));
            }
        }
        Self { scores, global, local }
    }

    fn scores(&self, window: Option<usize>) -> &ScoreContext {
        let found = self.scores.iter().find(|(of, _)| *of == window);
        &found.expect("there is an entry for each window of the pattern").1
    }

    fn rotary(&self, which: LayerRotary) -> Option<&RotaryAngles> {
        match which {
            LayerRotary::Global => self.global.as_ref(),
            LayerRotary::Local => self.local.as_ref(),
            LayerRotary::None => None,
        }
    }
}
