//! From logits to one token.
//!
//! All of it happens on the host and in 64 bits, so that a seed means the same text on every backend.

use std::cmp::Ordering;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Faults};

/// How the next token is drawn. The steps come in the order of the fields, the repetition penalty first of all.
///
/// The default is greedy: always the most probable token.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Divides logits: below 1 the likely tokens become likelier. 0 is greedy: always the token with the largest logit,
    /// the lowest id where several have it. Default: 0.
    pub temperature: f64,
    /// Keeps this many of the most probable tokens; 0 keeps all. Default: 0.
    pub top_k: usize,
    /// Keeps the fewest of the most probable tokens whose probabilities add up to this share, the one that crosses it
    /// included ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)); at least one is kept. Default: 1, all.
    pub top_p: f64,
    /// Keeps tokens that are at least this share as probable as the most probable one
    /// ([Nguyen et al. 2024](https://arxiv.org/abs/2407.01082)). Default: 0, all.
    pub min_p: f64,
    /// Divides the positive logits of tokens that occurred before, the prompt included, and multiplies the negative ones
    /// ([Keskar et al. 2019](https://arxiv.org/abs/1909.05858)). Acts on greedy choices too. Default: 1, off.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// The most probable token, always.
    pub fn greedy() -> Self {
        Self::default()
    }

    setters! {
        with_temperature => temperature: f64,
        with_top_k => top_k: usize,
        with_top_p => top_p: f64,
        with_min_p => min_p: f64,
        with_repetition_penalty => repetition_penalty: f64,
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        let is_number = self.temperature.is_finite() && self.temperature >= 0.0;
        faults
            .require(is_number, "temperature", || format!("must be a number of at least 0, got {}", self.temperature));
        for (share, key) in [(self.top_p, "top_p"), (self.min_p, "min_p")] {
            faults.require((0.0..=1.0).contains(&share), key, || format!("must be from 0 to 1, got {share}"));
        }
        faults.positive_number(self.repetition_penalty, "repetition_penalty");
    }
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The id.
    pub token: u32,
    /// How probable the draw is.
    pub probability: f64,
}

/// Draws tokens, one after another.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler with random numbers of its own: those of the stream `stream` of `seed`. Streams do not depend on each
    /// other.
    ///
    /// # Errors
    ///
    /// Every option that is out of range, at once.
    pub fn new(sampling: Sampling, seed: u64, stream: u64) -> Result<Self, Error> {
        let mut faults = Faults::default();
        sampling.check(&mut faults);
        faults.into_result().map_err(|error| error.at("sampling"))?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Ok(Self { sampling, random })
    }

    /// The next token after `history`, which is the prompt and what has been generated.
    ///
    /// # Errors
    ///
    /// When a logit is not a number, or none is above −∞.
    pub fn sample(&mut self, logits: &[f64], history: &[u32]) -> Result<u32, Error> {
        match self.candidates(logits, history)?.as_slice() {
            [only] => Ok(only.token),
            candidates => Ok(pick(candidates, self.random.random())),
        }
    }

    /// The tokens that [`sample`](Self::sample) chooses from, in the order of their ids.
    ///
    /// # Errors
    ///
    /// As [`sample`](Self::sample).
    pub fn candidates(&self, logits: &[f64], history: &[u32]) -> Result<Vec<Candidate>, Error> {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty } = self.sampling;
        if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
            let problem = format!(
                "that of token {token} is not a number; the weights are broken, or the number type is too small for them"
            );
            return Err(Error::Logits(problem));
        }
        let mut logits = logits.to_vec();
        penalise(&mut logits, history, repetition_penalty);
        let best = highest(&logits);
        let Some((best, most)) = best.filter(|(_, most)| *most > f64::NEG_INFINITY) else {
            return Err(Error::Logits(format!("none of {} is above minus infinity", logits.len())));
        };
        // An infinite logit leaves nothing to the others, at any temperature.
        if temperature == 0.0 || most == f64::INFINITY {
            return Ok(vec![Candidate { token: best as u32, probability: 1.0 }]);
        }
        // The largest exponent is 0, so that nothing overflows however small the temperature is.
        let weight = |logit: f64| ((logit - most) / temperature).exp();
        let candidates = logits.iter().zip(0..);
        let candidates = candidates.map(|(logit, token)| Candidate { token, probability: weight(*logit) });
        let mut kept: Vec<Candidate> = candidates.filter(|candidate| candidate.probability > 0.0).collect();
        keep_top_k(&mut kept, top_k);
        keep_top_p(&mut kept, top_p);
        // The most probable token has weight 1.
        kept.retain(|candidate| candidate.probability >= min_p);
        // In the order of ids, which rounding on another backend cannot change, unlike that of probabilities.
        kept.sort_unstable_by_key(|candidate| candidate.token);
        let total: f64 = kept.iter().map(|candidate| candidate.probability).sum();
        kept.iter_mut().for_each(|candidate| candidate.probability /= total);
        Ok(kept)
    }
}

/// Makes tokens of `history` less likely, each once.
fn penalise(logits: &mut [f64], history: &[u32], penalty: f64) {
    if penalty == 1.0 {
        return;
    }
    let mut seen = history.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for token in seen {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
}

/// The largest logit and its place; the first where several are equal.
fn highest(logits: &[f64]) -> Option<(usize, f64)> {
    let place = |best: Option<(usize, f64)>, (at, logit): (usize, &f64)| match best {
        Some((_, most)) if *logit <= most => best,
        _ => Some((at, *logit)),
    };
    logits.iter().enumerate().fold(None, place)
}

/// The more probable first; equal ones by id.
fn by_probability(a: &Candidate, b: &Candidate) -> Ordering {
    b.probability.total_cmp(&a.probability).then(a.token.cmp(&b.token))
}

fn keep_top_k(candidates: &mut Vec<Candidate>, top_k: usize) {
    if (1..candidates.len()).contains(&top_k) {
        candidates.select_nth_unstable_by(top_k - 1, by_probability);
        candidates.truncate(top_k);
    }
}

fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f64) {
    if top_p >= 1.0 {
        return;
    }
    candidates.sort_unstable_by(by_probability);
    let total: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    let mut before = 0.0;
    let reached = candidates.iter().position(|candidate| {
        let is_reached = before >= top_p * total;
        before += candidate.probability;
        is_reached
    });
    candidates.truncate(reached.unwrap_or(candidates.len()).max(1));
}

/// The candidate at `point`, from 0 to 1, when their probabilities are laid end to end.
fn pick(candidates: &[Candidate], point: f64) -> u32 {
    let mut end = 0.0;
    let found = candidates.iter().find(|candidate| {
        end += candidate.probability;
        point < end
    });
    // Rounding can leave the end of the last one a little below 1.
    found.or(candidates.last()).expect("there is at least one candidate").token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_at_the_end_picks_the_last() {
        let candidates = [(3, 0.25), (5, 0.5), (9, 0.25)].map(|(token, probability)| Candidate { token, probability });
        for (point, token) in [(0.0, 3), (0.2499, 3), (0.25, 5), (0.7499, 5), (0.75, 9), (1.0, 9)] {
            assert_eq!(pick(&candidates, point), token, "{point}");
        }
        let short = [(3, 0.5), (5, 0.499)].map(|(token, probability)| Candidate { token, probability });
        assert_eq!(pick(&short, 0.9999), 5);
    }
}
