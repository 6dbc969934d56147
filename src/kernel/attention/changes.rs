//! What is done with the products of some rows of queries and a range of keys.
//!
//! Scores are kept transposed, a row of queries for each key.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::super::exponential::tanh;
use super::view::PerRow;
use super::{ScoreRule, Scores};

/// Scores of hidden keys; finite, so that a row without any visible key gives no NaN on the way.
pub(super) const HIDDEN: f32 = -1e30;
/// Lowest score that a bias can give a visible key.
pub(super) const LOWEST_VISIBLE: f32 = -1e29;

/// Where the rows of a tile stand.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub first_row: usize,
    pub rows: usize,
    /// Query heads that read one head of keys.
    pub group: usize,
    /// Position of the first query among the keys.
    pub offset: isize,
}

impl Place {
    /// The query head, of those that read `kv_head`, and the query of a row.
    pub(super) fn head_and_query(&self, kv_head: usize, row: usize) -> (usize, usize) {
        let row = self.first_row + row;
        (kv_head * self.group + row % self.group, row / self.group)
    }

    /// Positions of the first and the last query among the keys.
    fn positions(&self) -> [isize; 2] {
        [self.first_row, self.first_row + self.rows - 1].map(|row| (row / self.group) as isize + self.offset)
    }

    /// The keys that any of the rows may see, as far as causality and window tell.
    pub(super) fn seen(&self, rule: &ScoreRule, key_len: usize) -> Range<usize> {
        let [first, last] = self.positions();
        let clamp = |position: isize| position.clamp(0, key_len as isize) as usize;
        let end = match (rule.is_causal, rule.window) {
            (true, _) => clamp(last + 1),
            (false, Some(window)) => clamp(last + window as isize),
            (false, None) => key_len,
        };
        let start = rule.window.map_or(0, |window| clamp(first + 1 - window as isize));
        start.min(end)..end
    }

    /// The lanes whose query may see `key`.
    fn lanes_that_see(&self, key: usize, rule: &ScoreRule, lanes: usize) -> Range<usize> {
        let ahead = key as isize - self.offset;
        let lane_of = |query: isize| {
            let lane = query.saturating_mul(self.group as isize).saturating_sub(self.first_row as isize);
            lane.clamp(0, lanes as isize) as usize
        };
        let from = match (rule.is_causal, rule.window) {
            (true, _) => lane_of(ahead),
            (false, Some(window)) => lane_of(ahead - window as isize + 1),
            (false, None) => 0,
        };
        let to = rule.window.map_or(lanes, |window| lane_of(ahead + window as isize));
        from..to.max(from)
    }
}

/// What is done with the products of some rows.
pub(super) struct Changes<'a> {
    pub rule: ScoreRule,
    pub bias: Option<PerRow<'a, f32>>,
    pub hidden: Vec<PerRow<'a, u8>>,
}

impl<'a> Changes<'a> {
    /// Those of the rows at `place` of a head.
    pub(super) fn new(scores: &Scores<'a>, batch: usize, kv_head: usize, place: Place) -> Self {
        let rows = || {
            (0..place.rows).map(move |row| {
                let (head, query) = place.head_and_query(kv_head, row);
                [batch, head, query]
            })
        };
        Self {
            rule: scores.rule,
            bias: scores.bias.map(|bias| bias.of_rows(rows())),
            hidden: scores.hidden.iter().map(|hidden| hidden.of_rows(rows())).collect(),
        }
    }

    /// Weights are powers of two. The factor for that is in the queries already, unless something comes between.
    pub(super) fn unit(&self) -> f32 {
        if self.is_linear() { LOG2_E } else { 1.0 }
    }

    fn is_linear(&self) -> bool {
        self.rule.softcap.is_none() && self.bias.is_none()
    }

    /// Softcap, bias and mask on the scores of keys from `start` on, a row of `lanes` for each.
    #[inline(always)]
    pub(super) fn apply(&self, scores: &mut [f32], lanes: usize, place: Place, start: usize) {
        if let Some(cap) = self.rule.softcap {
            let (cap, inverse) = (cap as f32, (1.0 / cap) as f32);
            scores.iter_mut().for_each(|score| *score = cap * tanh(*score * inverse));
        }
        let count = scores.len() / lanes;
        let keys = || start..start + count;
        if let Some(bias) = &self.bias {
            for (key, scores) in keys().zip(scores.chunks_mut(lanes)) {
                bias.zip(key, &mut scores[..place.rows], |score, bias| {
                    // A finite bias, however low, leaves its key visible: it must stay above a hidden one.
                    *score = if bias < f32::MIN { HIDDEN } else { (*score + bias).max(LOWEST_VISIBLE) };
                });
            }
        }
        if !self.is_linear() {
            scores.iter_mut().for_each(|score| *score *= LOG2_E);
        }
        for hidden in &self.hidden {
            for (key, scores) in keys().zip(scores.chunks_mut(lanes)) {
                hidden.zip(key, &mut scores[..place.rows], |score, hidden| {
                    *score = if hidden == 0 { *score } else { HIDDEN };
                });
            }
        }
        if self.rule.is_causal || self.rule.window.is_some() {
            for (key, scores) in keys().zip(scores.chunks_mut(lanes)) {
                let seen = place.lanes_that_see(key, &self.rule, lanes);
                scores[..seen.start].fill(HIDDEN);
                scores[seen.end..].fill(HIDDEN);
            }
        }
    }
}
