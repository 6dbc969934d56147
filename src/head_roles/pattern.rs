//! What one head attends to on one sequence, in numbers between 0 and 1.

/// The attention weights of one head on one sequence. Each row is a query, each column a key.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPattern {
    key_len: usize,
    weights: Vec<f64>,
}

/// Which keys a query may see at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visibility {
    /// Whether the keys after the query are hidden.
    pub is_causal: bool,
    /// How many keys a query sees, its own included, to either side where it is not causal. Default: all.
    pub window: Option<usize>,
}

impl Visibility {
    /// How many of `key_len` keys the query at `query` sees.
    fn count(self, query: usize, key_len: usize) -> usize {
        let after = key_len.saturating_sub(query + 1);
        match (self.is_causal, self.window) {
            (false, None) => key_len,
            (false, Some(window)) => 1 + query.min(window - 1) + after.min(window - 1),
            (true, window) => (query + 1).min(window.unwrap_or(usize::MAX)),
        }
    }

    /// Whether a query sees the key that many tokens before it.
    pub(super) fn reaches_back(self, distance: usize) -> bool {
        self.window.is_none_or(|window| distance < window)
    }
}

impl AttentionPattern {
    /// The rows of `weights` one after another, each `key_len` numbers.
    ///
    /// # Panics
    ///
    /// When `key_len` is zero or the numbers do not fill whole rows.
    pub fn new(weights: Vec<f64>, key_len: usize) -> Self {
        assert!(key_len > 0, "an attention pattern needs keys");
        assert!(weights.len().is_multiple_of(key_len), "{} weights do not fill rows of {key_len}", weights.len());
        Self { key_len, weights }
    }

    /// Number of queries.
    pub fn query_len(&self) -> usize {
        self.weights.len() / self.key_len
    }

    /// Number of keys.
    pub fn key_len(&self) -> usize {
        self.key_len
    }

    /// The weights of all keys for one query.
    ///
    /// # Panics
    ///
    /// When there is no such query.
    pub fn row(&self, query: usize) -> &[f64] {
        &self.weights[query * self.key_len..(query + 1) * self.key_len]
    }

    /// Whether every weight is a finite number.
    pub fn is_finite(&self) -> bool {
        self.weights.iter().all(|weight| weight.is_finite())
    }

    /// The mean weight on the key `place(query)`, over all queries for which there is one.
    fn mean_on(&self, place: impl Fn(usize) -> Option<usize>) -> f64 {
        let on = |query| place(query).filter(|key| *key < self.key_len).map(|key| self.row(query)[key]);
        mean((0..self.query_len()).filter_map(on))
    }

    /// The mean weight on the token before the query's own, over all queries but the first.
    pub fn previous_token(&self) -> f64 {
        self.mean_on(|query| query.checked_sub(1))
    }

    /// The mean weight on the token after the query's own, over all queries but the last.
    pub fn next_token(&self) -> f64 {
        self.mean_on(|query| Some(query + 1))
    }

    /// The mean weight on the first token, over all queries but the first, which may have nothing else to see.
    pub fn first_token(&self) -> f64 {
        self.mean_on(|query| (query > 0).then_some(0))
    }

    /// The mean weight on the query's own token, over all queries but the first.
    pub fn own_token(&self) -> f64 {
        self.mean_on(|query| (query > 0).then_some(query))
    }

    /// The mean weight on the token `distance` places before the query's own, over the queries from `start` on.
    pub fn tokens_back(&self, distance: usize, start: usize) -> f64 {
        self.mean_on(|query| query.checked_sub(distance).filter(|_| query >= start))
    }

    /// The entropy of the weights as a share of what equal weights on all visible keys would have: 0 where each query
    /// looks at one key, 1 where it looks at all alike. The mean over queries that see two keys or more; 0 without any.
    pub fn entropy(&self, visibility: Visibility) -> f64 {
        let of_row = |query| {
            let count = visibility.count(query, self.key_len);
            let terms = self.row(query).iter().filter(|weight| **weight > 0.0).map(|weight| -weight * weight.ln());
            (count > 1).then(|| terms.sum::<f64>() / (count as f64).ln())
        };
        mean((0..self.query_len()).filter_map(of_row))
    }

    /// How far away the attended keys are, in tokens: the mean of the distances weighted by attention, over all queries
    /// but the first.
    pub fn distance(&self) -> f64 {
        let of_row = |query: usize| {
            let weights = self.row(query).iter().enumerate();
            weights.map(|(key, weight)| weight * key.abs_diff(query) as f64).sum::<f64>()
        };
        mean((1..self.query_len()).map(of_row))
    }
}

/// The mean; 0 of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}
