//! Functions of one element over numbers in host memory, vectorised for the machine at run time.

#[cfg(feature = "ndarray")]
use burn::tensor::Tensor;
use multiversion::multiversion;

use super::function::Function;
use super::{parallel, scalar};

/// Elements that one thread takes at a time: 64 KiB, which stay in the nearest cache.
const CHUNK: usize = 16 << 10;

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::flex::FlexTensor;
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, Dispatch, Flex};
    use burn::tensor::Tensor;

    use super::super::flex::{Rows, dense, numbers, own_numbers, tensor};
    use super::Function;

    #[burn::backend::backend_extension(Flex, Autodiff)]
    pub trait ElementwiseKernels: Backend {
        /// `function(x)`, of 32-bit numbers.
        fn apply_kernel(x: FloatTensor<Self>, function: Function) -> FloatTensor<Self>;
        /// `function(gate) · up`, of 32-bit numbers.
        fn gate_kernel(gate: FloatTensor<Self>, up: FloatTensor<Self>, function: Function) -> FloatTensor<Self>;
    }

    /// Those that no gradient is recorded through.
    #[burn::backend::backend_extension(Flex)]
    pub trait PlainKernels: Backend {
        /// `function(x + bias)`, of 32-bit numbers.
        fn apply_biased_kernel(x: FloatTensor<Self>, bias: FloatTensor<Self>, function: Function) -> FloatTensor<Self>;
        /// `x + y` of the same shape, of 32-bit numbers.
        fn sum_kernel(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self>;
    }

    impl PlainKernels for Flex {
        fn apply_biased_kernel(x: FlexTensor, bias: FlexTensor, function: Function) -> FlexTensor {
            let (mut x, bias) = (dense(x), dense(bias));
            if own_numbers(&mut x).is_none() {
                x = tensor(numbers(&x).to_vec(), x.layout().shape().clone());
            }
            let own = own_numbers(&mut x).expect("a copy has one owner");
            super::apply_to_rows(function, own, numbers(&bias));
            x
        }

        fn sum_kernel(x: FlexTensor, y: FlexTensor) -> FlexTensor {
            let (mut x, mut y) = (dense(x), dense(y));
            if let Some(own) = own_numbers(&mut y) {
                super::add_to_slice(own, numbers(&x));
                return y;
            }
            if let Some(own) = own_numbers(&mut x) {
                super::add_to_slice(own, numbers(&y));
                return x;
            }
            let sum = super::map([numbers(&x), numbers(&y)], |sum, [_, y]| super::add(sum, y));
            tensor(sum, x.layout().shape().clone())
        }
    }

    impl ElementwiseKernels for Flex {
        fn apply_kernel(x: FlexTensor, function: Function) -> FlexTensor {
            let mut x = dense(x);
            match own_numbers(&mut x) {
                Some(own) => {
                    super::apply_to_slice(function, own);
                    x
                }
                None => {
                    let of_slice = super::of_slice(function);
                    let values = super::map([numbers(&x)], |y, [_]| of_slice(y));
                    tensor(values, x.layout().shape().clone())
                }
            }
        }

        fn gate_kernel(gate: FlexTensor, up: FlexTensor, function: Function) -> FlexTensor {
            let (gate, up) = match (Rows::of(&gate), Rows::of(&up)) {
                (Some(_), Some(_)) => (gate, up),
                _ => (dense(gate), dense(up)),
            };
            let (gates, ups) = (Rows::of(&gate).expect("dense rows"), Rows::of(&up).expect("dense rows"));
            let shape = gate.layout().shape().clone();
            let dims = [shape.num_elements() / gates.width.max(1), gates.width];
            let values = super::gate(function, dims, |row| gates.row(row), |row| ups.row(row));
            tensor(values, shape)
        }
    }

    /// `function` of a flex tensor of 32-bit numbers, in its own storage where it is the only owner.
    pub(in super::super) fn apply_to_tensor<const D: usize>(function: Function, x: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::apply_kernel(x.into_dispatch(), function))
    }

    /// `function(x + bias)` of flex tensors of 32-bit numbers.
    pub(in super::super) fn apply_to_biased<const D: usize>(
        function: Function,
        x: Tensor<D>,
        bias: Tensor<1>,
    ) -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::apply_biased_kernel(x.into_dispatch(), bias.into_dispatch(), function))
    }

    /// `x + y` of flex tensors of 32-bit numbers and the same shape.
    pub(in super::super) fn sum_of_tensors<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::sum_kernel(x.into_dispatch(), y.into_dispatch()))
    }

    /// `function(gate) · up` of flex tensors of 32-bit numbers.
    pub(in super::super) fn gate_tensors<const D: usize>(
        function: Function,
        gate: Tensor<D>,
        up: Tensor<D>,
    ) -> Tensor<D> {
        Tensor::from_dispatch(Dispatch::gate_kernel(gate.into_dispatch(), up.into_dispatch(), function))
    }
}
#[cfg(feature = "flex")]
pub(super) use flex::{ElementwiseKernels, apply_to_biased, apply_to_tensor, gate_tensors, sum_of_tensors};

