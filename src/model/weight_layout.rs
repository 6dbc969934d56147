//! Where the weights of a model lie in memory.

use std::collections::HashMap;

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::transformer::Transformer;
use crate::attention::MultiHeadAttention;
use crate::blocks::Blocks;
use crate::feed_forward::FeedForward;
use crate::kernel::{self, BlockKind, WeightArena};
use crate::projection::Projection;
use crate::transformer_block::TransformerBlock;

/// A matrix that a forward multiplies with.
struct Matrix<'a> {
    weight: &'a mut Param<Tensor<2>>,
    blocks: &'a mut Blocks,
    /// Whether it has a row for each output, as tables of tokens have, and not for each input.
    is_table: bool,
}

/// Matrices of one input.
type Group<'a> = Vec<Matrix<'a>>;

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
        let groups = model.matrices_of_numbers();
        let index_of = groups.iter().flatten().enumerate().map(|(index, matrix)| (matrix.weight.id, index)).collect();
        let dims = |matrix: &Matrix| matrix.weight.lazy_shape().dims::<2>();
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
        for (matrix, tensor) in model.matrices_of_numbers().into_iter().flatten().zip(self.arena.into_tensors()) {
            *matrix.weight = matrix.weight.clone().transform_for_load(tensor, matrix.weight.id);
        }
        model
    }
}

impl Transformer {
    /// Keeps matrices in the blocks that a file has of them, as far as `device` multiplies with blocks; says which.
    /// `kind_of` and `read` are asked for the blocks of a parameter that is a table or not, output after output.
    pub(crate) fn keep_blocks<E>(
        &mut self,
        device: &Device,
        kind_of: impl Fn(ParamId, bool) -> Option<BlockKind>,
        mut read: impl FnMut(ParamId, bool) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<ParamId>, E> {
        let (mut groups, mut matrices) = (Vec::new(), Vec::new());
        for group in self.groups() {
            let with_kind = group.into_iter().map(|matrix| (kind_of(matrix.weight.id, matrix.is_table), matrix));
            let found: Vec<_> = with_kind.filter_map(|(kind, matrix)| Some((kind?, matrix))).collect();
            let dims = |matrix: &Matrix| {
                let mut dims = matrix.weight.lazy_shape().dims::<2>();
                if matrix.is_table {
                    dims.reverse();
                }
                dims
            };
            groups.push(found.iter().map(|(kind, matrix)| (*kind, dims(matrix))).collect());
            matrices.extend(found.into_iter().map(|(_, matrix)| matrix));
        }
        if matrices.is_empty() {
            return Ok(Vec::new());
        }
        let Some(mut arena) = kernel::quantised_arena(&groups, device) else {
            return Ok(Vec::new());
        };
        for (index, matrix) in matrices.iter().enumerate() {
            arena.write(index, &read(matrix.weight.id, matrix.is_table)?);
        }
        let Some(quantised) = arena.into_matrices() else {
            return Ok(Vec::new());
        };
        let mut kept = Vec::new();
        for (matrix, quantised) in matrices.into_iter().zip(quantised) {
            let id = matrix.weight.id;
            (*matrix.blocks, *matrix.weight) = Blocks::keep(quantised, matrix.is_table, id, device);
            kept.push(id);
        }
        Ok(kept)
    }

    /// Those that are not kept in blocks.
    fn matrices_of_numbers(&mut self) -> Vec<Group<'_>> {
        let mut groups = self.groups();
        groups.iter_mut().for_each(|group| group.retain(|matrix| matrix.blocks.is_empty()));
        groups.retain(|group| !group.is_empty());
        groups
    }

    fn groups(&mut self) -> Vec<Group<'_>> {
        let mut groups = Vec::new();
        if let Some(embedding) = &mut self.embedding {
            groups.push(vec![Matrix { weight: &mut embedding.tokens, blocks: &mut embedding.blocks, is_table: true }]);
            groups.extend(embedding.project_in.as_mut().map(alone));
        }
        let encoder = self.encoder.iter_mut().flat_map(|encoder| &mut encoder.layers);
        for block in encoder.chain(&mut self.layers) {
            of_block(block, &mut groups);
        }
        groups.extend(self.project_out.as_mut().map(alone));
        if let Some(head) = &mut self.head {
            groups.extend(head.dense.as_mut().map(alone));
            let blocks = &mut head.blocks;
            groups.extend(head.weight.as_mut().map(|weight| vec![Matrix { weight, blocks, is_table: true }]));
        }
        groups
    }
}

fn alone(projection: &mut Projection) -> Group<'_> {
    vec![matrix(projection)]
}

