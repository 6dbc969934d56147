//! Scaled dot-product attention.

use super::*;

const KERNELS: [AttentionKernel; 4] =
    [AttentionKernel::Auto, AttentionKernel::Composed, AttentionKernel::Blockwise, AttentionKernel::Fused];

/// The weights of attention through any kernel: with the unit matrix as values, the output is the weights.
fn weights(query: Tensor<4>, key: Tensor<4>, mask: &AttentionMask, kernel: AttentionKernel) -> Vec<f64> {
    let [batch, n_kv_heads, key_len, _] = key.dims();
    let unit = Tensor::<2>::eye(key_len, &key.device()).unsqueeze::<4>().expand([batch, n_kv_heads, key_len, key_len]);
    let options = ScoreOptions { kernel, ..ScoreOptions::default() };
    values(scaled_dot_product_attention(query, key, unit, mask, None, &options).context)
}

/// Random keys hidden for each row of the batch.
fn random_padding(batch: usize, key_len: usize, share: f64, numbers: &mut Numbers) -> Tensor<2, Bool> {
    let hidden: Vec<bool> = (0..batch * key_len).map(|_| numbers.uniform() < share).collect();
    Tensor::from_data(TensorData::new(hidden, [batch, key_len]), &flex())
}

proptest! {
    #![proptest_config(cases(32))]

    /// A window of W shows exactly W keys, the query's own included, with causality and (on both sides) without, also
    /// where queries are fewer than keys.
    #[test]
    fn a_window_shows_exactly_its_keys(
        seed in any::<u64>(), queries in 1_usize..9, earlier in 0_usize..7, window in 1_usize..8, causal in any::<bool>()
    ) {
        let device = flex();
        let key_len = queries + earlier;
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([1, 2, queries, 4], &device);
        let key: Tensor<4> = numbers.tensor([1, 1, key_len, 4], &device);
        let mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        for kernel in KERNELS {
            let weights = weights(query.clone(), key.clone(), &mask.clone().with_window(window), kernel);
            for (row, weights) in weights.chunks(key_len).enumerate() {
                let position = row % queries + earlier;
                for (key, weight) in weights.iter().enumerate() {
                    let visible = position.abs_diff(key) < window && (!causal || key <= position);
                    prop_assert_eq!(*weight > 0.0, visible, "{:?}: query {} and key {}", kernel, position, key);
                }
                if causal {
                    let shown = weights.iter().filter(|weight| **weight > 0.0).count();
                    prop_assert_eq!(shown, window.min(position + 1), "{:?}", kernel);
                }
            }
        }
    }

    /// Each output is a convex combination of the visible values: weights are not negative, they sum to 1 (to 0 where
    /// nothing is visible), and the output lies between the least and the largest value of each feature.
    #[test]
    fn outputs_are_convex_combinations(seed in any::<u64>(), share in select(vec![0.0, 0.3, 0.9]), causal in any::<bool>()) {
        let device = flex();
        let [batch, n_heads, n_kv_heads, query_len, key_len, d_value] = [2, 6, 3, 4, 7, 5];
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([batch, n_heads, query_len, 8], &device);
        let key: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, 8], &device);
        let value: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_value], &device);
        let mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        let mask = mask.with_padding(random_padding(batch, key_len, share, &mut numbers));
        let v = values(value.clone());
        for kernel in KERNELS {
            let weights = weights(query.clone(), key.clone(), &mask, kernel);
            let options = ScoreOptions { kernel, ..ScoreOptions::default() };
            let output =
                scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context;
            for (row, (weights, output)) in weights.chunks(key_len).zip(values(output).chunks(d_value)).enumerate() {
                prop_assert!(weights.iter().all(|weight| *weight >= 0.0), "{:?}: {:?}", kernel, weights);
                let sum: f64 = weights.iter().sum();
                if weights.iter().all(|weight| *weight == 0.0) {
                    prop_assert!(output.iter().all(|y| *y == 0.0), "{:?}: {:?}", kernel, output);
                    continue;
                }
                prop_assert!((sum - 1.0).abs() < 10.0 * EPSILON, "{:?}: weights sum to {}", kernel, sum);
                let (batch, head) = (row / (n_heads * query_len), row / query_len % n_heads);
                let first = (batch * n_kv_heads + head / (n_heads / n_kv_heads)) * key_len;
                for (feature, y) in output.iter().enumerate() {
                    let seen = (0..key_len).filter(|key| weights[*key] > 0.0).map(|key| v[(first + key) * d_value + feature]);
                    let (least, most) = seen.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
                    let slack = 10.0 * EPSILON * most.abs().max(least.abs());
                    prop_assert!(least - slack <= *y && *y <= most + slack, "{:?}: {} of {}..{}", kernel, y, least, most);
                }
            }
        }
    }

    /// After rotation, the score of a query and a key depends on the distance of their positions alone.
    #[test]
    fn rotary_scores_depend_on_distance(seed in any::<u64>(), distance in 0_usize..12, start in 0_usize..400) {
        let device = flex();
        let mut numbers = Numbers::new(seed);
        let [query, key] = [(); 2].map(|()| numbers.tensor::<4>([1, 1, 1, 8], &device));
        for rotary in [
            RotaryConfig::new(100.0),
            RotaryConfig::new(1e4).with_style(RotaryStyle::Interleaved),
            RotaryConfig::new(100.0).with_fraction(0.5).with_scaling(RotaryScaling::Linear { factor: 3.0 }),
        ] {
            let score = |start: usize, distance: usize| -> f64 {
                let turn = |x: &Tensor<4>, position: usize| rotary.angles(8, &[vec![position]], &device).apply(x.clone());
                values((turn(&query, start + distance) * turn(&key, start)).sum())[0]
            };
            // An angle of `position` radians is rounded to 32 bits, and each of the numbers turns by that much.
            let size = largest(&values(query.clone())) * largest(&values(key.clone())) * 8.0;
            let bound = (4.0 + 2.0 * (start + distance) as f64) * EPSILON * size;
            let want = score(0, distance);
            assert_close(&format!("{rotary:?}"), &[score(start, distance)], &[want], bound);
        }
    }

    /// As many heads as there are give as many patterns of attention.
    #[test]
    fn heads_attend_differently(seed in any::<u64>(), n_heads in 2_usize..7) {
        let device = flex();
        let attention = randomised(MultiHeadAttentionConfig::new(18, n_heads).with_d_head(5).init(&device), seed);
        let x = Numbers::new(seed).tensor([1, 6, 18], &device);
        let mask = AttentionMask::none();
        let (_, weights) = attention.forward_with_weights(x, None, AttentionContext::masked(&mask));
        prop_assert_eq!(weights.dims(), [1, n_heads, 6, 6]);
        let weights = values(weights);
        let pattern = |head: usize| &weights[head * 36..(head + 1) * 36];
        for head in 0..n_heads {
            for other in 0..head {
                assert_apart(&format!("heads {head} and {other}"), pattern(head), pattern(other), 0.05);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// Grouped heads are heads of their own whose keys and values repeat.
    #[test]
    fn grouped_heads_are_repeated_heads(
        seed in any::<u64>(), heads in select(vec![(4, 2), (6, 3), (6, 2), (5, 1)]), kernel in select(KERNELS.to_vec())
    ) {
        let device = flex();
        let (n_heads, n_kv_heads) = heads;
        let d_head = 4;
        let qk_norm = QkNorm { scope: QkNormScope::PerHead, norm: NormConfig::new(NormKind::Rms) };
        let config = MultiHeadAttentionConfig::new(14, n_heads).with_d_head(d_head).with_qk_norm(qk_norm).with_kernel(kernel);
        let grouped = randomised(config.clone().with_n_kv_heads(n_kv_heads).init(&device), seed);
        let group = n_heads / n_kv_heads;

        // Which key/value head each query head reads.
        let full = |of: &dyn Fn(usize) -> usize| -> MultiHeadAttention {
            let mut full = config.init(&device);
            (full.query, full.output) = (grouped.query.clone(), grouped.output.clone());
            (full.query_norm, full.key_norm) = (grouped.query_norm.clone(), grouped.key_norm.clone());
            for (to, from) in [(&mut full.key, &grouped.key), (&mut full.value, &grouped.value)] {
                let heads = |x: Tensor<2>| {
                    let part = |head: usize| x.clone().slice_dim(1, of(head) * d_head..(of(head) + 1) * d_head);
                    Tensor::cat((0..n_heads).map(part).collect(), 1)
                };
                to.weight = Param::from_tensor(heads(from.weight.val()));
                let bias = from.bias.as_ref().unwrap().val().unsqueeze::<2>();
                to.bias = Some(Param::from_tensor(heads(bias).squeeze::<1>()));
            }
            full
        };
        let x: Tensor<3> = Numbers::new(seed).tensor([2, 7, 14], &device);
        let angles = RotaryConfig::new(50.0).angles(d_head, &[(0..7).collect()], &device);
        let mask = AttentionMask::causal();
        let run = |attention: &MultiHeadAttention| {
            let context = AttentionContext { rotary: Some(&angles), ..AttentionContext::masked(&mask) };
            values(attention.forward(x.clone(), context))
        };
        let got = run(&grouped);
        let want = run(&full(&|head| head / group));
        assert_close("neighbours share", &got, &want, ATTENTION * largest(&want));
        if n_kv_heads > 1 {
            let tiled = run(&full(&|head| head % n_kv_heads));
            assert_apart("heads handed out in turn", &got, &tiled, 100.0 * ATTENTION * largest(&want));
        }
    }

    /// All kernels agree for any mask, window, grouping and bias, over several tiles of keys and queries, and give
    /// zeros for queries that see nothing.
    #[test]
    fn kernels_agree(
        seed in any::<u64>(),
        heads in select(vec![(8, 8), (8, 4), (9, 3), (8, 1)]),
        query_len in select(vec![1_usize, 7, 600, 900]),
        key_len in select(vec![1_usize, 5, 513, 1100]),
        causal in any::<bool>(),
        window in select(vec![None, Some(1_usize), Some(40), Some(700)]),
        padding in select(vec![None, Some(0.2), Some(1.0)]),
        biased in select(vec![None, Some(false), Some(true)]),
        softcap in select(vec![None, Some(1.5)]),
    ) {
        let device = flex();
        let (batch, d_head, d_value) = (2, 4, 3);
        let (n_heads, n_kv_heads) = heads;
        let mut numbers = Numbers::new(seed);
        let query: Tensor<4> = numbers.tensor([batch, n_heads, query_len, d_head], &device);
        let key: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_head], &device);
        let value: Tensor<4> = numbers.tensor([batch, n_kv_heads, key_len, d_value], &device);
        let mut mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        if let Some(window) = window {
            mask = mask.with_window(window);
        }
        if let Some(share) = padding {
            mask = mask.with_padding(random_padding(batch, key_len, share, &mut numbers));
        }
        let bias: Option<Tensor<4>> = biased.map(|infinite| {
            let mut bias = numbers.normals(n_heads * query_len * key_len);
            if infinite {
                // Single scores of minus infinity, and a row of them.
                bias.iter_mut().for_each(|bias| *bias = if numbers.uniform() < 0.3 { f64::NEG_INFINITY } else { *bias });
                let row = numbers.below(n_heads * query_len) * key_len;
                bias[row..row + key_len].fill(f64::NEG_INFINITY);
            }
            Array { shape: vec![1, n_heads, query_len, key_len], values: bias }.tensor(&device)
        });
        let attend = |kernel: AttentionKernel| {
            let options = ScoreOptions { kernel, softcap, ..ScoreOptions::default() };
            let output = scaled_dot_product_attention(
                query.clone(), key.clone(), value.clone(), &mask, bias.as_ref(), &options,
            );
            values(output.context)
        };
        let want = attend(AttentionKernel::Composed);
        let tolerance = ATTENTION * largest(&values(value.clone()));
        for kernel in KERNELS {
            assert_close(&format!("{kernel:?}"), &attend(kernel), &want, tolerance);
        }
    }

    /// The kernels that record gradients agree on them.
    #[test]
    fn kernels_agree_on_gradients(
        seed in any::<u64>(), heads in select(vec![(2, 2), (4, 2)]), key_len in select(vec![5_usize, 520]),
        causal in any::<bool>(), padding in select(vec![None, Some(0.3), Some(1.0)]), softcap in select(vec![None, Some(1.5)]),
    ) {
        let device = flex().autodiff();
        let (n_heads, n_kv_heads) = heads;
        let mut numbers = Numbers::new(seed);
        let mut mask = if causal { AttentionMask::causal() } else { AttentionMask::none() };
        if let Some(share) = padding {
            mask = mask.with_padding(random_padding(2, key_len, share, &mut numbers).autodiff());
        }
        let mut leaf = |heads: usize, len: usize| -> Tensor<4> { numbers.tensor([2, heads, len, 3], &device) };
        let leaves = [leaf(n_heads, 4), leaf(n_kv_heads, key_len), leaf(n_kv_heads, key_len)];
        let direction = leaf(n_heads, 4);
        let slopes = |kernel: AttentionKernel| {
            let [query, key, value] = leaves.clone().map(|leaf| leaf.detach().require_grad());
            let options = ScoreOptions { kernel, softcap, ..ScoreOptions::default() };
            let output = scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options);
            let gradients = (output.context * direction.clone()).sum().backward();
            [query, key, value].map(|leaf| values(leaf.grad(&gradients).expect("a leaf has a gradient")))
        };
        let want = slopes(AttentionKernel::Composed);
        for kernel in [AttentionKernel::Auto, AttentionKernel::Blockwise] {
            for ((got, want), name) in slopes(kernel).iter().zip(&want).zip(["query", "key", "value"]) {
                let tolerance = ATTENTION * largest(want).max(1.0);
                assert_close(&format!("{kernel:?}: gradient of {name}"), got, want, tolerance);
            }
        }
    }
}
