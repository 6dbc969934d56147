//! Matrices of numbers of few bits, of which 32 share a scale, and their products.
//!
//! Products take such a number as it is stored: nothing is rounded that dequantising would not round too. A step of decoding
//! reads a quarter or an eighth of the bytes.

mod arena;
mod flex;
mod matrix;
mod product;
mod repack;
#[cfg(test)]
mod tests;

pub(crate) use arena::QuantisedArena;
pub(super) use flex::{linears, rows};
pub use matrix::QuantisedMatrix;
