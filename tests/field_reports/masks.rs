//! Masks.

use super::*;

/// NaN for a query whose keys are all masked: <https://github.com/tracel-ai/burn/pull/4697>.
#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    everywhere(|name, set, kernel| {
        let mask = AttentionMask::causal().with_explicit(set.pairs(ROW_1));
        let output = set.attend(&mask, None, &with_kernel(kernel));
        assert_close(name, &output, &CAUSAL_ROW_1_MASKED, MICRO);
        assert_eq!(output[2..4], [0.0, 0.0], "{name}: exactly zero");

        // All keys are padding.
        let all = AttentionMask::none().with_padding(set.padding("xxxxx"));
        assert_eq!(set.attend(&all, None, &with_kernel(kernel)), [0.0; 6], "{name}: padding everywhere");
    });

    // Gradients stay finite, and none reaches what a blind query could have seen.
    for (backend, device) in devices() {
        let set = FiveKeys::new(&device.autodiff());
        for kernel in KERNELS {
            let [query, key, value] = [&set.query, &set.key, &set.value].map(|x| x.clone().require_grad());
            let mask = AttentionMask::none().with_explicit(set.pairs(["xxxxx", "xxxxx", "....."]));
            let options = with_kernel(kernel);
            let output =
                scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), &mask, None, &options).context;
            let gradients = (output.clone() * output).sum().backward();
            let name = format!("{backend}, {kernel:?}");
            let of_query = gradient(&name, &query, &gradients).values;
            assert_eq!(of_query[..4], [0.0; 4], "{name}: gradients of blind queries");
            for leaf in [&query, &key, &value] {
                let values = gradient(&name, leaf, &gradients).values;
                assert!(values.iter().all(|x| x.is_finite()) && largest(&values) > 0.0, "{name}: {values:?}");
            }
        }
    }

    // A whole model with a row that is padding throughout: the other row is what it is alone.
    let golden = golden("llama");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    for (backend, device) in devices() {
        let padding = vec![vec![true; 9], vec![false; 9]];
        let got = logits(&load("llama", &device), &ModelInput::tokens(&rows).with_padding(padding));
        assert!(got.iter().all(|x| x.is_finite()), "{backend}: a row of padding");
        let half = want.len() / 2;
        assert_close(backend, &got[half..], &want[half..], MODEL * largest(&want));
    }
}

/// The same mask as booleans and as numbers: <https://github.com/pytorch/pytorch/issues/103963>.
#[test]
fn booleans_and_minus_infinity_mask_alike() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        let infinite = |rows| set.bias(rows, f64::NEG_INFINITY);
        let none = AttentionMask::none();
        for (what, mask, bias, want) in [
            ("row", none.clone().with_explicit(set.pairs(ROW_1)), None, [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0]),
            ("row as a bias", none.clone(), Some(infinite(ROW_1)), [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0]),
            ("causal pairs", none.clone().with_explicit(set.pairs(CAUSAL_PAIRS)), None, CAUSAL),
            ("causal pairs as a bias", none.clone(), Some(infinite(CAUSAL_PAIRS)), CAUSAL),
            ("causal and a row as a bias", AttentionMask::causal(), Some(infinite(ROW_1)), CAUSAL_ROW_1_MASKED),
            (
                "window and a row as a bias",
                none.clone().with_window(9),
                Some(infinite(ROW_1)),
                [NO_MASK[0], NO_MASK[1], 0.0, 0.0, 4.0, 5.0],
            ),
            // A large negative number is a bias and no mask: the same for all keys, it cancels out,
            // and what is hidden stays hidden.
            (
                "lowest number",
                none.clone(),
                Some(set.bias(ROW_1, f64::from(f32::MIN))),
                [NO_MASK[0], NO_MASK[1], 4.0, 5.0, 4.0, 5.0],
            ),
            (
                "causal and lowest number",
                AttentionMask::causal(),
                Some(set.bias(ROW_1, f64::from(f32::MIN))),
                [CAUSAL[0], CAUSAL[1], 3.0, 4.0, 4.0, 5.0],
            ),
            ("-1e4", none, Some(set.bias(ROW_1, -1e4)), NO_MASK),
        ] {
            // Scores around 1 lose three digits when 1e4 is added to them.
            let tolerance = if what == "-1e4" { 1e-3 } else { MICRO };
            assert_close(&format!("{name}, {what}"), &set.attend(&mask, bias.as_ref(), &options), &want, tolerance);
        }
    });
}

