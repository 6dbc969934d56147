//! Kernels of our own for Burn's CPU backends, on flex through a backend extension. Each has a twin made of plain tensor
//! operations, which all other backends and autodiff use and which tests hold it to.
//!
//! The arithmetic is on slices, in files that know nothing of Burn; beside it stands what binds it to tensors. With the
//! environment variable `BURNFORMER_KERNEL=composed` every function takes its twin.

#[cfg(all(feature = "flex", feature = "train"))]
mod adamw;
#[cfg(feature = "flex")]
mod arena;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod attention;
mod block_kind;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod elementwise;
#[cfg(feature = "flex")]
mod elementwise_gradient;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod exponential;
#[cfg(feature = "flex")]
mod flex;
mod function;
#[cfg(feature = "flex")]
mod large_pages;
#[cfg(feature = "flex")]
mod linear;
#[cfg(feature = "flex")]
mod linear_gradient;
#[cfg(feature = "flex")]
mod lookup;
#[cfg(feature = "flex")]
mod matvec;
#[cfg(not(feature = "flex"))]
mod no_arena;
#[cfg(feature = "flex")]
mod normalize;
#[cfg(feature = "flex")]
mod normalize_gradient;
#[cfg(feature = "flex")]
mod optional;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod parallel;
#[cfg(feature = "flex")]
mod product;
#[cfg(feature = "flex")]
mod quantised;
#[cfg(feature = "flex")]
mod rotation;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod scalar;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod simd;
mod switch;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod team;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, module};

#[cfg(all(feature = "flex", feature = "train"))]
pub(crate) use adamw::{AdamWStep, adamw};
#[cfg(feature = "flex")]
pub(crate) use arena::WeightArena;
#[cfg(any(feature = "flex", feature = "ndarray"))]
pub(crate) use attention::{ScoreRule, ScoreTensors};
pub(crate) use block_kind::{BLOCK, BlockKind, to_q8_0};
pub(crate) use function::{Function, sigmoid};
#[cfg(not(feature = "flex"))]
pub(crate) use no_arena::{QuantisedArena, QuantisedMatrix, WeightArena};
#[cfg(feature = "flex")]
pub(crate) use quantised::{QuantisedArena, QuantisedMatrix};
pub(crate) use switch::is_on;

/// `function(x)`.
pub(crate) fn apply<const D: usize>(function: Function, x: Tensor<D>) -> Tensor<D> {
    match differentiable_host_memory(&x) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) => elementwise::apply_to_tensor(function, x),
        #[cfg(feature = "ndarray")]
        Some(HostMemory::Copied) => elementwise::apply_to_data(function, x),
        _ => function.composed(x),
    }
}

/// `function(x + bias)`, a bias over the last axis.
pub(crate) fn apply_biased<const D: usize>(function: Function, x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    match host_memory(&x) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) => elementwise::apply_to_biased(function, x, bias),
        _ => apply(function, x + bias.unsqueeze()),
    }
}

/// `x + y`, of the same shape.
pub(crate) fn sum<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    match host_memory(&x) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) if is_in_place(&y) && x.shape() == y.shape() => elementwise::sum_of_tensors(x, y),
        _ => x + y,
    }
}

/// `function(gate) · up`.
pub(crate) fn gate<const D: usize>(function: Function, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    match differentiable_host_memory(&gate) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) => elementwise::gate_tensors(function, gate, up),
        _ => apply(function, gate) * up,
    }
}

/// How a norm treats its last axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normalization {
    /// Whether the mean is subtracted.
    pub is_centered: bool,
    /// Added to the mean square, inside the root.
    pub eps: f64,
    /// Added to each weight.
    pub weight_offset: f32,
}

/// `x` normalised over its last axis; `None` where there is no kernel for it and the composed twin is to be taken.
pub(crate) fn norm<const D: usize>(
    x: &Tensor<D>,
    weight: Option<&Tensor<1>>,
    bias: Option<&Tensor<1>>,
    normalization: Normalization,
) -> Option<Tensor<D>> {
    match differentiable_host_memory(x)? {
        #[cfg(feature = "flex")]
        HostMemory::InPlace => Some(normalize::norm(x.clone(), weight.cloned(), bias.cloned(), normalization)),
        _ => None,
    }
}

/// Attention of queries over keys and values, `[batch, n_heads, query_len, d_value]`, heads side by side in memory; `None`
/// as in [`norm`].
#[cfg(any(feature = "flex", feature = "ndarray"))]
pub(crate) fn attention(sequences: &[Tensor<4>; 3], tensors: ScoreTensors, rule: ScoreRule) -> Option<Tensor<4>> {
    let is_autodiff = sequences[0].is_autodiff();
    if sequences.iter().chain(&tensors.bias).any(|x| x.is_autodiff() != is_autodiff) {
        return None;
    }
    match differentiable_host_memory(&sequences[0])? {
        #[cfg(feature = "flex")]
        HostMemory::InPlace => Some(attention::attention_of_tensors(sequences.clone(), tensors, rule)),
        #[cfg(feature = "ndarray")]
        HostMemory::Copied => Some(attention::attention_of_data(sequences.clone(), tensors, rule)),
        #[allow(unreachable_patterns)] // where one of the two backends is not compiled in
        _ => None,
    }
}

