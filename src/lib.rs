//! Multi-head attention, the feed-forward network and the transformer block, written once as
//! [Burn](https://burn.dev) modules with configuration structs, equal on every backend.
//!
//! # Dimensions
//!
//! | name | meaning |
//! |---|---|
//! | `batch` | sequences in a call |
//! | `seq`, `query_len`, `key_len` | tokens of a call, queries, keys (those of the cache included) |
//! | `d_model` | width of the residual stream |
//! | `n_heads`, `n_kv_heads`, `d_head` | query heads, key/value heads, features per head |
//! | `d_ff` | inner width of the feed-forward network |
//! | `n_layers`, `vocab_size`, `max_seq_len` | blocks, token ids, longest sequence |
//!
//! # Failures
//!
//! A shape mistake in a call panics, as the called function documents. Everything that comes from outside (files,
//! configurations, weights, token ids, backend names) is answered with an [`Error`].

#![deny(missing_docs, rustdoc::broken_intra_doc_links)]

/// Writes `with_*` methods for the fields of a configuration.
macro_rules! setters {
    ($($name:ident => $field:ident: $type:ty),+ $(,)?) => {
        $(
            #[doc = concat!("The same configuration with `", stringify!($field), "` set.")]
            #[must_use]
            pub fn $name(mut self, $field: $type) -> Self {
                self.$field = $field.into();
                self
            }
        )+
    };
}

pub mod activation;
pub mod adapters;
pub mod attention;
pub mod backend;
pub mod bench;
mod blocks;
mod config_reader;
pub mod cost;
pub mod embedding;
pub mod error;
pub mod feed_forward;
pub mod generation;
pub mod gradient_norms;
pub mod head;
pub mod head_roles;
pub mod images;
mod kernel;
pub mod mixture_of_experts;
pub mod model;
pub mod norm;
pub mod parity;
pub mod patch_embedding;
#[cfg(feature = "plot")]
pub mod plot;
pub mod positions;
mod precision;
pub mod pretrained;
pub mod projection;
#[cfg(feature = "tokenizer")]
pub mod sentence;
mod stored_numbers;
pub mod task_head;
#[cfg(feature = "tokenizer")]
pub mod tasks;
#[cfg(feature = "tokenizer")]
pub mod tokenizer;
#[cfg(feature = "train")]
pub mod training;
pub mod transformer_block;
pub mod verification;

pub use error::Error;
pub use precision::cast_parameters;

/// The program in the README, compiled and run with the other documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
