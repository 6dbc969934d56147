//! The kernel against attention in 64 bits, one option after the other.

use super::view::{PerScore, View};
use super::{ScoreRule, Scores, Sequences, attention};

/// Scores up to 10 with roundings of 2⁻²⁴ of that, and a weighted mean of values up to 2 in 32 bits: 3e-6.
const TOLERANCE: f64 = 4e-6;

/// Numbers that look random, between −2 and 2.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| {
        let mixed = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed.wrapping_mul(0xBF58_476D_1CE4_E5B9));
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 40) as f32 / (1_u64 << 22) as f32 - 2.0
    };
    (0..count).map(number).collect()
}

/// One request.
#[derive(Clone)]
struct Case {
    batch: usize,
    n_heads: usize,
    n_kv_heads: usize,
    query_len: usize,
    key_len: usize,
    d_head: usize,
    d_value: usize,
    rule: ScoreRule,
    bias: Option<[usize; 3]>,
    hidden: Option<[usize; 3]>,
}

impl Case {
    fn new([n_heads, n_kv_heads]: [usize; 2], [query_len, key_len]: [usize; 2], [d_head, d_value]: [usize; 2]) -> Self {
        let scale = 1.0 / (d_head as f64).sqrt();
        let rule = ScoreRule { scale, softcap: None, is_causal: false, window: None };
        Self { batch: 2, n_heads, n_kv_heads, query_len, key_len, d_head, d_value, rule, bias: None, hidden: None }
    }

    fn with_rule(mut self, change: impl Fn(&mut ScoreRule)) -> Self {
        change(&mut self.rule);
        self
    }

    /// Output of the kernel and in 64 bits, both `[batch, query_len, n_heads, d_value]`, and logarithms of sums.
    fn run(&self) -> [(Vec<f32>, Vec<f64>); 2] {
        let &Self { batch, n_heads, n_kv_heads, query_len, key_len, d_head, d_value, rule, .. } = self;
        // Queries and values with heads side by side, keys head after head with room behind each.
        let room = key_len + 3;
        let q = numbers(batch * query_len * n_heads * d_head, 1);
        let k = numbers(batch * n_kv_heads * room * d_head, 2);
        let v = numbers(batch * key_len * n_kv_heads * d_value, 3);
        let query = View {
            numbers: &q,
            dims: [batch, n_heads, query_len, d_head],
            strides: [query_len * n_heads * d_head, d_head, n_heads * d_head],
        };
        let key = View {
            numbers: &k,
            dims: [batch, n_kv_heads, key_len, d_head],
            strides: [n_kv_heads * room * d_head, room * d_head, d_head],
        };
        let value = View {
            numbers: &v,
            dims: [batch, n_kv_heads, key_len, d_value],
            strides: [key_len * n_kv_heads * d_value, d_value, n_kv_heads * d_value],
        };
        let four = |[a, b, c]: [usize; 3]| [a, b, c, key_len];
        let bias_dims = self.bias.map(four);
        let bias = bias_dims.map(|dims| {
            let mut bias = numbers(dims.iter().product(), 4);
            bias.iter_mut().step_by(7).for_each(|bias| *bias = f32::NEG_INFINITY);
            bias.iter_mut().skip(3).step_by(11).for_each(|bias| *bias = -1e30);
            bias
        });
        let hidden_dims = self.hidden.map(four);
        let hidden: Option<Vec<u8>> =
            hidden_dims.map(|dims| numbers(dims.iter().product(), 5).iter().map(|x| u8::from(*x > 0.5)).collect());
        let scores = Scores {
            rule,
            bias: bias.as_ref().map(|bias| PerScore::repeated(bias, bias_dims.expect("there is a bias"))),
            hidden: hidden.iter().map(|hidden| PerScore::repeated(hidden, hidden_dims.expect("some hidden"))).collect(),
        };
        let mut found = vec![f32::NAN; batch * query_len * n_heads * d_value];
        let mut found_sums = vec![f32::NAN; batch * query_len * n_heads];
        attention(Sequences { query, key, value }, &scores, &mut found, Some(&mut found_sums));

        let (mut expected, mut sums) = (Vec::new(), Vec::new());
        for row in 0..batch * query_len * n_heads {
            let (b, i, h) = (row / n_heads / query_len, row / n_heads % query_len, row % n_heads);
            let kv = h / (n_heads / n_kv_heads);
            let position = i as isize + key_len as isize - query_len as isize;
            let score = |j: usize| {
                let at = j as isize;
                let window = rule.window.map_or(isize::MAX / 2, |window| window as isize);
                let is_hidden = rule.is_causal && at > position
                    || at <= position - window
                    || !rule.is_causal && at >= position + window
                    || scores.hidden.iter().any(|hidden| value_at(hidden, [b, h, i, j]) != 0);
                let products =
                    query.row(b, h, i).iter().zip(key.row(b, kv, j)).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let mut score = products.sum::<f64>() * rule.scale;
                if let Some(cap) = rule.softcap {
                    score = cap * (score / cap).tanh();
                }
                if let Some(bias) = &scores.bias {
                    let bias = f64::from(value_at(bias, [b, h, i, j]));
                    score = if bias == f64::NEG_INFINITY { bias } else { (score + bias).max(-1e29) };
                }
                if is_hidden { f64::NEG_INFINITY } else { score }
            };
            let of_keys: Vec<f64> = (0..key_len).map(score).collect();
            let max = of_keys.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> =
                of_keys.iter().map(|score| if max.is_finite() { (score - max).exp() } else { 0.0 }).collect();
            let sum: f64 = weights.iter().sum();
            sums.push(max + sum.ln());
            for feature in 0..d_value {
                let total: f64 =
                    weights.iter().enumerate().map(|(j, w)| w * f64::from(value.row(b, kv, j)[feature])).sum();
                expected.push(if sum > 0.0 { total / sum } else { 0.0 });
            }
        }
        [(found, expected), (found_sums, sums)]
    }
}

