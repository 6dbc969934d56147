//! Which tokens a step reads: a function of the seed and the step alone, so that a run that goes on reads what it would
//! have read.
//!
//! Each pass over the text cuts it into windows of `seq + 1` tokens that overlap by one, so that every token but the
//! first is predicted once, beginning at an offset of its own, and goes through them in an order of its own.

use std::sync::{Arc, Mutex, PoisonError};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The windows of a text.
#[derive(Debug)]
pub struct Windows {
    tokens: Arc<[u32]>,
    seq: usize,
    seed: u64,
    /// The pass that was read last, and where its windows begin.
    pass: Mutex<Option<(usize, Arc<[usize]>)>>,
}

impl Windows {
    /// The windows of `tokens`, of `seq` predictions each.
    ///
    /// # Panics
    ///
    /// When there is not a single one: `tokens` must be more than `seq`, and `seq` more than 0.
    pub fn new(tokens: Arc<[u32]>, seq: usize, seed: u64) -> Self {
        assert!(seq > 0 && tokens.len() > seq, "{} tokens hold no window of {seq}", tokens.len());
        Self { tokens, seq, seed, pass: Mutex::new(None) }
    }

    /// Windows of one pass.
    pub fn per_pass(&self) -> usize {
        (self.tokens.len() - 1) / self.seq
    }

    /// Window `index` of the text as it stands, `seq + 1` tokens.
    ///
    /// # Panics
    ///
    /// When there are not so many.
    pub fn in_order(&self, index: usize) -> Vec<i64> {
        self.at(index * self.seq)
    }

    /// Window `index` of an endless sequence of passes, `seq + 1` tokens.
    pub fn shuffled(&self, index: usize) -> Vec<i64> {
        let pass = self.pass(index / self.per_pass());
        self.at(pass[index % self.per_pass()])
    }

    fn at(&self, start: usize) -> Vec<i64> {
        self.tokens[start..=start + self.seq].iter().map(|token| i64::from(*token)).collect()
    }

    fn pass(&self, pass: usize) -> Arc<[usize]> {
        let mut last = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref() {
            Some((number, starts)) if *number == pass => Arc::clone(starts),
            _ => {
                let starts = self.draw(pass);
                *last = Some((pass, Arc::clone(&starts)));
                starts
            }
        }
    }

    fn draw(&self, pass: usize) -> Arc<[usize]> {
        let mut random = random_stream(self.seed, ORDER, pass as u64);
        let mut below = |end: usize| (random.next_u64() % end as u64) as usize;
        // As many windows whatever the offset is.
        let offset = below((self.tokens.len() - 1) % self.seq + 1);
        let mut starts: Vec<usize> = (0..self.per_pass()).map(|index| offset + index * self.seq).collect();
        for last in (1..starts.len()).rev() {
            starts.swap(last, below(last + 1));
        }
        starts.into()
    }
}

/// What random numbers are drawn for.
const ORDER: u64 = 1;
const DROPOUT: u64 = 2;

fn random_stream(seed: u64, purpose: u64, index: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(purpose << 56 | index);
    random
}

/// The seed of what a device draws in one step, on one of the devices that share the step.
pub(super) fn dropout_seed(seed: u64, step: usize, share: usize) -> u64 {
    random_stream(seed, DROPOUT, (step as u64) << 16 | share as u64).next_u64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_pass_predicts_every_token_of_its_windows_once() {
        // 23 tokens: three windows of 7 predictions, offset 0 or 1.
        let windows = Windows::new((0..23).collect(), 7, 5);
        assert_eq!(windows.per_pass(), 3);
        for pass in 0..20 {
            let rows: Vec<Vec<i64>> = (0..3).map(|at| windows.shuffled(pass * 3 + at)).collect();
            let targets: BTreeSet<i64> = rows.iter().flat_map(|row| row[1..].to_vec()).collect();
            let first = *targets.first().expect("there are some");
            assert!(first == 1 || first == 2, "{targets:?}");
            assert_eq!(targets, (first..first + 21).collect());
            assert!(rows.iter().all(|row| row.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        }
    }

    #[test]
    fn order_follows_from_seed_and_pass() {
        let order = |seed: u64, range: std::ops::Range<usize>| -> Vec<Vec<i64>> {
            let windows = Windows::new((0..200).collect(), 4, seed);
            range.map(|index| windows.shuffled(index)).collect()
        };
        assert_eq!(order(1, 60..90), order(1, 0..90)[60..]);
        assert_ne!(order(1, 0..40), order(2, 0..40));
        assert_ne!(order(1, 0..49), order(1, 49..98));
    }

    #[test]
    fn a_text_of_one_window_will_do() {
        let windows = Windows::new((0..5).collect(), 4, 0);
        assert_eq!(windows.shuffled(17), [0, 1, 2, 3, 4]);
        assert_eq!(windows.in_order(0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn devices_and_steps_have_seeds_of_their_own() {
        let seeds: BTreeSet<u64> =
            (0..50).flat_map(|step| (0..4).map(move |share| dropout_seed(3, step, share))).collect();
        assert_eq!(seeds.len(), 200);
        assert_ne!(dropout_seed(3, 1, 0), dropout_seed(4, 1, 0));
    }
}
