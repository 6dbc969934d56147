//! Answers to questions, cut out of a text.

use serde::Serialize;
use tokenizers::Encoding;

use super::classify::Classifier;
use super::softmax;
use super::text_batch::TextInput;
use crate::error::Error;
use crate::pretrained::TaskKind;

/// The likeliest answer.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Answer {
    /// The part of the context that answers.
    pub answer: String,
    /// Where it starts in the context, in characters.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// The product of the probabilities of its start and of its end.
    pub score: f64,
}

impl Classifier {
    /// The part of `context`, of at most `longest` tokens, that answers `question` best.
    ///
    /// Probabilities are over the tokens of the context and the first token, which stands for no answer.
    ///
    /// # Errors
    ///
    /// When the model answers no questions, the context has no tokens, or both together are too long for the model.
    pub fn answer(&self, question: &str, context: &str, longest: usize) -> Result<Answer, Error> {
        self.expect(TaskKind::Answer)?;
        let input = TextInput::pair(question, context);
        let answers = self.scores_of_texts(&[input], |encoding, scores| {
            best_span(encoding, &scores, longest)
                .map(|(first, last, score)| answer(encoding, context, first, last, score))
                .ok_or_else(|| Error::Input("the context has no word that could be an answer".into()))
        })?;
        answers.into_iter().next().ok_or_else(|| Error::Input("there is no question".into()))
    }
}

/// The tokens at which the likeliest answer starts and ends, and its score; of equal ones the first. `scores` holds a
/// start and an end for each token.
fn best_span(encoding: &Encoding, scores: &[f64], longest: usize) -> Option<(usize, usize, f64)> {
    let of_context = encoding.get_sequence_ids().into_iter().zip(0..).filter(|(part, _)| *part == Some(1));
    let tokens: Vec<usize> = of_context.map(|(_, token)| token).collect();
    let probabilities = |which: usize| {
        let read = std::iter::once(&0).chain(&tokens);
        softmax(&read.map(|token| scores[token * 2 + which]).collect::<Vec<_>>())
    };
    let (starts, ends) = (probabilities(0), probabilities(1));
    let mut best = None;
    for start in 0..tokens.len() {
        for end in start..tokens.len().min(start.saturating_add(longest)) {
            let score = starts[start + 1] * ends[end + 1];
            if best.is_none_or(|(_, _, highest)| score > highest) {
                best = Some((tokens[start], tokens[end], score));
            }
        }
    }
    best
}

fn answer(encoding: &Encoding, context: &str, first: usize, last: usize, score: f64) -> Answer {
    let (start, end) = (encoding.get_offsets()[first].0, encoding.get_offsets()[last].1);
    Answer { answer: context.chars().skip(start).take(end.saturating_sub(start)).collect(), start, end, score }
}
