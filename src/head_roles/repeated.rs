//! Random tokens that are said twice: what a head does with the second saying tells whether it copies.

use std::collections::HashSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::pattern::{AttentionPattern, Visibility};
use crate::model::ModelConfig;

/// Tokens in one saying. Long enough that the mean over them is steady, short enough that windows reach back over it.
const LENGTH: usize = 50;

/// A sequence that says the same tokens twice, so that only the first saying tells what comes next in the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedTokens {
    /// What stands before, such as the token that begins a text.
    pub prefix: Vec<i64>,
    /// What is said twice. All tokens differ, or their earlier occurrence is not the one that is looked for.
    pub once: Vec<i64>,
}

impl RepeatedTokens {
    /// Draws `length` different tokens of the vocabulary, or all of them where it has fewer. The same on every machine.
    pub fn random(prefix: Vec<i64>, length: usize, vocab_size: usize, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut seen = HashSet::new();
        let mut once = Vec::new();
        while once.len() < length.min(vocab_size) {
            let token = random.random_range(0..vocab_size as u64) as i64;
            if seen.insert(token) {
                once.push(token);
            }
        }
        Self { prefix, once }
    }

    /// As [`random`](Self::random), in a length that the model takes; `None` where it has no room for two tokens twice.
    pub fn for_model(prefix: Vec<i64>, config: &ModelConfig, seed: u64) -> Option<Self> {
        let room = config.position_limit().unwrap_or(usize::MAX).saturating_sub(prefix.len()) / 2;
        let repeated = Self::random(prefix, LENGTH.min(room), config.vocab_size(), seed);
        (repeated.once.len() > 1).then_some(repeated)
    }

    /// The whole sequence.
    pub fn tokens(&self) -> Vec<i64> {
        [&self.prefix[..], &self.once, &self.once].concat()
    }

    /// The scores of a head with this pattern on [`tokens`](Self::tokens): the mean weight that queries of the second
    /// saying have on the token after the first saying of their own token, and on that token itself. `None` where no
    /// window reaches so far back.
    pub fn scores(&self, pattern: &AttentionPattern, visibility: Visibility) -> [Option<f64>; 2] {
        let length = self.once.len();
        let start = self.prefix.len() + length;
        let back = |distance| visibility.reaches_back(distance).then(|| pattern.tokens_back(distance, start));
        [back(length - 1), back(length)]
    }
}