fn matrix(projection: &mut Projection) -> Matrix<'_> {
    Matrix { weight: &mut projection.weight, blocks: &mut projection.blocks, is_table: false }
}

fn of_block<'a>(block: &'a mut TransformerBlock, groups: &mut Vec<Group<'a>>) {
    let MultiHeadAttention { query, key, value, output, .. } = &mut block.attention;
    groups.extend([vec![matrix(query), matrix(key), matrix(value)], alone(output)]);
    if let Some(MultiHeadAttention { query, key, value, output, .. }) = &mut block.cross_attention {
        groups.extend([alone(query), vec![matrix(key), matrix(value)], alone(output)]);
    }
    let networks = block.feed_forward.iter_mut().chain(block.mixture.iter_mut().flat_map(|mixture| {
        // The router and the shared gate are small.
        mixture.experts.iter_mut().chain(&mut mixture.shared)
    }));
    for FeedForward { gate, up, down, .. } in networks {
        let inner = gate.iter_mut().chain(std::iter::once(up)).map(matrix);
        groups.extend([inner.collect(), alone(down)]);
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use burn::module::{Module, ModuleVisitor, Param, ParamId};
    use burn::tensor::{Device, FloatDType, Tensor};

    use crate::attention::MultiHeadAttentionConfig;
    use crate::embedding::EmbeddingConfig;
    use crate::feed_forward::FeedForwardConfig;
    use crate::head::HeadConfig;
    use crate::kernel::{BlockKind, to_q8_0};
    use crate::model::{ForwardOptions, ModelConfig, ModelInput, ModelKind, Transformer};
    use crate::precision::cast_parameters;

    /// Logits of 3 layers of width 64 are near 1. Of sums of up to 128 products in another order about √128 · 2⁻²⁴ arrives, a
    /// few times over through the layers.
    const TOLERANCE: f32 = 1e-5;

    #[derive(Default)]
    struct Matrices(HashMap<ParamId, Tensor<2>>);

    impl ModuleVisitor for Matrices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let [height, width] = param.val().dims()[..] {
                self.0.insert(param.id, param.val().reshape([height, width]));
            }
        }
    }

    fn quantised(mut model: Transformer, device: &Device) -> Transformer {
        let mut matrices = Matrices::default();
        model.visit(&mut matrices);
        let read = |id, is_table| -> Result<Vec<u8>, Infallible> {
            let matrix = matrices.0[&id].clone();
            let outputs = if is_table { matrix } else { matrix.transpose() };
            Ok(to_q8_0(&outputs.into_data().try_to_vec::<f32>().expect("32 bits")))
        };
        let Ok(kept) = model.keep_blocks(device, |_, _| Some(BlockKind::Q8_0), read);
        assert_eq!(kept.len(), model.groups().iter().flatten().count());
        model
    }

    fn logits(model: &Transformer, ids: &[i64]) -> Vec<f32> {
        let output = model.forward(&ModelInput::tokens(&[ids.to_vec()]), None, ForwardOptions::default());
        let logits = output.expect("tokens are in the vocabulary").logits.expect("a decoder has a head");
        logits.into_data().try_to_vec().expect("32 bits")
    }

    #[test]
    fn a_model_in_blocks_computes_with_what_they_stand_for() {
        let device = Device::flex();
        device.seed(3);
        for is_tied in [true, false] {
            let attention = MultiHeadAttentionConfig::new(64, 4);
            let network = FeedForwardConfig::new(64, 128).with_gated(true);
            let config = ModelConfig::new(ModelKind::Decoder, 3, 16, attention, network)
                .with_embedding(EmbeddingConfig::new(96))
                .with_final_norm(true)
                .with_head(HeadConfig::new(is_tied));
            let original = config.init(&device);
            // One token at a time, and many at once, take other ways.
            let inputs = [vec![1], (0..9).map(|i| i * 7 % 96).collect()];
            let of_inputs = |model: &Transformer| inputs.each_ref().map(|ids| logits(model, ids)).concat();
            let unrounded = of_inputs(&original);
            let mut model = quantised(original, &device);
            let in_blocks = of_inputs(&model);
            let groups = model.groups();
            let are_in_use = groups.iter().flatten().all(|matrix| matrix.blocks.of(matrix.weight).is_some());
            assert!(are_in_use, "a forward asks for no numbers");
            let in_numbers = of_inputs(&cast_parameters(model, FloatDType::F32));
            let distance =
                |other: &[f32]| in_blocks.iter().zip(other).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(distance(&in_numbers) <= TOLERANCE, "{} from the numbers", distance(&in_numbers));
            assert!(distance(&unrounded) > 100.0 * TOLERANCE, "rounding to 8 bits is seen");
        }
    }
}