fn value_at<T: Copy>(values: &PerScore<T>, index: [usize; 4]) -> T {
    values.values[index.iter().zip(values.strides).map(|(at, stride)| at * stride).sum::<usize>()]
}

fn largest_difference(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (f64::from(*found) - expected).abs())
        .fold(0.0, |max, error| if error.is_nan() { f64::INFINITY } else { error.max(max) })
}

#[test]
fn every_option_gives_the_exact_value_and_matters() {
    let plain = || Case::new([4, 2], [70, 150], [20, 12]);
    let causal = || plain().with_rule(|rule| rule.is_causal = true);
    let options = [
        ("causal", causal(), plain()),
        ("causal window", causal().with_rule(|rule| rule.window = Some(9)), causal()),
        ("window", plain().with_rule(|rule| rule.window = Some(9)), plain()),
        ("softcap", plain().with_rule(|rule| rule.softcap = Some(1.5)), plain()),
        ("scale", plain().with_rule(|rule| rule.scale = 0.7), plain()),
        ("bias of each head", Case { bias: Some([1, 4, 70]), ..plain() }, plain()),
        ("bias of all queries", Case { bias: Some([2, 1, 1]), ..causal() }, causal()),
        ("padding", Case { hidden: Some([2, 1, 1]), ..plain() }, plain()),
        ("single pairs", Case { hidden: Some([1, 4, 70]), ..causal() }, causal()),
        (
            "all at once",
            Case { bias: Some([1, 4, 1]), hidden: Some([2, 1, 70]), ..causal() }
                .with_rule(|rule| (rule.window, rule.softcap) = (Some(40), Some(2.0))),
            causal(),
        ),
    ];
    for (name, case, without) in options {
        let [(found, expected), (found_sums, sums)] = case.run();
        let error = largest_difference(&found, &expected);
        assert!(error <= TOLERANCE, "{name}: {error:e}");
        let visible = found_sums.iter().zip(&sums).filter(|(_, sum)| sum.is_finite());
        for (found, sum) in visible.filter(|(_, sum)| **sum > -1e20) {
            let error = (f64::from(*found) - sum).abs() / sum.abs().max(1.0);
            assert!(error <= TOLERANCE, "{name}: sum {found}, expected {sum}");
        }
        let [(_, without), _] = without.run();
        let moved = largest_difference(&found, &without);
        assert!(moved >= 100.0 * TOLERANCE, "{name}: moves the result by {moved:e} alone");
    }
}

#[test]
fn every_shape_gives_the_exact_value() {
    for (heads, lengths, widths) in [
        ([1, 1], [1, 1], [1, 1]),
        ([3, 1], [1, 300], [64, 64]),
        ([9, 3], [2, 65], [64, 64]),
        ([2, 2], [16, 16], [32, 32]),
        ([2, 1], [33, 5], [8, 80]),
        ([1, 1], [129, 257], [128, 20]),
        ([6, 2], [48, 131], [80, 3]),
    ] {
        for is_causal in [false, true] {
            let case = Case::new(heads, lengths, widths).with_rule(|rule| rule.is_causal = is_causal);
            let [(found, expected), _] = case.run();
            let error = largest_difference(&found, &expected);
            assert!(error <= TOLERANCE, "heads {heads:?}, lengths {lengths:?}, widths {widths:?}: {error:e}");
        }
    }
}
