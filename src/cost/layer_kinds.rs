//! The layers of a model, those that cost the same put together.

use crate::model::ModelConfig;
use crate::transformer_block::TransformerBlockConfig;

/// Layers that cost the same.
#[derive(Clone, Debug)]
pub(super) struct LayerKind {
    /// How many there are.
    pub layers: u64,
    /// How many keys a query sees, its own included; `None` is all.
    pub window: Option<usize>,
    /// What each of them is.
    pub block: TransformerBlockConfig,
}

/// The kinds of layers of one stack, in the order in which they first occur.
pub(super) fn layer_kinds(config: &ModelConfig) -> Vec<LayerKind> {
    let mut kinds: Vec<((Option<usize>, bool), LayerKind)> = Vec::new();
    for (layer, pattern) in config.layer_patterns().iter().enumerate() {
        let key = (pattern.window, pattern.dense);
        match kinds.iter_mut().find(|(of, _)| *of == key) {
            Some((_, kind)) => kind.layers += 1,
            None => kinds.push((key, LayerKind { layers: 1, window: pattern.window, block: config.block(layer) })),
        }
    }
    kinds.into_iter().map(|(_, kind)| kind).collect()
}
