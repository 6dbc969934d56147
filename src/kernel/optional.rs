//! Tensors that an extension may get or not.

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, ExtensionType};

/// A tensor of numbers, or none.
#[derive(ExtensionType)]
pub enum OptionalFloat<B: Backend> {
    /// None.
    Absent,
    /// One.
    Present(FloatTensor<B>),
}

/// A tensor of truth values, or none.
#[derive(ExtensionType)]
pub enum OptionalBool<B: Backend> {
    /// None.
    Absent,
    /// One.
    Present(BoolTensor<B>),
}

impl<B: Backend> OptionalFloat<B> {
    /// The tensor, where there is one.
    pub(super) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Absent => None,
            Self::Present(tensor) => Some(tensor),
        }
    }
}

impl<B: Backend> OptionalBool<B> {
    /// The tensor, where there is one.
    pub(super) fn into_option(self) -> Option<BoolTensor<B>> {
        match self {
            Self::Absent => None,
            Self::Present(tensor) => Some(tensor),
        }
    }
}
