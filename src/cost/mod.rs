//! What a model costs, from its configuration alone: parameters and operations by part, memory of its cache and of its
//! training, compute of a training run, and the least time that a machine needs.
//!
//! # What is counted
//!
//! Operations are those of matrix products, a multiplication with its addition counted as **two**; norms, activations,
//! softmax and looking up rows of a table are left out, as in the literature.
//!
//! Scores are counted in two ways. *Full* counts every pair of query and key, as plain tensor operations compute them and
//! as counters of executed products see them; it is what is meant where none is named. *Visible* counts the pairs only
//! that causality and windows leave visible, which is what a kernel computes that skips hidden ones: for a causal model
//! without windows, half of the square and half of its diagonal.
//!
//! For the classic block (`n_heads · d_head = d_model = d`, `d_ff = 4 d`) over `b` sequences of `s` tokens:
//!
//! | part | parameters | operations |
//! |---|---|---|
//! | projections of attention | `4 d²` | `8 b s d²` |
//! | scores and values | – | `4 b s² d` |
//! | feed-forward network | `8 d²` | `16 b s d²` |
//!
//! Scores overtake the products with weights at `s = 6 d`.
//!
//! ```
//! use burnformer::cost::{CostOptions, CostReport};
//! use burnformer::model::ModelConfig;
//!
//! let gpt2 = ModelConfig::preset("gpt2")?;
//! let cost = CostReport::new(&gpt2, &CostOptions { seq: Some(1024), ..CostOptions::default() })?;
//! assert_eq!(cost.parameters.total, 124_439_808);
//! // 12 layers of 8 s d².
//! assert_eq!(cost.flops.full.projections, 12 * 8 * 1024 * 768 * 768);
//! assert_eq!(cost.blocks[0].crossover.full, Some(6 * 768));
//! # Ok::<(), burnformer::Error>(())
//! ```

#[cfg(feature = "capture")]
mod counted;
mod flops;
mod kv_cache;
mod layer_kinds;
mod measured;
mod parameters;
mod products;
mod report;
mod roofline;
mod training_compute;
mod training_memory;

#[cfg(feature = "capture")]
pub use counted::{CountedFlops, counted_flops};
pub use flops::{Crossover, FlopsByPart, ForwardFlops, LengthCost, forward_flops, over_lengths};
pub use kv_cache::{KvCacheMemory, kv_cache_memory};
pub use parameters::{
    AttentionParameters, BlockParameters, EmbeddingParameters, FeedForwardParameters, HeadParameters, Parameters,
};
pub use products::Call;
pub use report::{BlockCost, CostOptions, CostReport, ModelShape};
pub use roofline::{Bound, LeastTime, Machine, Roofline, Work, roofline};
pub use training_compute::{ByConvention, ByPairs, TrainingCompute};
pub use training_memory::{ActivationMemory, BlockActivations, TrainingMemory};
