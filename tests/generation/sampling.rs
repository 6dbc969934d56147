//! Which tokens may be drawn, and how often each is.

use burnformer::error::Error;
use burnformer::generation::{Candidate, GenerationOptions, Sampler, Sampling};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases;

const INF: f64 = f64::INFINITY;

fn sampler(sampling: Sampling) -> Sampler {
    Sampler::new(sampling, 3, 0).unwrap_or_else(|error| panic!("{error}"))
}

fn hot() -> Sampling {
    Sampling::default().with_temperature(1.0)
}

fn candidates(sampling: Sampling, logits: &[f64], history: &[u32]) -> Vec<Candidate> {
    sampler(sampling).candidates(logits, history).unwrap_or_else(|error| panic!("{error}"))
}

/// The tokens that may be drawn where these are the probabilities.
fn kept(sampling: Sampling, probabilities: &[f64]) -> Vec<u32> {
    let logits: Vec<f64> = probabilities.iter().map(|p| p.ln()).collect();
    candidates(sampling, &logits, &[]).iter().map(|candidate| candidate.token).collect()
}

fn greedy(logits: &[f64]) -> u32 {
    sampler(Sampling::greedy()).sample(logits, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// Logits that are no numbers, and temperatures at the edge: <https://github.com/robertknight/rten/pull/1089>,
/// <https://github.com/JustVugg/colibri/issues/369>, <https://github.com/ohdearquant/lattice/issues/295>,
/// <https://github.com/vllm-project/vllm/pull/890>.
#[test]
fn edges_of_logits_and_temperature() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), 1, "the lowest of equal ones");
    assert_eq!(greedy(&[-3.0, -INF, -2.0]), 2);
    for temperature in [1e-30, 1e-310, f64::MIN_POSITIVE] {
        let tiny = candidates(Sampling::default().with_temperature(temperature), &[1.0, 3.0, 3.0, 2.0], &[]);
        let want = [1, 2].map(|token| Candidate { token, probability: 0.5 });
        assert_eq!(tiny, want, "temperature {temperature}");
    }
    for sampling in [Sampling::greedy(), hot(), hot().with_top_p(0.5), Sampling::default().with_temperature(1e-300)] {
        for broken in [&[f64::NAN, 1.0][..], &[1.0, f64::NAN], &[INF, f64::NAN], &[-INF, -INF], &[-INF], &[]] {
            let error = sampler(sampling).sample(broken, &[]).expect_err("no token can be drawn");
            assert!(matches!(error, Error::Logits(_)), "{broken:?}: {error}");
        }
        let infinite = sampler(sampling).sample(&[5.0, INF, INF, 9.0], &[]);
        assert_eq!(infinite.expect("plus infinity wins"), 1);
    }
    let huge = candidates(Sampling::default().with_temperature(1e300), &[1e30, -1e30, -INF], &[]);
    assert_eq!(huge, [0, 1].map(|token| Candidate { token, probability: 0.5 }), "and minus infinity never");
}

