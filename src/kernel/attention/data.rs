//! Attention of tensors whose numbers are copied out and in.

use burn::tensor::{Tensor, TensorData};

use super::view::{PerScore, View};
use super::{ScoreRule, ScoreTensors, Scores, Sequences, attention};

/// Attention of tensors of 32-bit numbers of a backend without an extension.
pub(in super::super) fn attention_of_data(
    sequences: [Tensor<4>; 3],
    tensors: ScoreTensors,
    rule: ScoreRule,
) -> Tensor<4> {
    let device = sequences[0].device();
    let dims = sequences.each_ref().map(Tensor::dims);
    let data = sequences.map(Tensor::into_data);
    let views = [0, 1, 2].map(|i| View::dense(numbers(&data[i]), dims[i]));
    let [query, key, value] = views;

    let bias = tensors.bias.map(|bias| (bias.dims(), bias.into_data()));
    let hidden: Vec<(_, Vec<u8>)> = [tensors.padding, tensors.explicit]
        .into_iter()
        .flatten()
        .map(|marks| (marks.dims(), marks.into_data().iter::<bool>().map(u8::from).collect()))
        .collect();
    let scores = Scores {
        rule,
        bias: bias.as_ref().map(|(dims, data)| PerScore::repeated(numbers(data), *dims)),
        hidden: hidden.iter().map(|(dims, marks)| PerScore::repeated(&marks[..], *dims)).collect(),
    };
    let [batch, n_heads, query_len, _] = query.dims;
    let shape = [batch, query_len, n_heads, value.dims[3]];
    let mut output = vec![0.0; shape.iter().product()];
    attention(Sequences { query, key, value }, &scores, &mut output, None);
    Tensor::<4>::from_data(TensorData::new(output, shape), &device).swap_dims(1, 2)
}

fn numbers(data: &TensorData) -> &[f32] {
    data.as_slice::<f32>().expect("the numbers have 32 bits")
}