/// `function` of a tensor of 32-bit numbers of a backend without such an extension.
#[cfg(feature = "ndarray")]
pub(super) fn apply_to_data<const D: usize>(function: Function, x: Tensor<D>) -> Tensor<D> {
    let device = x.device();
    let mut data = x.into_data();
    apply_to_slice(function, data.as_mut_slice::<f32>().expect("the numbers have 32 bits"));
    Tensor::from_data(data, &device)
}

/// `x = function(x)`.
fn apply_to_slice(function: Function, x: &mut [f32]) {
    let of_slice = of_slice(function);
    parallel::pieces(x, CHUNK, |_, piece| of_slice(piece));
}

/// `x = function(x + bias)`, of rows as long as the bias.
#[cfg(feature = "flex")]
fn apply_to_rows(function: Function, x: &mut [f32], bias: &[f32]) {
    let of_slice = of_slice(function);
    let rows_at_once = (CHUNK / bias.len().max(1)).max(1);
    parallel::pieces(x, rows_at_once * bias.len().max(1), |_, piece| {
        piece.chunks_mut(bias.len()).for_each(|row| add(row, bias));
        of_slice(piece);
    });
}

/// `x = x + y`.
#[cfg(feature = "flex")]
fn add_to_slice(x: &mut [f32], y: &[f32]) {
    parallel::pieces(x, CHUNK, |index, x| add(x, &y[index * CHUNK..]));
}

/// `x = x + y`, as far as `x` goes.
#[cfg(feature = "flex")]
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// What changes a slice in place.
pub(super) fn of_slice(function: Function) -> fn(&mut [f32]) {
    match function {
        Function::Gelu => of_slice::gelu,
        Function::GeluTanh => of_slice::gelu_tanh,
        Function::QuickGelu => of_slice::quick_gelu,
        Function::Silu => of_slice::silu,
    }
}

/// What `work` makes, piece by piece, of a copy of the first input, given the same piece of all.
#[cfg(feature = "flex")]
pub(super) fn map<const N: usize>(inputs: [&[f32]; N], work: impl Fn(&mut [f32], [&[f32]; N]) + Sync) -> Vec<f32> {
    parallel::fill(inputs[0].len(), CHUNK, |index, y| {
        let inputs = inputs.map(|input| &input[index * CHUNK..][..y.len()]);
        y.copy_from_slice(inputs[0]);
        work(y, inputs);
    })
}

/// `function(gate) · up`, row by row of `width` numbers.
#[cfg(feature = "flex")]
fn gate<'a>(
    function: Function,
    [count, width]: [usize; 2],
    gates: impl Fn(usize) -> &'a [f32] + Sync,
    ups: impl Fn(usize) -> &'a [f32] + Sync,
) -> Vec<f32> {
    let of_slice = match function {
        Function::Gelu => gated::gelu,
        Function::GeluTanh => gated::gelu_tanh,
        Function::QuickGelu => gated::quick_gelu,
        Function::Silu => gated::silu,
    };
    let rows_at_once = (CHUNK / width.max(1)).max(1);
    parallel::fill(count * width, rows_at_once * width.max(1), |piece, y| {
        for (index, y) in y.chunks_mut(width).enumerate() {
            let row = piece * rows_at_once + index;
            of_slice(y, gates(row), ups(row));
        }
    })
}

/// One function that changes a slice for each function of an element.
mod of_slice {
    use super::{multiversion, scalar};

    macro_rules! of_slice {
        ($($name:ident),*) => {$(
            #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
            pub(super) fn $name(x: &mut [f32]) {
                for value in x {
                    *value = scalar::$name(*value);
                }
            }
        )*};
    }
    of_slice!(gelu, gelu_tanh, quick_gelu, silu);
}

/// One function of two slices for each function of an element.
#[cfg(feature = "flex")]
mod gated {
    use super::{multiversion, scalar};

