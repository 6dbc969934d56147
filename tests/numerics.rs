//! The small functions that everything is made of, compared on every backend with values in 64 bits, and what keeps
//! their digits in half precision.

mod common;

use std::collections::BTreeSet;

use burn::module::Param;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burnformer::activation::Activation;
use burnformer::attention::{
    AlibiConfig, AttentionKernel, AttentionMask, AttentionRequest, MaskForm, MultiHeadAttentionConfig, RotaryConfig,
    RotaryScaling, RotaryStyle, ScoreOptions, alibi_slopes, scaled_dot_product_attention, supports,
};
use burnformer::backend::{DeviceName, float_dtype};
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{ModelConfig, ModelKind};
use burnformer::norm::{NormConfig, NormKind};
use burnformer::positions::{Positions, sinusoidal};
use serde_json::Value;

use common::{
    Array, EPSILON, FiveKeys, Numbers, array_of, assert_apart, assert_close, devices, functional, gradient, largest,
    numbers, values,
};

/// A function of one number, relative to its largest value: a handful of roundings of 6e-8, and GPU backends, whose
/// `erf`, `exp` and `tanh` are approximations good to about 5e-7.
const PURE: f64 = 2e-6;

/// What is computed on the host in 64 bits, relative: the fixtures hold nine digits.
const NINE_DIGITS: f64 = 1e-8;

/// One rounding to 16 bits with 11 significant bits, and to bfloat16 with 8.
const HALF: f64 = 1.0 / 2048.0;
const BFLOAT: f64 = 1.0 / 256.0;

/// Every kernel that honours the request on the device.
fn kernels(request: &AttentionRequest, device: &Device) -> Vec<AttentionKernel> {
    use AttentionKernel::{Auto, Blockwise, Composed, Fused};
    [Auto, Composed, Blockwise, Fused].into_iter().filter(|kernel| supports(*kernel, request, device).is_ok()).collect()
}

fn request(scores: [usize; 4], n_kv_heads: usize, device: &Device) -> AttentionRequest {
    AttentionRequest {
        scores,
        n_kv_heads,
        mask: MaskForm::None,
        biased: false,
        softcapped: false,
        dropout: false,
        return_weights: false,
        autodiff: device.is_autodiff(),
    }
}

/// The 16-bit types that a backend computes in.
fn half_types(backend: &str, device: &Device) -> Vec<(&'static str, FloatDType, f64)> {
    let name: DeviceName = backend.parse().expect("a backend's name is a device name");
    [("f16", FloatDType::F16, HALF), ("bf16", FloatDType::BF16, BFLOAT)]
        .into_iter()
        .filter(|(dtype, ..)| float_dtype(dtype, &name, device).is_ok())
        .collect()
}

/// Runs `check` in every 16-bit type of every backend, and fails if that is nowhere.
fn in_half_precision(mut check: impl FnMut(&str, FloatDType, f64, &Device)) {
    let mut checked = BTreeSet::new();
    for (backend, device) in devices() {
        for (dtype, float, rounding) in half_types(backend, &device) {
            check(&format!("{backend}, {dtype}"), float, rounding, &device);
            checked.insert((backend, dtype));
        }
    }
    assert!(checked.contains(&("flex", "f16")) && checked.contains(&("flex", "bf16")), "only {checked:?} was checked");
}

// ---------------------------------------------------------------------------------------------------------------------
// Activations and norms
// ---------------------------------------------------------------------------------------------------------------------