/// Which tokens are left: <https://github.com/rasbt/reasoning-from-scratch/issues/164>,
/// <https://github.com/google-deepmind/simply/pull/42>, <https://github.com/flashinfer-ai/flashinfer/pull/3774>,
/// <https://github.com/paiml/aprender/pull/2018>.
#[test]
fn edges_of_top_p_and_top_k() {
    for (probabilities, top_p, tokens) in [
        (&[0.4, 0.3, 0.2, 0.1][..], 0.8, &[0, 1, 2][..]),
        (&[0.5, 0.41, 0.09], 0.9, &[0, 1]),
        (&[0.25; 4], 0.5, &[0, 1]),
        (&[0.1, 0.2, 0.3, 0.4], 0.8, &[1, 2, 3]),
        (&[0.4, 0.3, 0.2, 0.1], 0.0, &[0]),
        (&[0.4, 0.3, 0.2, 0.1], 1.0, &[0, 1, 2, 3]),
        (&[1.0], 0.5, &[0]),
    ] {
        assert_eq!(kept(hot().with_top_p(top_p), probabilities), tokens, "{probabilities:?}, top p {top_p}");
    }
    for (top_k, tokens) in [(0, &[0, 1, 2, 3][..]), (1, &[1]), (2, &[0, 1]), (3, &[0, 1, 2]), (4, &[0, 1, 2, 3])] {
        assert_eq!(kept(hot().with_top_k(top_k), &[0.2, 0.4, 0.2, 0.2]), tokens, "top k {top_k}");
    }
    assert_eq!(kept(hot().with_top_k(1000), &[0.5, 0.5]), [0, 1], "more than there are");
    for (min_p, tokens) in [(0.0, &[0, 1, 2][..]), (0.3, &[0, 1]), (0.61, &[0]), (1.0, &[0])] {
        assert_eq!(kept(hot().with_min_p(min_p), &[0.5, 0.3, 0.1]), tokens, "min p {min_p}");
    }
}

/// Each step sees what the one before it left; values by hand.
#[test]
fn steps_come_in_their_order() {
    // The penalty comes first: 2 / 4 and -1 * 4, once per token however often it occurred.
    let penalised = candidates(hot().with_repetition_penalty(4.0), &[2.0, -1.0, 0.5], &[0, 1, 0, 9]);
    let weights = [0.5, -4.0, 0.5].map(f64::exp);
    for (found, weight) in penalised.iter().zip(weights) {
        assert!((found.probability - weight / weights.iter().sum::<f64>()).abs() < 1e-12, "{penalised:?}");
    }
    let greedy = Sampling::greedy().with_repetition_penalty(4.0);
    assert_eq!(candidates(greedy, &[2.0, -1.0, 1.0], &[0])[0].token, 2, "it acts on greedy choices");
    // Temperature 0.5 squares the ratios: 0.5, 0.3, 0.2 become 25, 9, 4 of 38, so that top p 0.6 is reached by one token.
    let squared = hot().with_temperature(0.5);
    assert_eq!(kept(squared.with_top_p(0.6), &[0.5, 0.3, 0.2]), [0]);
    assert_eq!(kept(hot().with_top_p(0.6), &[0.5, 0.3, 0.2]), [0, 1]);
    assert_eq!(kept(squared.with_min_p(0.3), &[0.5, 0.3, 0.2]), [0, 1]);
    assert_eq!(kept(squared.with_min_p(0.4), &[0.5, 0.3, 0.2]), [0]);
    // Top p is a share of what top k left: of 0.4 and 0.3, the first is 0.57.
    assert_eq!(kept(hot().with_top_k(2).with_top_p(0.5), &[0.4, 0.3, 0.2, 0.1]), [0]);
    assert_eq!(kept(hot().with_top_p(0.5), &[0.4, 0.3, 0.2, 0.1]), [0, 1]);
    let halves = candidates(hot().with_top_k(2), &[0.0, 0.0, -1.0], &[]);
    assert_eq!(halves, [0, 1].map(|token| Candidate { token, probability: 0.5 }), "what is left adds up to 1");
}

#[test]
fn all_options_out_of_range_are_named_at_once() {
    let sampling = Sampling { temperature: -1.0, top_k: 0, top_p: 1.5, min_p: f64::NAN, repetition_penalty: 0.0 };
    let options =
        GenerationOptions::new(1).with_sampling(sampling).with_prefill_chunk(0).with_stop_strings(vec![String::new()]);
    let faults = options.validate().expect_err("nothing is in range").faults;
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "sampling.temperature",
            "sampling.top_p",
            "sampling.min_p",
            "sampling.repetition_penalty",
            "prefill_chunk",
            "stop_strings"
        ]
    );
    for temperature in [f64::NAN, INF, -1e-9] {
        let error = Sampler::new(Sampling::default().with_temperature(temperature), 0, 0).expect_err("out of range");
        assert!(error.to_string().contains("`temperature` must be a number of at least 0"), "{error}");
    }
}