/// Heads `x`, `[batch, heads, seq, d_head]`, turned by angles `[1 or batch, 1, seq, pairs]`; features `i` and
/// `i + pairs`, or where interleaved `2i` and `2i + 1`, turn together, the rest passes through. `None` as in [`norm`].
pub(crate) fn rotation(x: &Tensor<4>, cos: &Tensor<4>, sin: &Tensor<4>, is_interleaved: bool) -> Option<Tensor<4>> {
    match differentiable_host_memory(x)? {
        #[cfg(feature = "flex")]
        HostMemory::InPlace => Some(rotation::rotation(x.clone(), cos.clone(), sin.clone(), is_interleaved)),
        _ => None,
    }
}

/// Whether [`adamw`] takes a parameter.
#[cfg(all(feature = "flex", feature = "train"))]
pub(crate) fn has_adamw<const D: usize>(parameter: &Tensor<D>) -> bool {
    host_memory(parameter) == Some(HostMemory::InPlace)
}

/// `x · weight + bias` over the last axis with each of several weights `[d_input, d_output]` and biases `[d_output]`; one
/// product where [`weight_arena`] has laid them side by side.
pub(crate) fn linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    parameters: [(Tensor<2>, Option<Tensor<1>>); N],
) -> [Tensor<D>; N] {
    match differentiable_host_memory(&x) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) if parameters.iter().all(|each| linear::takes(each, x.is_autodiff())) => {
            linear::linears(x, parameters)
        }
        _ => parameters.map(|(weight, bias)| module::linear(x.clone(), weight, bias)),
    }
}

/// Whether a device multiplies with blocks as they are.
pub(crate) fn keeps_blocks(device: &Device) -> bool {
    let is_in_place = || crate::backend::host_memory(device) == Some(HostMemory::InPlace);
    switch::is_on() && !device.is_autodiff() && is_in_place()
}

/// Whether kernels take `x` where it lies, and record nothing.
pub(crate) fn is_in_place<const D: usize>(x: &Tensor<D>) -> bool {
    host_memory(x) == Some(HostMemory::InPlace)
}

/// As [`linears`], with weights in blocks, of an input that [`is_in_place`].
pub(crate) fn quantised_linears<const D: usize, const N: usize>(
    x: Tensor<D>,
    weights: [QuantisedMatrix; N],
    biases: [Option<Tensor<1>>; N],
) -> [Tensor<D>; N] {
    #[cfg(feature = "flex")]
    {
        let mut biases = biases.into_iter();
        quantised::linears(x, weights).map(|y| match biases.next().flatten() {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        })
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = (x, biases);
        weights.map(|weight| match weight {})
    }
}

/// As [`lookup`], of a table in blocks; on `device`.
pub(crate) fn quantised_lookup(table: &QuantisedMatrix, indices: Vec<usize>, device: &Device) -> Tensor<2> {
    #[cfg(feature = "flex")]
    return quantised::rows(table, &indices, device);
    #[cfg(not(feature = "flex"))]
    {
        let _ = (indices, device);
        match *table {}
    }
}

/// Rows of a table `[rows, width]`, one for each index: `[indices, width]`.
///
/// # Panics
///
/// When an index is none of a row, on flex; other backends may read other memory.
pub(crate) fn lookup(table: Tensor<2>, indices: Vec<usize>) -> Tensor<2> {
    match host_memory(&table) {
        #[cfg(feature = "flex")]
        Some(HostMemory::InPlace) => lookup::lookup(table, indices),
        _ => {
            let data: Vec<i64> = indices.into_iter().map(|index| index as i64).collect();
            let device = table.device();
            let len = data.len();
            table.select(0, Tensor::<1, Int>::from_data(TensorData::new(data, [len]), &device))
        }
    }
}

/// Room for the weights of a model, matrices in groups of one input, where their products take least time so; `None` where
/// that makes no difference, or for lack of memory.
pub(crate) fn weight_arena(groups: &[Vec<[usize; 2]>], dtype: DType, device: &Device) -> Option<WeightArena> {
    if dtype != DType::F32 || device.is_autodiff() || !switch::is_on() {
        return None;
    }
    match crate::backend::host_memory(device)? {
        #[cfg(feature = "flex")]
        HostMemory::InPlace => WeightArena::new(groups, device),
        _ => None,
    }
}

/// Room for matrices `[d_input, d_output]` in blocks, in groups of one input; `None` where the device computes with numbers
/// only, or for lack of memory.
pub(crate) fn quantised_arena(groups: &[Vec<(BlockKind, [usize; 2])>], device: &Device) -> Option<QuantisedArena> {
    if !keeps_blocks(device) || groups.is_empty() {
        return None;
    }
    #[cfg(feature = "flex")]
    return QuantisedArena::new(groups);
    #[cfg(not(feature = "flex"))]
    None
}

/// How kernels reach the numbers of `x`; `None` where the composed twin is to be taken: under autodiff, for numbers
/// that do not have 32 bits, on all other backends, and where kernels are turned off.
fn host_memory<const D: usize>(x: &Tensor<D>) -> Option<HostMemory> {
    if x.is_autodiff() { None } else { differentiable_host_memory(x) }
}

/// As [`host_memory`], for kernels whose extension has a backward pass.
fn differentiable_host_memory<const D: usize>(x: &Tensor<D>) -> Option<HostMemory> {
    if x.dtype() != DType::F32 || !switch::is_on() {
        return None;
    }
    match crate::backend::host_memory(&x.device()) {
        Some(HostMemory::Copied) if x.is_autodiff() => None,
        memory => memory,
    }
}

/// How the numbers of a tensor of a CPU backend are reached from here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// In the tensor's own storage, through a backend extension (flex).
    InPlace,
    /// By reading them out and building a new tensor (ndarray), which pays for functions that are slow there.
    Copied,
}