const ACTIVATIONS: [(&str, Activation); 6] = [
    ("gelu", Activation::Gelu),
    ("gelu_tanh", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("silu", Activation::Silu),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
];

#[test]
fn activations_and_their_derivatives() {
    let cases = &functional()["activations"];
    let x = array_of(&cases["x"]);
    for (backend, plain) in devices() {
        for (name, activation) in ACTIVATIONS {
            let case = &cases[name];
            let (value, derivative) = (numbers(&case["value"]), numbers(&case["derivative"]));
            let got = values(activation.forward(x.tensor::<1>(&plain)));
            assert_close(&format!("{backend}: {name}"), &got, &value, PURE * largest(&value));

            let x: Tensor<1> = x.tensor(&plain.clone().autodiff()).require_grad();
            let y = activation.forward(x.clone());
            assert_close(
                &format!("{backend} with autodiff: {name}"),
                &values(y.clone()),
                &value,
                PURE * largest(&value),
            );
            let got = gradient(name, &x, &y.sum().backward()).values;
            let name = format!("{backend}: derivative of {name}");
            assert_close(&name, &got, &derivative, PURE * largest(&derivative));
        }
        let tanh = values(Activation::Tanh.forward(x.tensor::<1>(&plain)));
        let want: Vec<f64> = x.values.iter().map(|x| x.tanh()).collect();
        assert_close(&format!("{backend}: tanh"), &tanh, &want, PURE);
    }
    // No two of them are near enough to be taken for each other, and neither are their derivatives.
    for (index, (one, _)) in ACTIVATIONS.iter().enumerate() {
        for (other, _) in &ACTIVATIONS[index + 1..] {
            for what in ["value", "derivative"] {
                let [a, b] = [one, other].map(|name| numbers(&cases[*name][what]));
                assert_apart(&format!("{what} of {one} and {other}"), &a, &b, 100.0 * PURE);
            }
        }
    }
}

#[test]
fn layer_norm_keeps_its_digits() {
    for (backend, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            for case in functional()["layer_norm"].as_array().expect("a list of cases") {
                let eps = case["eps"].as_f64().expect("eps is a number");
                let x: Tensor<1> = array_of(&case["x"]).tensor(&device);
                let want = numbers(&case["output"]);
                // Without parameters the norm takes another path than with them.
                for kind in [NormKind::Layer, NormKind::LayerNoBias, NormKind::LayerNoAffine, NormKind::LayerPlusOne] {
                    let norm = NormConfig::new(kind).with_eps(eps).init(want.len(), &device);
                    let got = values(norm.forward(x.clone().unsqueeze::<2>()));
                    assert_close(&format!("{backend}, {kind:?}, {case}"), &got, &want, PURE * largest(&want));
                }
            }
        }
    }
}

#[test]
fn rms_norm_in_both_forms() {
    let case = &functional()["rms_norm"];
    let eps = case["eps"].as_f64().expect("eps is a number");
    for (backend, device) in devices() {
        for (kind, key) in [(NormKind::Rms, "output"), (NormKind::RmsPlusOne, "output_one_plus_weight")] {
            let mut norm = NormConfig::new(kind).with_eps(eps).init(4, &device);
            norm.weight = Some(Param::from_tensor(array_of(&case["weight"]).tensor(&device)));
            let x: Tensor<1> = array_of(&case["x"]).tensor(&device);
            let want = numbers(&case[key]);
            let got = values(norm.forward(x.unsqueeze::<3>()));
            assert_close(&format!("{backend}, {kind:?}"), &got, &want, PURE * largest(&want));
        }
    }
}

