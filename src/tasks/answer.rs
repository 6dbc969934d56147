//! Answers to questions, cut out of a text.

use serde::Serialize;
use tokenizers::{Encoding, Tokenizer, TruncationParams, TruncationStrategy};

use super::classify::Classifier;
use super::softmax;
use super::text_batch::{TextInput, encode};
use crate::error::Error;
use crate::pretrained::TaskKind;

/// Tokens of a long context that are read with what precedes them and again with what follows.
const OVERLAP: usize = 128;

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
    /// Probabilities are over the tokens of the context and the first token, which stands for no answer. A context that
    /// is too long for the model is read in windows that overlap, and the likeliest answer of all of them counts.
    ///
    /// # Errors
    ///
    /// When the model answers no questions, the context has no tokens, or the question leaves no room for it.
    pub fn answer(&self, question: &str, context: &str, longest: usize) -> Result<Answer, Error> {
        self.expect(TaskKind::Answer)?;
        let windows = windows(self.tokenizer()?, question, context, self.model.config().position_limit())?;
        let scores = self.scores(&windows)?;
        let spans = windows.iter().zip(&scores).filter_map(|(encoding, scores)| {
            best_span(encoding, scores, longest).map(|(first, last, score)| (encoding, first, last, score))
        });
        let best = spans.reduce(|best, next| if next.3 > best.3 { next } else { best });
        let (encoding, first, last, score) =
            best.ok_or_else(|| Error::Input("the context has no word that could be an answer".into()))?;
        let (start, end) = (encoding.get_offsets()[first].0, encoding.get_offsets()[last].1);
        let answer = context.chars().skip(start).take(end.saturating_sub(start)).collect();
        Ok(Answer { answer, start, end, score })
    }
}

/// Question and context as the model can read them: in one piece, or the question with each part of the context.
fn windows(tokenizer: &Tokenizer, question: &str, context: &str, limit: Option<usize>) -> Result<Vec<Encoding>, Error> {
    let input = TextInput::pair(question, context);
    let whole = encode(tokenizer, &input)?;
    let Some(limit) = limit.filter(|limit| whole.get_ids().len() > *limit) else {
        return Ok(vec![whole]);
    };
    let asked = encode(tokenizer, &TextInput::pair(question, ""))?.get_ids().len();
    let Some(room) = limit.checked_sub(asked).filter(|room| *room > 0) else {
        let problem = format!("the question has {asked} tokens, and the model reads at most {limit}; shorten it");
        return Err(Error::Input(problem));
    };
    let mut tokenizer = tokenizer.clone();
    let truncation = TruncationParams {
        max_length: limit,
        stride: OVERLAP.min(room / 2),
        strategy: TruncationStrategy::OnlySecond,
        ..TruncationParams::default()
    };
    tokenizer.with_truncation(Some(truncation)).map_err(|error| Error::Input(error.to_string()))?;
    let mut first = encode(&tokenizer, &input)?;
    let rest = first.take_overflowing();
    Ok(std::iter::once(first).chain(rest).collect())
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
