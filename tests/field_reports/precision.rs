//! Precision, activations and norms.

use super::*;

/// Scores in 16 bits that pass 65,504 and become NaN: <https://github.com/huggingface/candle/issues/2480>,
/// <https://github.com/huggingface/transformers/issues/5651>.
#[test]
fn large_scores_stay_finite_in_half_precision() {
    let mut checked = Vec::new();
    for (backend, device) in devices() {
        let name: DeviceName = backend.parse().expect("a backend's name is a device name");
        let Ok(half) = float_dtype("f16", &name, &device) else {
            continue;
        };
        checked.push(backend);
        let all = |rows: &[f64]| {
            let values = rows.iter().flat_map(|row| [*row; 64]).collect();
            Array { shape: vec![1, 1, rows.len(), 64], values }.tensor_of::<4>(half, &device)
        };
        for kernel in KERNELS {
            for (keys, want) in [([40.0, 20.0], [1.0, 2.0]), ([40.0, 40.0], [2.0, 3.0])] {
                let v = Array { shape: vec![1, 1, 2, 2], values: vec![1.0, 2.0, 3.0, 4.0] }.tensor_of(half, &device);
                let (mask, options) = (AttentionMask::none(), with_kernel(kernel));
                let output = scaled_dot_product_attention(all(&[40.0]), all(&keys), v, &mask, None, &options);
                let name = format!("{backend}, {kernel:?}, {keys:?}");
                assert_close(&name, &values(output.context), &want, 4.0 * HALF);
            }
        }
    }
    assert!(checked.contains(&"flex"), "only {checked:?} computes in 16 bits");
}

/// Gemma's configs say `gelu` and mean the tanh form: <https://github.com/vllm-project/vllm/issues/3411>.
#[test]
fn each_spelling_of_gelu_has_its_meaning() {
    for (backend, device) in devices() {
        let device = device.autodiff();
        let x = |values: &[f64]| Array { shape: vec![values.len()], values: values.to_vec() }.tensor::<1>(&device);
        for (activation, want) in [
            (Activation::Gelu, [-0.158655, 1.9545]),
            (Activation::GeluTanh, [-0.158808, 1.954598]),
            (Activation::QuickGelu, [-0.154204, 1.935659]),
        ] {
            let y = values(activation.forward(x(&[-1.0, 2.0])));
            assert_close(&format!("{backend}, {activation:?}"), &y, &want, 2e-6);
        }
        let leaf = x(&[-3.0, -1.0, 1.0, 3.0]).require_grad();
        let gradients = Activation::Gelu.forward(leaf.clone()).sum().backward();
        let slopes = gradient("gelu", &leaf, &gradients).values;
        assert_close(&format!("{backend}: slopes"), &slopes, &[-0.011946, -0.083315, 1.083315, 1.011946], 2e-6);
    }

    let activation = |changed: Changed| changed.model_config().unwrap().feed_forward.expect("it has one").activation;
    assert_eq!(activation(Changed::old("gemma")), Activation::GeluTanh, "`gelu` in a file of Gemma");
    assert_eq!(activation(Changed::old("gpt_neox")), Activation::Gelu, "`gelu` in a file of GPT-NeoX");
    for (spelling, want) in [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("quick_gelu", Activation::QuickGelu),
    ] {
        assert_eq!(activation(Changed::old("gpt_neox").with("hidden_act", spelling)), want, "`{spelling}`");
    }

    // The two forms are so near that the right one shows only beside the wrong one.
    let golden = golden("gemma");
    let (rows, want) = (golden.rows("input_ids"), golden.values("logits"));
    let error = |changed: &Changed| common::worst("gemma", &changed.logits(&rows), &want).0;
    let right = error(&Changed::old("gemma"));
    // What `hidden_activation` says is taken at its word.
    let exact = error(&Changed::old("gemma").with("hidden_activation", "gelu"));
    assert!(10.0 * right < exact, "off by {right:.1e} as the file means it and by {exact:.1e} with the exact form");
}

/// An eps that is added to the deviation and not to the variance: <https://github.com/tracel-ai/burn/issues/2185>.
#[test]
fn eps_is_added_inside_the_root() {
    for (backend, device) in devices() {
        let x = Array { shape: vec![1, 4], values: vec![0.001, -0.001, 0.002, -0.002] };
        for (eps, first) in [(1e-5, 0.282843), (1e-12, 0.632455)] {
            let norm = NormConfig::default().with_eps(eps).init(4, &device);
            let y = values(norm.forward(x.tensor::<2>(&device)));
            assert_close(&format!("{backend}, eps {eps}"), &y, &[first, -first, 2.0 * first, -2.0 * first], MICRO);
            assert_apart("outside the root", &y[..1], &[0.628481], 100.0 * MICRO);
        }
    }
}

/// A variance in one pass, which loses all digits when the mean is large:
/// <https://github.com/tracel-ai/burn/issues/5607>, <https://github.com/microsoft/onnxruntime/issues/28463>.
#[test]
fn a_large_mean_leaves_the_variance_its_digits() {
    for (backend, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            let x = Array { shape: vec![1, 4], values: vec![40_000.0, 40_001.0, 40_002.0, 40_003.0] };
            let norm = NormConfig::default().init(4, &device);
            let y = values(norm.forward(x.tensor::<2>(&device)));
            assert_close(backend, &y, &[-1.341635, -0.447212, 0.447212, 1.341635], MICRO);
        }
    }
}

/// Gemma's norm multiplies by one plus the weight: <https://github.com/pytorch/executorch/pull/19901>.
#[test]
fn gemmas_norms_multiply_by_one_plus_the_weight() {
    let plus_one = [0.401663, 0.584237, 1.424079, 1.460593];
    let plain = [0.036515, -0.146059, 0.328634, 0.0];
    for (backend, device) in devices() {
        for (kind, want) in [(NormKind::RmsPlusOne, plus_one), (NormKind::Rms, plain)] {
            let mut norm = NormConfig::new(kind).with_eps(1e-6).init(4, &device);
            let numbers = |values: [f64; 4]| Array { shape: vec![4], values: values.to_vec() }.tensor::<1>(&device);
            norm.weight = Some(Param::from_tensor(numbers([0.1, -0.2, 0.3, 0.0])));
            let y = norm.forward(numbers([1.0, 2.0, 3.0, 4.0]).unsqueeze::<2>());
            assert_close(&format!("{backend}, {kind:?}"), &values(y), &want, MICRO);
        }
    }
    compare_everywhere("gemma");
    let plain = Changed::new("gemma").weights(|tensors| {
        for (_, array) in tensors.iter_mut().filter(|(name, _)| name.contains("norm")) {
            array.values.iter_mut().for_each(|weight| *weight -= 1.0);
        }
    });
    must_differ("norms without the one", "gemma", &plain);
}
