//! Which number type a computation runs in: half-precision inputs are widened to 32 bits where digits matter (norms,
//! rotary tables, softmax) and narrowed again at the end.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor};

/// `x` in at least 32 bits.
pub(crate) fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(FloatDType::F32),
        _ => x,
    }
}

/// `x` in the type `dtype`.
pub(crate) fn narrow<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(FloatDType::from(dtype)) }
}

/// Casts every floating-point parameter of `module` to `dtype`.
///
/// This is how a float64 oracle is made from a model: build or load it, then cast it.
pub fn cast_parameters<M: Module>(module: M, dtype: FloatDType) -> M {
    struct Cast(FloatDType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let requires_grad = param.val().is_require_grad();
            // Only a tensor that records no gradient stays a leaf when it is cast.
            param.map(|tensor| tensor.set_require_grad(false).cast(self.0).set_require_grad(requires_grad))
        }
    }
    module.map(&mut Cast(dtype))
}