/// The shares of 40,000 draws against the probabilities: the deviation of a share is at most 0.0025, and five of these are
/// allowed.
#[test]
fn draws_have_their_probabilities() {
    let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
    let want = candidates(hot(), &logits, &[]);
    let mut sampler = sampler(hot());
    let mut counts = [0.0; 5];
    const DRAWS: usize = 40_000;
    for _ in 0..DRAWS {
        counts[sampler.sample(&logits, &[]).expect("a token") as usize] += 1.0 / DRAWS as f64;
    }
    for (count, candidate) in counts.iter().zip(want) {
        assert!((count - candidate.probability).abs() < 0.0125, "{counts:?}");
    }
}

#[test]
fn a_seed_and_a_stream_mean_the_same_draws() {
    let logits = vec![0.0; 1000];
    let draws = |seed, stream| {
        let mut sampler = Sampler::new(hot(), seed, stream).expect("in range");
        (0..8).map(|_| sampler.sample(&logits, &[]).expect("a token")).collect::<Vec<u32>>()
    };
    assert_eq!(draws(1, 0), draws(1, 0));
    assert_ne!(draws(1, 0), draws(2, 0));
    assert_ne!(draws(1, 0), draws(1, 1));
}

fn options() -> impl Strategy<Value = Sampling> {
    let share = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    let temperature = prop_oneof![Just(0.0), Just(1e-300), 0.01..10.0];
    (temperature, 0usize..8, share.clone(), share, 0.5..2.0).prop_map(
        |(temperature, top_k, top_p, min_p, repetition_penalty)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
        },
    )
}

proptest! {
    #![proptest_config(cases(400))]

    /// Whatever the options: something is left, in order and adding up to 1; the most probable token is among it; no
    /// token that is left out is more probable than one that is left; and only what is left is drawn.
    #[test]
    fn what_is_left_is_the_most_probable(
        sampling in options(),
        logits in vec(prop_oneof![Just(-INF), -20.0f64..20.0, (-3i32..3).prop_map(f64::from)], 1..12),
        history in vec(0u32..14, 0..6),
    ) {
        prop_assume!(logits.iter().any(|logit| *logit > -INF));
        let left = candidates(sampling, &logits, &history);
        prop_assert!(!left.is_empty());
        prop_assert!(left.is_sorted_by(|a, b| a.token < b.token));
        prop_assert!((left.iter().map(|candidate| candidate.probability).sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!(left.iter().all(|candidate| (candidate.token as usize) < logits.len()));
        if sampling.top_k > 0 {
            prop_assert!(left.len() <= sampling.top_k);
        }
        let all = candidates(Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..sampling }, &logits, &history);
        let is_left = |token: u32| left.iter().any(|candidate| candidate.token == token);
        let least = all.iter().filter(|c| is_left(c.token)).map(|c| c.probability).fold(INF, f64::min);
        for candidate in all.iter().filter(|candidate| !is_left(candidate.token)) {
            prop_assert!(candidate.probability <= least);
        }
        let token = sampler(sampling).sample(&logits, &history).expect("there is a token");
        prop_assert!(is_left(token));
    }

    /// Greedy is what every temperature comes to as it falls, and what keeping one token gives.
    #[test]
    fn ways_of_being_greedy_agree(logits in vec(-20.0f64..20.0, 1..12)) {
        let token = greedy(&logits);
        for sampling in [
            Sampling::default().with_temperature(1e-30),
            hot().with_top_k(1),
            hot().with_top_p(0.0),
            hot().with_min_p(1.0),
        ] {
            prop_assert_eq!(sampler(sampling).sample(&logits, &[]).expect("a token"), token);
        }
    }
}
