//! The loss of a language model: cross-entropy of the next token, over all positions.

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};

/// The mean cross-entropy of `targets` under `logits`, in nats, in 32 bits where the logits have fewer.
///
/// # Shapes
///
/// - logits: `[batch, seq, vocab_size]`
/// - targets: `batch` rows of `seq` token ids
/// - output: `[1]`
///
/// # Panics
///
/// When the targets are not one for each position, or lie outside the vocabulary.
pub fn next_token_loss(logits: Tensor<3>, targets: &[Vec<i64>]) -> Tensor<1> {
    let [batch, seq, vocab_size] = logits.dims();
    let targets: Vec<i64> = targets.concat();
    assert_eq!(targets.len(), batch * seq, "one target for each of {batch} x {seq} positions");
    assert!(targets.iter().all(|target| (0..vocab_size as i64).contains(target)), "targets lie in the vocabulary");
    let logits = match logits.dtype() {
        DType::F16 | DType::BF16 => logits.cast(FloatDType::F32),
        _ => logits,
    };
    let device = logits.device();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch * seq, 1]), &device);
    let log_probabilities = log_softmax(logits.reshape([batch * seq, vocab_size]), 1);
    log_probabilities.gather(1, targets).mean().neg()
}