/// One API reads true as "drop", the next as "keep": <https://github.com/pytorch/pytorch/pull/170415>.
#[test]
fn true_hides_on_every_backend() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        let nothing = AttentionMask::none().with_explicit(set.pairs([".....", ".....", "....."]));
        assert_close(&format!("{name}: nothing hidden"), &set.attend(&nothing, None, &options), &NO_MASK, MICRO);
        let nothing = AttentionMask::none().with_padding(set.padding("....."));
        assert_close(&format!("{name}: no padding"), &set.attend(&nothing, None, &options), &NO_MASK, MICRO);
        let key_0 = AttentionMask::none().with_explicit(set.pairs(["x....", "x....", "x...."]));
        assert_close(&format!("{name}: one key hidden"), &set.attend(&key_0, None, &options), &PADDED, MICRO);
    });
    assert_apart("polarities", &CAUSAL, &CAUSAL_INVERTED, 100.0 * MICRO);
}

/// Causality that starts at the first key hides the newest keys from a query that comes with a cache:
/// <https://github.com/pytorch/pytorch/issues/110144>.
#[test]
fn causality_is_aligned_to_the_end_of_the_keys() {
    everywhere(|name, set, kernel| {
        let options = with_kernel(kernel);
        assert_close(name, &set.attend(&AttentionMask::causal(), None, &options), &CAUSAL, MICRO);

        // One query sees every key.
        let (query, key, value) = (set.query.clone().slice_dim(2, 2..3), set.key.clone(), set.value.clone());
        let one = scaled_dot_product_attention(query, key, value, &AttentionMask::causal(), None, &options);
        assert_close(&format!("{name}: one query"), &values(one.context), &CAUSAL[4..], MICRO);
    });
    assert_apart("alignments", &CAUSAL, &CAUSAL_FROM_THE_START, 100.0 * MICRO);
    assert_close("the last query", &CAUSAL[4..], &NO_MASK[4..], 0.0);
}

/// A mask together with causality is refused on one path and taken on another:
/// <https://github.com/pytorch/pytorch/issues/118972>.
#[test]
fn causality_and_padding_both_apply() {
    everywhere(|name, set, kernel| {
        let mask = AttentionMask::causal().with_padding(set.padding("x...."));
        assert_close(name, &set.attend(&mask, None, &with_kernel(kernel)), &CAUSAL_AND_PADDED, MICRO);
    });
    for one in [CAUSAL, PADDED] {
        assert_apart("causality and padding", &CAUSAL_AND_PADDED, &one, 100.0 * MICRO);
    }
}

/// An encoder that returns a shorter sequence where every row ends with padding, and that differs between training and
/// inference: <https://github.com/pytorch/pytorch/issues/97111>, <https://github.com/pytorch/pytorch/issues/86120>.
#[test]
fn an_encoder_keeps_the_length_of_padded_rows() {
    let golden = golden("bert_bare");
    let (rows, padding) = (golden.rows("input_ids"), golden.padding("attention_mask"));
    let types = golden.rows("token_type_ids");
    let longer = |rows: &[Vec<i64>]| rows.iter().map(|row| [&row[..], &[0, 0]].concat()).collect::<Vec<_>>();
    let padding_of_longer: Vec<Vec<bool>> = padding.iter().map(|row| [&row[..], &[true, true]].concat()).collect();
    let run = |model: &Transformer, rows: &[Vec<i64>], types: &[Vec<i64>], padding: &[Vec<bool>]| {
        let input = ModelInput::tokens(rows).with_types(types).with_padding(padding.to_vec());
        let hidden = model.forward(&input, None, ForwardOptions::default()).unwrap().hidden;
        assert_eq!(hidden.dims()[..2], [rows.len(), rows[0].len()], "the length of the output");
        let width = hidden.dims()[2];
        let hidden = values(hidden);
        let places = hidden.chunks(width).zip(padding.iter().flatten());
        places.filter(|(_, is_padding)| !**is_padding).flat_map(|(place, _)| place.to_vec()).collect::<Vec<f64>>()
    };
    for (backend, device) in devices() {
        let model = load("bert_bare", &device);
        let short = run(&model, &rows, &types, &padding);
        let long = run(&model, &longer(&rows), &longer(&types), &padding_of_longer);
        assert_close(backend, &long, &short, MODEL * largest(&short));

        // Without dropout, a model that records gradients computes the same.
        let config = ModelConfig::new(
            ModelKind::Encoder,
            2,
            16,
            MultiHeadAttentionConfig::new(20, 5),
            FeedForwardConfig::new(20, 28),
        )
        .with_embedding(EmbeddingConfig::new(33).with_n_types(2).with_norm(true))
        .with_positions(Positions::Learned(Default::default()))
        .with_block(BlockLayout::new(NormPlacement::Post));
        let [plain, recording] = [device.clone(), device.autodiff()]
            .map(|device| run(&randomised(config.init(&device), 4), &rows, &types, &padding));
        assert_close(&format!("{backend}: training and inference"), &recording, &plain, MODEL * largest(&plain));
    }
}
