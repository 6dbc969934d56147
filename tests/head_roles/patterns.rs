//! Patterns made by hand have exactly the scores that they were made for.

use burnformer::head_roles::{AttentionPattern, HeadId, HeadRole, HeadScores, RepeatedTokens, Visibility};
use burnformer::model::AttentionPart;

const LEN: usize = 9;
const CAUSAL: Visibility = Visibility { is_causal: true, window: None };

fn pattern(len: usize, weight: impl Fn(usize, usize) -> f64) -> AttentionPattern {
    let rows = (0..len).flat_map(|query| (0..len).map(move |key| (query, key)));
    AttentionPattern::new(rows.map(|(query, key)| weight(query, key)).collect(), len)
}

/// All the weight of each query on one key.
fn hard(len: usize, place: impl Fn(usize) -> usize) -> AttentionPattern {
    pattern(len, |query, key| f64::from(place(query) == key))
}

fn scores(part: AttentionPart, pattern: &AttentionPattern, visibility: Visibility) -> HeadScores {
    HeadScores::of(HeadId { part, layer: 0, head: 0 }, pattern, visibility)
}

/// Nine tokens, so that the second query is one of eight in every mean.
const SECOND: f64 = 1.0 / (LEN - 1) as f64;

#[test]
fn a_head_on_the_token_before_has_exactly_its_scores() {
    let found = scores(AttentionPart::Decoder, &hard(LEN, |query| query.saturating_sub(1)), CAUSAL);
    assert_eq!(found.role, HeadRole::PreviousToken);
    // The token before the second one is also the first.
    assert_eq!((found.previous_token, found.first_token, found.own_token), (Some(1.0), SECOND, Some(0.0)));
    assert_eq!((found.entropy, found.distance, found.next_token), (0.0, Some(1.0), None));
}

#[test]
fn a_head_on_the_first_token_has_exactly_its_scores() {
    let found = scores(AttentionPart::Decoder, &hard(LEN, |_| 0), CAUSAL);
    assert_eq!(found.role, HeadRole::FirstToken);
    assert_eq!((found.previous_token, found.first_token, found.own_token), (Some(SECOND), 1.0, Some(0.0)));
    // 1 to 8 tokens back.
    assert_eq!((found.entropy, found.distance), (0.0, Some(4.5)));
}

#[test]
fn a_head_on_its_own_token_has_exactly_its_scores() {
    let found = scores(AttentionPart::Decoder, &hard(LEN, |query| query), CAUSAL);
    assert_eq!(found.role, HeadRole::OwnToken);
    assert_eq!((found.previous_token, found.first_token, found.own_token), (Some(0.0), 0.0, Some(1.0)));
    assert_eq!(found.distance, Some(0.0));
}

#[test]
fn an_encoder_head_on_the_token_after_has_exactly_its_scores() {
    let pattern = hard(LEN, |query| (query + 1).min(LEN - 1));
    let found = scores(AttentionPart::Encoder, &pattern, Visibility::default());
    assert_eq!(found.role, HeadRole::NextToken);
    assert_eq!((found.next_token, found.previous_token, found.own_token), (Some(1.0), Some(0.0), Some(SECOND)));
}

#[test]
fn a_uniform_head_has_the_largest_entropy_that_its_mask_leaves() {
    let visibilities = [
        (AttentionPart::Decoder, CAUSAL),
        (AttentionPart::Decoder, Visibility { is_causal: true, window: Some(4) }),
        (AttentionPart::Encoder, Visibility { is_causal: false, window: Some(3) }),
        (AttentionPart::Encoder, Visibility::default()),
    ];
    for (part, visibility) in visibilities {
        let sees = |query: usize, key: usize| {
            let is_after = visibility.is_causal && key > query;
            !is_after && visibility.window.is_none_or(|window| query.abs_diff(key) < window)
        };
        let count = |query: usize| (0..LEN).filter(|key| sees(query, *key)).count() as f64;
        let weights = pattern(LEN, |query, key| if sees(query, key) { count(query).recip() } else { 0.0 });
        let found = scores(part, &weights, visibility);
        assert!((found.entropy - 1.0).abs() < 1e-12, "{visibility:?}: {}", found.entropy);
        assert_eq!(found.role, HeadRole::Uniform, "{visibility:?}");
    }
    // Half of the keys alone: 1 − ln 2 / ln n of the largest entropy, which is not enough.
    let half = pattern(32, |_, key| if key % 2 == 0 { 1.0 / 16.0 } else { 0.0 });
    let found = scores(AttentionPart::Encoder, &half, Visibility::default());
    assert!((found.entropy - 0.8).abs() < 1e-12, "{}", found.entropy);
    assert_eq!(found.role, HeadRole::Mixed);
}

#[test]
fn roles_begin_above_half_of_the_weight() {
    for (share, role) in [(0.51, HeadRole::PreviousToken), (0.49, HeadRole::OwnToken), (0.5, HeadRole::Mixed)] {
        let weights = pattern(LEN, |query, key| match (query, query - key.min(query)) {
            (0, _) => f64::from(key == 0),
            (_, 1) => share,
            (_, 0) if key == query => 1.0 - share,
            _ => 0.0,
        });
        let found = scores(AttentionPart::Decoder, &weights, CAUSAL);
        assert_eq!(found.role, role, "{share}: {found:?}");
    }
}

#[test]
fn induction_and_duplicates_are_measured_in_the_second_saying() {
    let repeated = RepeatedTokens { prefix: vec![1], once: vec![5, 9, 7, 8] };
    assert_eq!(repeated.tokens(), [1, 5, 9, 7, 8, 5, 9, 7, 8]);
    // The token after the first occurrence is three back, the occurrence four.
    let from = |back: usize| hard(LEN, move |query| if query < 5 { 0 } else { query - back });
    assert_eq!(repeated.scores(&from(3), CAUSAL), [Some(1.0), Some(0.0)]);
    assert_eq!(repeated.scores(&from(4), CAUSAL), [Some(0.0), Some(1.0)]);
    assert_eq!(repeated.scores(&from(2), CAUSAL), [Some(0.0), Some(0.0)]);
    let window = |window| Visibility { is_causal: true, window: Some(window) };
    assert_eq!(repeated.scores(&from(3), window(5)), [Some(1.0), Some(0.0)]);
    assert_eq!(repeated.scores(&from(3), window(4)), [Some(1.0), None]);
    assert_eq!(repeated.scores(&from(3), window(3)), [None, None]);
}

#[test]
fn repeated_tokens_are_drawn_by_seed_and_all_differ() {
    let drawn = |seed| RepeatedTokens::random(Vec::new(), 40, 50, seed).once;
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let mut sorted = drawn(1);
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 40);
    assert!(sorted.iter().all(|id| (0..50).contains(id)));
    assert_eq!(RepeatedTokens::random(Vec::new(), 40, 7, 1).once.len(), 7);
}

#[test]
fn cross_attention_has_no_place_relative_to_its_query() {
    let pattern = AttentionPattern::new([0.5, 0.25, 0.25].repeat(5), 3);
    let found = scores(AttentionPart::Cross, &pattern, Visibility::default());
    assert_eq!((found.previous_token, found.next_token, found.own_token, found.distance), (None, None, None, None));
    assert_eq!(found.first_token, 0.5);
    let entropy = (0.5 * 2f64.ln() + 0.5 * 4f64.ln()) / 3f64.ln();
    assert!((found.entropy - entropy).abs() < 1e-12);
}
