//! Attention of flex tensors.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, Dispatch, Flex};
use burn::tensor::{Bool, Shape, Tensor};

use super::super::flex::{dense, numbers, tensor};
use super::super::optional::{OptionalBool, OptionalFloat};
use super::view::{PerScore, View};
use super::{ScoreRule, ScoreTensors, Scores, Sequences, attention};

#[burn::backend::backend_extension(Flex, Autodiff)]
pub trait AttentionKernels: Backend {
    /// Attention over 32-bit numbers, `[batch, n_heads, query_len, d_value]`.
    fn attention_kernel(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] bias: OptionalFloat<Self>,
        #[extension_type] padding: OptionalBool<Self>,
        #[extension_type] explicit: OptionalBool<Self>,
        rule: ScoreRule,
    ) -> FloatTensor<Self>;
}

impl AttentionKernels for Flex {
    fn attention_kernel(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        bias: OptionalFloat<Self>,
        padding: OptionalBool<Self>,
        explicit: OptionalBool<Self>,
        rule: ScoreRule,
    ) -> FlexTensor {
        let inputs = HeldInputs::new(
            [query, key, value],
            bias.into_option(),
            [padding, explicit].map(OptionalBool::into_option),
            rule,
        );
        inputs.attend()
    }
}

/// Attention of flex tensors of 32-bit numbers.
pub(in super::super) fn attention_of_tensors(
    [query, key, value]: [Tensor<4>; 3],
    tensors: ScoreTensors,
    rule: ScoreRule,
) -> Tensor<4> {
    let optional = |tensor: Option<Tensor<4, Bool>>| match tensor {
        Some(tensor) => OptionalBool::Present(tensor.into_dispatch()),
        None => OptionalBool::Absent,
    };
    let bias = match tensors.bias {
        Some(bias) => OptionalFloat::Present(bias.into_dispatch()),
        None => OptionalFloat::Absent,
    };
    Tensor::from_dispatch(Dispatch::attention_kernel(
        query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
        bias,
        optional(tensors.padding),
        optional(tensors.explicit),
        rule,
    ))
}

/// The tensors of one call, in the order in which the kernel reads them.
#[derive(Clone, Debug)]
pub(super) struct HeldInputs {
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    bias: Option<FlexTensor>,
    hidden: Vec<FlexTensor>,
    rule: ScoreRule,
}

impl HeldInputs {
    pub(super) fn new(
        sequences: [FlexTensor; 3],
        bias: Option<FlexTensor>,
        hidden: [Option<BoolTensor<Flex>>; 2],
        rule: ScoreRule,
    ) -> Self {
        let [query, key, value] = sequences.map(with_whole_rows);
        let hidden = hidden.into_iter().flatten().map(dense).collect();
        Self { query, key, value, bias: bias.map(dense), hidden, rule }
    }

    /// `[batch, n_heads, query_len, d_value]`.
    pub(super) fn attend(&self) -> FlexTensor {
        self.attend_into(None)
    }

    /// As [`attend`](Self::attend), and the logarithm of the sum of the exponentials of each row of scores,
    /// `[batch, query_len, n_heads]`.
    pub(super) fn attend_with_log_sums(&self) -> (FlexTensor, Vec<f32>) {
        let [batch, n_heads, query_len, _] = dims(&self.query);
        let mut log_sums = vec![0.0; batch * query_len * n_heads];
        (self.attend_into(Some(&mut log_sums)), log_sums)
    }

    fn attend_into(&self, log_sums: Option<&mut [f32]>) -> FlexTensor {
        let [batch, n_heads, query_len, _] = dims(&self.query);
        let d_value = dims(&self.value)[3];
        let mut output = vec![0.0; batch * query_len * n_heads * d_value];
        attention(self.sequences(), &self.scores(), &mut output, log_sums);
        // In memory the heads of a query stand side by side, as what merges them wants it.
        tensor(output, Shape::new([batch, query_len, n_heads, d_value])).transpose(1, 2)
    }

    /// Queries, keys and values.
    pub(super) fn tensors(&self) -> [&FlexTensor; 3] {
        [&self.query, &self.key, &self.value]
    }

    pub(super) fn bias(&self) -> Option<&FlexTensor> {
        self.bias.as_ref()
    }

    pub(super) fn sequences(&self) -> Sequences<'_> {
        Sequences { query: view(&self.query), key: view(&self.key), value: view(&self.value) }
    }

    pub(super) fn scores(&self) -> Scores<'_> {
        let marks = |marks| -> PerScore<u8> {
            let start = FlexTensor::layout(marks).start_offset();
            PerScore::repeated(&marks.storage::<u8>()[start..], dims(marks))
        };
        Scores {
            rule: self.rule,
            bias: self.bias.as_ref().map(|bias| PerScore::repeated(numbers(bias), dims(bias))),
            hidden: self.hidden.iter().map(marks).collect(),
        }
    }
}

/// `x`, its last axis without gaps and no axis backwards.
pub(super) fn with_whole_rows(x: FlexTensor) -> FlexTensor {
    let strides = x.layout().strides();
    let is_whole = (strides[3] == 1 || dims(&x)[3] == 1) && strides.iter().all(|&stride| stride >= 0);
    if is_whole { x } else { dense(x) }
}

fn dims(x: &FlexTensor) -> [usize; 4] {
    std::array::from_fn(|axis| x.layout().shape()[axis])
}

pub(super) fn view(x: &FlexTensor) -> View<'_> {
    let layout = x.layout();
    View {
        numbers: &x.storage::<f32>()[layout.start_offset()..],
        dims: dims(x),
        strides: std::array::from_fn(|axis| layout.strides()[axis] as usize),
    }
}
