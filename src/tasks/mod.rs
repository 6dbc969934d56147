//! What encoders and classifiers are used for, from text to result: labels of texts, of their tokens and of images,
//! answers to questions, words in the place of masks.
//!
//! ```no_run
//! use burn::tensor::{Device, FloatDType};
//! use burnformer::pretrained::Checkpoint;
//! use burnformer::tasks::{Classifier, TextInput};
//!
//! # fn main() -> Result<(), burnformer::Error> {
//! let checkpoint = Checkpoint::open("models/distilbert-sst2")?;
//! let classifier = Classifier::new(&checkpoint, &Device::default(), FloatDType::F32)?;
//! let texts = [TextInput::from("This film is very good."), TextInput::from("I fell asleep.")];
//! for labels in classifier.classify(&texts)? {
//!     println!("{}: {:.3}", labels[0].label, labels[0].score);
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod classify;
mod fill_mask;
mod text_batch;

pub use answer::Answer;
pub use classify::{Classifier, LabelScore, TokenLabel};
pub use fill_mask::{Candidate, MaskFiller, MaskedToken};
pub use text_batch::TextInput;

use tokenizers::Tokenizer;

use crate::error::Error;
use crate::pretrained::Checkpoint;

/// The tokenizer of a checkpoint, which must have one.
fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    match checkpoint.tokenizer()? {
        Some(parts) => Ok(parts.tokenizer),
        None => Err(Error::file(checkpoint.folder(), "has no tokenizer; put its tokenizer.json beside the weights")),
    }
}

/// The probabilities of scores of which one is to hold.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The indices of the largest values, the largest first and of equal ones the first.
fn largest_first(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_whatever_the_scores() {
        for scores in [&[1e4, 1e4 - 1.0, -1e4][..], &[-1e5, -1e5], &[0.0]] {
            let found = softmax(scores);
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{found:?}");
        }
        assert!((softmax(&[1.0, 0.0])[0] - 0.731_058_578_630_004_9).abs() < 1e-12);
    }

    #[test]
    fn of_equal_values_the_first_comes_first() {
        assert_eq!(largest_first(&[1.0, 3.0, 3.0, 2.0]), [1, 2, 3, 0]);
    }
}