    macro_rules! gated {
        ($($name:ident),*) => {$(
            #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq", "x86_64+avx2+fma", "aarch64+neon"))]
            pub(super) fn $name(y: &mut [f32], gate: &[f32], up: &[f32]) {
                for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                    *y = scalar::$name(*gate) * up;
                }
            }
        )*};
    }
    gated!(gelu, gelu_tanh, quick_gelu, silu);
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Function, apply_to_slice};

    /// A function of an element in 64 bits.
    type Exact = fn(f64) -> f64;

    const FUNCTIONS: [(Function, Exact); 4] = [
        (Function::Gelu, |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))),
        (Function::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }),
        (Function::QuickGelu, |x| x / (1.0 + (-1.702 * x).exp())),
        (Function::Silu, |x| x / (1.0 + (-x).exp())),
    ];

    /// The fit of erf is good to 4.4e-8; the argument of an exponential is rounded, which a sum of one and it takes over
    /// at a quarter at most: all in all four roundings of a number of the size of `x`.
    const TOLERANCE: f64 = 2.5e-7;

    #[test]
    fn functions_are_exact_to_rounding() {
        let inputs: Vec<f32> = (0..2 * CHUNK).map(|i| (i as f32 / CHUNK as f32 - 1.0) * 12.0).collect();
        for (function, exact) in FUNCTIONS {
            let mut outputs = inputs.clone();
            apply_to_slice(function, &mut outputs);
            for (&x, y) in inputs.iter().zip(outputs) {
                let (x, exact) = (f64::from(x), exact(f64::from(x)));
                let error = (f64::from(y) - exact).abs() / x.abs().max(1.0);
                assert!(error <= TOLERANCE, "{function:?}({x}) = {y}, expected {exact}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so_and_the_infinite_saturates() {
        for (function, _) in FUNCTIONS {
            let mut values = [f32::NAN, f32::INFINITY, 0.0, 1e30, -1e30];
            apply_to_slice(function, &mut values);
            assert!(values[0].is_nan(), "{function:?}");
            assert_eq!(values[1..3], [f32::INFINITY, 0.0], "{function:?}");
            assert!((f64::from(values[3]) / 1e30 - 1.0).abs() <= TOLERANCE, "{function:?}");
            assert!(values[4].is_finite() && values[4] <= 0.0, "{function:?}");
        }
    }

    #[cfg(feature = "flex")]
    #[test]
    fn a_bias_and_a_function_are_one_pass_and_sums_are_exact() {
        use burn::tensor::{Device, Distribution, Tensor};

        use crate::kernel;

        let device = Device::flex();
        // More rows than one thread takes at a time; and views that nothing may be written to.
        let random = |dims: [usize; 3]| Tensor::<3>::random(dims, Distribution::Normal(0.0, 2.0), &device);
        let x = random([3, 2 * CHUNK / 3 / 7 + 5, 7]);
        let bias = Tensor::<1>::random([7], Distribution::Normal(0.0, 2.0), &device);
        for x in [x.clone(), x.clone().swap_dims(0, 1), x.clone().slice_dim(1, 3..9)] {
            for (function, _) in FUNCTIONS {
                let expected = kernel::apply(function, x.clone() + bias.clone().unsqueeze());
                let found = kernel::apply_biased(function, x.clone(), bias.clone());
                found.into_data().assert_eq(&expected.into_data(), true);
            }
            let y = x.clone().powi_scalar(3);
            let expected = (x.clone() + y.clone()).into_data();
            kernel::sum(x.clone(), y.clone()).into_data().assert_eq(&expected, true);
            kernel::sum(x.clone() * 1.0, y.clone()).into_data().assert_eq(&expected, true);
            kernel::sum(x.clone(), y.clone() * 1.0).into_data().assert_eq(&expected, true);
            (x + y).into_data().assert_eq(&expected, true);
        }
    }

    #[cfg(feature = "flex")]
    #[test]
    fn a_gate_is_the_function_of_one_times_the_other() {
        // Rows of 7 among rows of 10, more of them than one thread takes at a time.
        let (rows, width, stride) = (2 * CHUNK / 7 + 3, 7, 10);
        let number = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 125.0 - 4.0;
        let numbers: Vec<f32> = (0..rows * stride).map(number).collect();
        let row = |start: usize| move |row: usize| (row * stride + start, width);
        let (gate_at, up_at) = (row(0), row(2));
        for (function, _) in FUNCTIONS {
            let slice = |(start, len): (usize, usize)| &numbers[start..][..len];
            let y = super::gate(function, [rows, width], |row| slice(gate_at(row)), |row| slice(up_at(row)));
            assert_eq!(y.len(), rows * width);
            for (row, y) in y.chunks(width).enumerate() {
                let mut expected = slice(gate_at(row)).to_vec();
                apply_to_slice(function, &mut expected);
                expected.iter_mut().zip(slice(up_at(row))).for_each(|(gate, up)| *gate *= up);
                assert_eq!(y, expected, "{function:?}, row {row}");
            }
        }
    }
}
