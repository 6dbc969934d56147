//! Where the weights of a model lie in memory.

use std::collections::HashMap;

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::transformer::Transformer;
use crate::attention::MultiHeadAttention;
use crate::feed_forward::FeedForward;
use crate::kernel::{self, WeightArena};
use crate::projection::Projection;
use crate::transformer_block::TransformerBlock;

/// Matrices of one input.
type Group<'a> = Vec<&'a mut Param<Tensor<2>>>;

/// The weights of a model, laid out as they are read fastest: in the order in which a forward needs them, in large pages,
/// those of one input side by side, so that queries, keys and values, and gate and up, become one product each.
///
/// Values, names and shapes stay as they are.
pub(crate) struct WeightLayout {
    arena: WeightArena,
    index_of: HashMap<ParamId, usize>,
}

impl WeightLayout {
    /// Room for the weights of `model` in numbers of `dtype`; `None` where their place makes no difference.
    pub(crate) fn new(model: &mut Transformer, dtype: DType, device: &Device) -> Option<Self> {
        let groups = model.groups();
        let index_of = groups.iter().flatten().enumerate().map(|(index, matrix)| (matrix.id, index)).collect();
        let dims = |matrix: &&mut Param<Tensor<2>>| matrix.lazy_shape().dims::<2>();
        let dims: Vec<Vec<_>> = groups.iter().map(|group| group.iter().map(dims).collect()).collect();
        let arena = kernel::weight_arena(&dims, dtype, device)?;
        Some(Self { arena, index_of })
    }

    /// Takes the numbers of a parameter, if it is one of these weights.
    pub(crate) fn takes(&mut self, id: ParamId, data: &TensorData) -> bool {
        let index = self.index_of.get(&id);
        index.inspect(|index| self.arena.write(**index, data.as_bytes())).is_some()
    }

    /// The model with its weights, all of which have been taken.
    pub(crate) fn fill(self, mut model: Transformer) -> Transformer {
        for (matrix, tensor) in model.groups().into_iter().flatten().zip(self.arena.into_tensors()) {
            *matrix = matrix.clone().transform_for_load(tensor, matrix.id);
        }
        model
    }
}

impl Transformer {
    fn groups(&mut self) -> Vec<Group<'_>> {
        let mut groups = Vec::new();
        if let Some(embedding) = &mut self.embedding {
            groups.push(vec![&mut embedding.tokens]);
            groups.extend(embedding.project_in.as_mut().map(alone));
        }
        let encoder = self.encoder.iter_mut().flat_map(|encoder| &mut encoder.layers);
        for block in encoder.chain(&mut self.layers) {
            of_block(block, &mut groups);
        }
        groups.extend(self.project_out.as_mut().map(alone));
        if let Some(head) = &mut self.head {
            groups.extend(head.dense.as_mut().map(alone));
            groups.extend(head.weight.as_mut().map(|weight| vec![weight]));
        }
        groups
    }
}

fn alone(projection: &mut Projection) -> Group<'_> {
    vec![&mut projection.weight]
}

fn of_block<'a>(block: &'a mut TransformerBlock, groups: &mut Vec<Group<'a>>) {
    let MultiHeadAttention { query, key, value, output, .. } = &mut block.attention;
    groups.extend([vec![&mut query.weight, &mut key.weight, &mut value.weight], alone(output)]);
    if let Some(MultiHeadAttention { query, key, value, output, .. }) = &mut block.cross_attention {
        groups.extend([alone(query), vec![&mut key.weight, &mut value.weight], alone(output)]);
    }
    let networks = block.feed_forward.iter_mut().chain(block.mixture.iter_mut().flat_map(|mixture| {
        // The router and the shared gate are small.
        mixture.experts.iter_mut().chain(&mut mixture.shared)
    }));
    for FeedForward { gate, up, down, .. } in networks {
        let inner = gate.iter_mut().chain(std::iter::once(up)).map(|projection| &mut projection.weight);
        groups.extend([inner.collect(), alone(down)]);
    }
}