/// The square of 300 is more than the largest 16-bit number.
#[test]
fn norms_of_large_half_precision_numbers() {
    let x = [300.0, -300.0, 600.0, 150.0];
    let mean = x.iter().sum::<f64>() / 4.0;
    let spread = |centre: f64| (x.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / 4.0 + 1e-5).sqrt();
    in_half_precision(|name, dtype, rounding, device| {
        for (kind, centre) in [(NormKind::Layer, mean), (NormKind::LayerNoAffine, mean), (NormKind::Rms, 0.0)] {
            let norm = NormConfig::new(kind).init(4, device);
            let got = norm.forward(Array { shape: vec![1, 4], values: x.to_vec() }.tensor_of::<2>(dtype, device));
            assert_eq!(got.dtype(), DType::from(dtype), "{name}: the type of the output");
            let want: Vec<f64> = x.iter().map(|x| (x - centre) / spread(centre)).collect();
            assert_close(&format!("{name}, {kind:?}"), &values(got), &want, rounding * largest(&want));
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn sinusoidal_positions() {
    let cases = &functional()["sinusoidal"];
    for (position, key) in [(1, "row_1"), (7, "row_7")] {
        let want = numbers(&cases["length_50_width_64"][key]);
        assert_close(key, &sinusoidal(position, 64)[..want.len()], &want, NINE_DIGITS);
    }
    assert_close("odd width", &sinusoidal(2, 5), &numbers(&cases["width_5"]["row_2"]), NINE_DIGITS);

    // As textbooks print them, with four digits.
    let printed = 5.1e-5;
    let row = |position: usize| sinusoidal(position, 64)[..6].to_vec();
    assert_close("row 1", &row(1), &[0.8415, 0.5403, 0.6816, 0.7318, 0.5332, 0.8460], printed);
    assert_close("row 7", &row(7), &[0.6570, 0.7539, -0.8593, 0.5114, -0.7137, -0.7004], printed);
    assert_close("row 0", &row(0), &[0.0, 1.0, 0.0, 1.0, 0.0, 1.0], 0.0);
}

/// The vector of `t + k` is the vector of `t`, each pair turned by an angle that `k` alone determines: the angle whose
/// sine and cosine the vector of `k` itself holds.
#[test]
fn a_later_sinusoidal_position_is_a_rotation() {
    for width in [2, 6, 64] {
        for k in [1, 2, 5, 40] {
            let turn = sinusoidal(k, width);
            for t in [0, 1, 3, 17, 200] {
                let turned: Vec<f64> = sinusoidal(t, width)
                    .chunks(2)
                    .zip(turn.chunks(2))
                    .flat_map(|(at, by)| [at[0] * by[1] + at[1] * by[0], at[1] * by[1] - at[0] * by[0]])
                    .collect();
                assert_close(&format!("width {width}, {t} + {k}"), &turned, &sinusoidal(t + k, width), 1e-12);
            }
        }
    }
}

#[test]
fn embeddings_add_sinusoidal_positions() {
    for (backend, device) in devices() {
        for width in [5, 8] {
            let config = ModelConfig::new(
                ModelKind::Encoder,
                1,
                50,
                MultiHeadAttentionConfig::new(width, 1),
                FeedForwardConfig::new(width, 3),
            )
            .with_embedding(EmbeddingConfig::new(2))
            .with_positions(Positions::Sinusoidal);
            let mut embedding = config.init(&device).embedding.expect("the model has embeddings");
            embedding.tokens = Param::from_tensor(Tensor::zeros([2, width], &device));
            let positions = [vec![Some(0), Some(1), Some(7)], vec![Some(2), Some(49), Some(3)]];
            let got = embedding.forward(&[vec![0, 1, 0], vec![1, 1, 0]], &positions, None);
            let rows = positions.iter().flatten().flat_map(|position| sinusoidal(position.unwrap(), width));
            assert_close(backend, &values(got), &rows.collect::<Vec<f64>>(), PURE);
        }
    }
}

/// The scaling of a case of `rope_frequencies`.
fn scaling(case: &Value) -> RotaryScaling {
    let parameters = &case["parameters"];
    let number = |key: &str| parameters[key].as_f64();
    let factor = || number("factor").expect("the case has a factor");
    let max_seq_len = case["max_position_embeddings"].as_u64().expect("a length") as usize;
    let original = || parameters["original_max_position_embeddings"].as_u64().expect("a length") as usize;
    match parameters["rope_type"].as_str().expect("a type") {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear { factor: factor() },
        "dynamic" => RotaryScaling::Dynamic { factor: factor(), original_max_seq_len: max_seq_len },
        "llama3" => RotaryScaling::Llama3 {
            factor: factor(),
            low_freq_factor: number("low_freq_factor").unwrap(),
            high_freq_factor: number("high_freq_factor").unwrap(),
            original_max_seq_len: original(),
        },
        "yarn" => RotaryScaling::Yarn {
            factor: factor(),
            original_max_seq_len: original(),
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: number("mscale"),
            mscale_all_dim: number("mscale_all_dim"),
            truncate: true,
        },
        "longrope" => RotaryScaling::Longrope {
            short_factor: numbers(&parameters["short_factor"]),
            long_factor: numbers(&parameters["long_factor"]),
            original_max_seq_len: original(),
            max_seq_len,
            factor: None,
            attention_factor: None,
        },
        other => panic!("no case has the type {other}"),
    }
}

#[test]
fn rotary_frequencies_of_every_scaling() {
    let cases = functional()["rope_frequencies"].clone();
    let cases = cases.as_array().expect("a list of cases");
    assert_eq!(cases.len(), 11);
    for case in cases {
        let name = case["name"].as_str().expect("a case has a name");
        let theta = case["theta"].as_f64().expect("theta is a number");
        let d_head = case["head_dim"].as_u64().expect("a size") as usize;
        let fraction = case["parameters"]["partial_rotary_factor"].as_f64().unwrap_or(1.0);
        let rotary = RotaryConfig::new(theta).with_fraction(fraction).with_scaling(scaling(case));
        rotary.validate(d_head).unwrap_or_else(|error| panic!("{name}: {error}"));
        let len = case["length"].as_u64().unwrap_or(1) as usize;
        let found = rotary.frequencies(d_head, len);

        let want = numbers(&case["inv_freq"]);
        assert_eq!(found.inverse.len(), want.len(), "{name}: number of frequencies");
        // Each frequency on its own: the lowest is thousands of times smaller than the first.
        let ratios: Vec<f64> = found.inverse.iter().zip(&want).map(|(got, want)| got / want).collect();
        assert_close(name, &ratios, &vec![1.0; want.len()], NINE_DIGITS);
        let factor = case["attention_factor"].as_f64().expect("a factor");
        assert_close(&format!("{name}: attention factor"), &[found.attention_factor], &[factor], NINE_DIGITS * factor);
    }
}

#[test]
fn rotations_in_both_layouts() {
    let case = &functional()["rope_rotation"];
    let position = case["position"].as_u64().expect("a position") as usize;
    let rotary = RotaryConfig::new(case["theta"].as_f64().expect("theta is a number"));
    let Array { values: x, .. } = array_of(&case["x"]);
    for (backend, device) in devices() {
        for (key, config) in [
            ("half", rotary.clone()),
            ("interleaved", rotary.clone().with_style(RotaryStyle::Interleaved)),
            ("half_first_4", rotary.clone().with_fraction(0.5)),
        ] {
            let want = numbers(&case[key]);
            // The vector stands among others: in row 1, head 1 and place 2, and each row has its own positions.
            let mut all = Numbers::new(11).normals(2 * 3 * 4 * 8);
            let at = ((3 + 1) * 4 + 2) * 8;
            all[at..at + 8].copy_from_slice(&x);
            let positions = [vec![5, 0, 9, 1], vec![8, 2, position, 6]];
            let all = Array { shape: vec![2, 3, 4, 8], values: all };
            let turned = config.angles(8, &positions, &device).apply(all.tensor(&device));
            assert_close(&format!("{backend}: {key}"), &values(turned)[at..at + 8], &want, PURE * largest(&want));
        }
    }
    let [half, interleaved, part] = ["half", "interleaved", "half_first_4"].map(|key| numbers(&case[key]));
    assert_apart("layouts", &half, &interleaved, 100.0 * PURE * largest(&half));
    assert_apart("fractions", &half, &part, 100.0 * PURE * largest(&half));
}

/// Angles of distant positions, with inputs of 32 and of 16 bits. Where angles are rounded to bfloat16, position 257
/// turns by the angle of 256, and the cosine is 0.871 in place of 1.000.
#[test]
fn rotary_angles_of_distant_positions() {
    let positions = [257, 1857, 4097];
    let rotary = RotaryConfig::new(1e4);
    // Feature 1 turns with the second frequency, together with feature 17.
    let turned = |dtype: FloatDType, device: &Device| -> Vec<f64> {
        let one = (0..3 * 32).map(|index| f64::from(u8::from(index % 32 == 1)));
        let x = Array { shape: vec![1, 1, 3, 32], values: one.collect() }.tensor_of(dtype, device);
        let y = rotary.angles(32, &[positions.to_vec()], device).apply(x);
        assert_eq!(y.dtype(), DType::from(dtype), "the type of the output");
        let y = values(y);
        (0..3).flat_map(|row| [y[row * 32 + 1], y[row * 32 + 17]]).collect()
    };
    let frequency = 1e4_f64.powf(-2.0 / 32.0);
    let exact: Vec<f64> = positions.iter().map(|p| *p as f64 * frequency).flat_map(|a| [a.cos(), a.sin()]).collect();
    // The frequency and its product with the position are each rounded to 32 bits.
    let bound = EPSILON * 4097.0 * frequency + EPSILON;
    for (backend, device) in devices() {
        assert_close(&format!("{backend}, f32"), &turned(FloatDType::F32, &device), &exact, bound);
    }
    in_half_precision(|name, dtype, rounding, device| {
        assert_close(name, &turned(dtype, device), &exact, bound + rounding);
    });
    let rounded = (144.0_f64.cos() - exact[0]).abs();
    assert!(rounded > 10.0 * BFLOAT, "an angle rounded to bfloat16 moves the cosine by only {rounded}");
}

#[test]
fn slopes_of_linear_biases() {
    let cases = functional()["alibi_slopes"].clone();
    let cases = cases.as_object().expect("cases by number of heads");
    assert_eq!(cases.len(), 9);
    for (heads, want) in cases {
        let n_heads = heads.parse().expect("a number of heads");
        let want = numbers(want);
        assert_close(&format!("{heads} heads"), &alibi_slopes(n_heads), &want, NINE_DIGITS);
    }
}

/// The bias of a key is its head's slope times its position, per row, up to a number that is the same for all keys.
#[test]
fn linear_biases_follow_key_positions() {
    let positions = [vec![0, 0, 1, 2], vec![0, 1, 2, 3]];
    for (backend, device) in devices() {
        for (alibi, factor) in
            [(AlibiConfig::default(), 1.0), (AlibiConfig { scaled: true, ..AlibiConfig::default() }, 0.25)]
        {
            let bias = alibi.bias(3, &positions, 0.25, &device);
            assert_eq!(bias.dims(), [2, 3, 1, 4]);
            let bias = values(bias);
            let to_last = bias.chunks(4).flat_map(|row| row.iter().map(|bias| bias - row[3]).collect::<Vec<_>>());
            let want = positions.iter().flat_map(|row| {
                let slopes = [0.0625, 0.003_906_25, 0.25];
                slopes.into_iter().flat_map(move |slope| {
                    row.iter().map(move |p| factor * slope * (*p as f64 - row[3] as f64)).collect::<Vec<_>>()
                })
            });
            let want: Vec<f64> = want.collect();
            assert_close(&format!("{backend}, {alibi:?}"), &to_last.collect::<Vec<_>>(), &want, PURE);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention
// ---------------------------------------------------------------------------------------------------------------------

/// The mask of a case of five keys as structure, where it can be said that way.
fn structure(name: &str, set: &FiveKeys) -> Option<AttentionMask> {
    let row_1 = || set.pairs([".....", "xxxxx", "....."]);
    Some(match name {
        "no_mask" | "row_1_lowest_added" => AttentionMask::none(),
        "causal" | "causal_softcap_0.5" | "causal_softcap_2" => AttentionMask::causal(),
        "causal_key_0_padded" => AttentionMask::causal().with_padding(set.padding("x....")),
        "key_0_padded" => AttentionMask::none().with_padding(set.padding("x....")),
        "causal_row_1_masked" => AttentionMask::causal().with_explicit(row_1()),
        "causal_and_row_1_lowest_added" => return None,
        other => panic!("unknown case {other}"),
    })
}

#[test]
fn attention_over_five_keys() {
    let cases = functional()["attention"]["cases"].clone();
    let cases = cases.as_array().expect("a list of cases");
    assert_eq!(cases.len(), 9);
    for (backend, plain) in devices() {
        for device in [plain.clone(), plain.autodiff()] {
            let set = FiveKeys::new(&device);
            for case in cases {
                let name = case["name"].as_str().expect("a case has a name");
                let want = numbers(&case["output"]);
                let softcap = case["softcap"].as_f64();
                let pairs = |key: &str| Array { shape: vec![1, 1, 3, 5], ..array_of(&case[key]) };
                let (hidden, lowered) = (pairs("hidden"), pairs("lowest_added"));
                let added = |at: &Array, amount: f64| -> Option<Tensor<4>> {
                    let bias = at.values.iter().map(|at| if *at == 0.0 { 0.0 } else { amount }).collect();
                    (largest(&at.values) > 0.0).then(|| Array { values: bias, ..at.clone() }.tensor(&device))
                };
                let lowest = added(&lowered, f64::from(f32::MIN));

                // The same thing said in three ways: as structure, pair by pair, and as a bias of minus infinity.
                let mut ways =
                    vec![("pairs", AttentionMask::none().with_explicit(hidden.mask(&device)), lowest.clone())];
                ways.extend(structure(name, &set).map(|mask| ("structure", mask, lowest.clone())));
                if lowest.is_none() {
                    ways.push(("bias", AttentionMask::none(), added(&hidden, f64::NEG_INFINITY)));
                }
                for (way, mask, bias) in ways {
                    let request = AttentionRequest {
                        mask: mask.form(),
                        biased: bias.is_some(),
                        softcapped: softcap.is_some(),
                        ..request([1, 1, 3, 5], 1, &device)
                    };
                    for kernel in kernels(&request, &device) {
                        let options = ScoreOptions { kernel, softcap, ..ScoreOptions::default() };
                        let got = set.attend(&mask, bias.as_ref(), &options);
                        let autodiff = if device.is_autodiff() { " with autodiff" } else { "" };
                        let name = format!("{backend}{autodiff}, {kernel:?}, {name} as {way}");
                        assert_close(&name, &got, &want, PURE * largest(&want));
                    }
                }
            }
        }
    }
}

#[test]
fn grouped_heads_share_neighbouring_queries() {
    let case = &functional()["attention_gqa"];
    let [q, k, v] = ["q", "k", "v"].map(|key| {
        let Array { shape, values } = array_of(&case[key]);
        Array { shape: [vec![1], shape].concat(), values }
    });
    let want = numbers(&case["output"]);
    for (backend, device) in devices() {
        for (mask, key) in [(AttentionMask::none(), "output"), (AttentionMask::causal(), "output_causal")] {
            let request = AttentionRequest { mask: mask.form(), ..request([1, 4, 3, 5], 2, &device) };
            for kernel in kernels(&request, &device) {
                let options = ScoreOptions { kernel, ..ScoreOptions::default() };
                let (q, k, v) = (q.tensor(&device), k.tensor(&device), v.tensor(&device));
                let got = values(scaled_dot_product_attention(q, k, v, &mask, None, &options).context);
                let want = numbers(&case[key]);
                assert_close(&format!("{backend}, {kernel:?}, {key}"), &got, &want, PURE * largest(&want));
            }
        }
        // Heads handed out in turn (0, 1, 0, 1) give something else.
        let tiled = |x: &Array| x.tensor::<4>(&device).repeat_dim(1, 2);
        let options = ScoreOptions::default();
        let tiled = scaled_dot_product_attention(
            q.tensor(&device),
            tiled(&k),
            tiled(&v),
            &AttentionMask::none(),
            None,
            &options,
        );
        assert_apart("heads in turn", &values(tiled.context), &want, 100.0 * PURE * largest(&want));
    }
}

/// Raw scores of 102,400 pass the largest 16-bit number, 65,504.
#[test]
fn scores_that_pass_the_largest_half() {
    in_half_precision(|name, dtype, rounding, device| {
        let rows = |rows: &[f64]| {
            let values = rows.iter().flat_map(|row| [*row; 64]).collect();
            Array { shape: vec![1, 1, rows.len(), 64], values }.tensor_of::<4>(dtype, device)
        };
        let v = Array { shape: vec![1, 1, 2, 2], values: vec![1.0, 2.0, 3.0, 4.0] };
        for kernel in kernels(&request([1, 1, 1, 2], 1, device), device) {
            for (keys, want) in [([40.0, 20.0], [1.0, 2.0]), ([40.0, 40.0], [2.0, 3.0]), ([20.0, 40.0], [3.0, 4.0])] {
                let options = ScoreOptions { kernel, ..ScoreOptions::default() };
                let v = v.tensor_of(dtype, device);
                let mask = AttentionMask::none();
                let output = scaled_dot_product_attention(rows(&[40.0]), rows(&keys), v, &mask, None, &options);
                assert_close(
                    &format!("{name}, {kernel:?}, keys {keys:?}"),
                    &values(output.context),
                    &want,
                    4.0 * rounding,
                );
            }
        }
    });
}

/// Attention on 16-bit inputs is attention in 32 bits on the same numbers, rounded once at the end.
#[test]
fn attention_in_half_precision_rounds_once() {
    let [batch, n_heads, n_kv_heads, query_len, key_len, d_head] = [2, 6, 3, 7, 11, 8];
    in_half_precision(|name, dtype, rounding, device| {
        let mut numbers = Numbers::new(5);
        let mut half = |heads: usize, len: usize| numbers.tensor::<4>([batch, heads, len, d_head], device).cast(dtype);
        let (q, k, v) = (half(n_heads, query_len), half(n_kv_heads, key_len), half(n_kv_heads, key_len));
        let mask = AttentionMask::causal().with_window(4);
        let scores = [batch, n_heads, query_len, key_len];
        let wide = |x: &Tensor<4>| x.clone().cast(FloatDType::F32);
        let composed = ScoreOptions { kernel: AttentionKernel::Composed, ..ScoreOptions::default() };
        let want = scaled_dot_product_attention(wide(&q), wide(&k), wide(&v), &mask, None, &composed);
        let want = values(want.context);
        let request = AttentionRequest { mask: mask.form(), ..request(scores, n_kv_heads, device) };
        for kernel in kernels(&request, device) {
            let options = ScoreOptions { kernel, ..ScoreOptions::default() };
            let output = scaled_dot_product_attention(q.clone(), k.clone(), v.clone(), &mask, None, &options);
            assert_eq!(output.context.dtype(), DType::from(dtype), "{name}: the type of the output");
            assert_close(&format!("{name}, {kernel:?}"), &values(output.context), &want, rounding * largest(&want));
        }
    });
}

/// Linear biases grow with the position; what counts is their difference between near keys, also 3,000 tokens into a
/// sequence and in half precision.
#[test]
fn linear_biases_keep_their_digits_far_from_the_start() {
    let [n_heads, len, d_head] = [3, 9, 4];
    let attend = |start: usize, dtype: FloatDType, kernel: AttentionKernel, device: &Device| -> Vec<f64> {
        let mut numbers = Numbers::new(3);
        let mut tensor = || numbers.tensor::<4>([1, n_heads, len, d_head], device).cast(dtype);
        let (q, k, v) = (tensor(), tensor(), tensor());
        let positions = (start..start + len).collect();
        let bias = AlibiConfig::default().bias(n_heads, &[positions], 1.0, device);
        let options = ScoreOptions { kernel, ..ScoreOptions::default() };
        values(scaled_dot_product_attention(q, k, v, &AttentionMask::causal(), Some(&bias), &options).context)
    };
    let far = 3000;
    // Half of the largest slope, 0.25, times the position is rounded to 32 bits; the values are about 2.
    let bound = 4.0 * EPSILON * 0.25 * far as f64;
    let all_kernels = |device: &Device| {
        let request = AttentionRequest {
            mask: MaskForm::Causal,
            biased: true,
            ..request([1, n_heads, len, len], n_heads, device)
        };
        kernels(&request, device)
    };
    for (backend, device) in devices() {
        for kernel in all_kernels(&device) {
            let [near, far] = [0, far].map(|start| attend(start, FloatDType::F32, kernel, &device));
            assert_close(&format!("{backend}, f32, {kernel:?}"), &far, &near, bound);
        }
    }
    in_half_precision(|name, dtype, rounding, device| {
        for kernel in all_kernels(device) {
            let [near, far] = [0, far].map(|start| attend(start, dtype, kernel, device));
            assert_close(&format!("{name}, {kernel:?}"), &far, &near, bound + 2.0 * rounding * largest(&near));
        }
    });
}
