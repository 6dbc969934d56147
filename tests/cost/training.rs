//! Compute of training runs and roofline times, against published figures and sums by hand.

use burn::tensor::FloatDType;
use burnformer::cost::{Bound, CostOptions, CostReport, Machine};
use burnformer::model::ModelConfig;

use crate::preset;

fn report(name: &str, options: &CostOptions) -> CostReport {
    CostReport::new(&preset(name), options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn assert_near(got: f64, want: f64) {
    // Products of a few numbers of 53 bits.
    assert!((got / want - 1.0).abs() < 1e-12, "got {got}, want {want}");
}

#[test]
fn six_operations_for_each_parameter_and_token() {
    let options =
        CostOptions { seq: Some(32_768), train_tokens: Some(2e12), parameters: Some(7e9), ..CostOptions::default() };
    let compute = report("llama-2-7b", &options).training_compute;
    assert_near(compute.six_n_d, 8.4e22);
    // 12 · 32 layers · 4096 · 32,768 a token, beside 6 · 7e9: more than as much again.
    let scores = 12.0 * 32.0 * 4096.0 * 32_768.0;
    assert_near(compute.attention.full, scores * 2e12);
    assert_near(compute.undercount.full, scores / 4.2e10);
    assert_near(compute.corrected.full, 8.4e22 + scores * 2e12);
    // Causality leaves (s + 1) / 2s of it.
    assert_near(compute.undercount.visible, scores / 4.2e10 * 32_769.0 / 65_536.0);
    assert!(compute.undercount.full > 1.22 && compute.undercount.full < 1.23, "{compute:?}");
    assert!(compute.undercount.visible > 0.61 && compute.undercount.visible < 0.62, "{compute:?}");

    // Counted, not given: 6,738,415,616 parameters.
    let counted = CostOptions { parameters: None, ..options };
    let compute = report("llama-2-7b", &counted).training_compute;
    assert_near(compute.six_n_d, 6.0 * 6_738_415_616.0 * 2e12);
    assert_near(compute.by_convention.without_embeddings, 6.0 * (6_738_415_616.0 - 32_000.0 * 4096.0) * 2e12);
    // Twenty tokens per parameter where none are given.
    let compute = report("llama-2-7b", &CostOptions::default()).training_compute;
    assert!(compute.tokens_assumed);
    assert_near(compute.tokens, 20.0 * 6_738_415_616.0);
}

/// Of a model whose weights all multiply, the exact count is the corrected rule but for norms.
#[test]
fn the_exact_count_agrees_with_the_corrected_rule() {
    let compute = report("classic-block", &CostOptions::default()).training_compute;
    let norms = 6.0 * 4.0 * 4096.0 * compute.tokens;
    assert_near(compute.exact.full + norms, compute.corrected.full);
    // GPT-2's tables of positions are only looked up, and neither are biases and norms multiplied.
    let compute = report("gpt2", &CostOptions::default()).training_compute;
    let idle = 1024.0 * 768.0 + 25.0 * 2.0 * 768.0 + 12.0 * (4.0 * 768.0 + 3072.0 + 768.0);
    assert_near(compute.exact.full + 6.0 * idle * compute.tokens, compute.corrected.full);
}

#[test]
fn mixtures_train_what_is_active() {
    let compute = report("mixtral-8x7b", &CostOptions { train_tokens: Some(1e12), ..CostOptions::default() });
    let compute = compute.training_compute;
    assert_near(compute.six_n_d, 6.0 * 12_879_925_248.0 * 1e12);
    assert_near(compute.by_convention.total, 6.0 * 46_702_792_704.0 * 1e12);
}

#[test]
fn a_step_of_decoding_reads_every_weight_for_each_token() {
    let machine = Machine::new(1e13, 4e11).expect("a machine");
    let options =
        CostOptions { seq: Some(2048), dtype: FloatDType::F16, machine: Some(machine), ..CostOptions::default() };
    let roofline = report("llama-2-7b", &options).roofline;
    assert_eq!(roofline.ridge, Some(25.0));
    let decode = roofline.decode.expect("a decoder");
    // Weights of 32 blocks and the head, and what goes in and out of them; queries, keys and values, contexts.
    let (d, d_ff, v, s) = (4096, 11_008, 32_000, 2048);
    let block = 4 * d * d + 3 * d * d_ff;
    let numbers = 32 * (block + 8 * d + 3 * (d + d_ff) + 2 * d + 2 * s * d) + d * v + d + v;
    assert_eq!(decode.bytes, 2 * numbers);
    assert_eq!(decode.flops, 32 * (2 * block + 4 * s * d) + 2 * d * v);
    assert_eq!(decode.tokens, 1);
    let time = decode.time.expect("a machine is given");
    assert_eq!(time.bound, Bound::Memory);
    assert_near(time.seconds, decode.bytes as f64 / 4e11);
    assert_near(decode.tokens_per_second.expect("a machine is given"), 4e11 / decode.bytes as f64);

    let prefill = roofline.prefill.expect("a decoder");
    let time = prefill.time.expect("a machine is given");
    assert_eq!(time.bound, Bound::Compute);
    assert_near(time.seconds, prefill.flops as f64 / 1e13);
    // Logits of one position only.
    assert_eq!(roofline.forward.flops - prefill.flops, 2 * d * v * (s - 1));

    // Forward and twice as much backward; gradients, weights with their copy in 32 bits, and moments.
    let training = roofline.training_step;
    assert_eq!(training.flops, 3 * roofline.forward.flops);
    assert_eq!(training.bytes, 3 * roofline.forward.bytes + 6_738_415_616 * (2 + 4 + 4 + 2 + 8 + 8));
}

#[test]
fn large_batches_make_decoding_compute_bound() {
    let machine = Machine::new(1e13, 4e11).expect("a machine");
    let bound = |batch| {
        let options = CostOptions { batch, seq: Some(16), machine: Some(machine), ..CostOptions::default() };
        report("llama-2-7b", &options).roofline.decode.and_then(|work| work.time).expect("a machine is given").bound
    };
    assert_eq!((bound(1), bound(512)), (Bound::Memory, Bound::Compute));
}

#[test]
fn encoders_neither_read_prompts_nor_decode() {
    let roofline = report("bert-base", &CostOptions::default()).roofline;
    assert!(roofline.prefill.is_none() && roofline.decode.is_none() && roofline.machine.is_none());
    assert!(roofline.forward.time.is_none() && roofline.forward.intensity > 1.0);
}

#[test]
fn a_measured_machine_computes() {
    for (backend, device) in crate::common::devices() {
        // Software Vulkan takes seconds for a product.
        if backend == "wgpu" {
            continue;
        }
        let machine = Machine::measure(&device, FloatDType::F32).unwrap_or_else(|error| panic!("{backend}: {error}"));
        assert!(machine.peak_flops > 1e9 && machine.peak_flops < 1e17, "{backend}: {machine:?}");
        assert!(machine.bandwidth > 1e8 && machine.bandwidth < 1e14, "{backend}: {machine:?}");
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let refuse = |name: &str, options: CostOptions, part: &str| {
        let error = CostReport::new(&preset(name), &options).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    let options = CostOptions::default();
    refuse("gpt2", CostOptions { seq: Some(1025), ..options }, "1025");
    refuse("gpt2", CostOptions { seq: Some(0), ..options }, "at least 1");
    refuse("gpt2", CostOptions { batch: 0, ..options }, "at least 1");
    refuse("vit-base", CostOptions { seq: Some(12), ..options }, "197");
    refuse("gpt2", CostOptions { source: Some(3), ..options }, "encoder");
    refuse("gpt2", CostOptions { train_tokens: Some(f64::NAN), ..options }, "training tokens");
    refuse("gpt2", CostOptions { parameters: Some(-1.0), ..options }, "parameters");
    refuse("llama-2-7b", CostOptions { batch: 1 << 40, seq: Some(1 << 31), ..options }, "64 bits");
    for (peak_flops, bandwidth) in [(0.0, 1.0), (1.0, -1.0), (f64::INFINITY, 1.0), (1.0, f64::NAN)] {
        assert!(Machine::new(peak_flops, bandwidth).is_err());
    }
    let mut config: ModelConfig = preset("gpt2");
    config.attention.n_heads = 7;
    let error = CostReport::new(&config, &options).expect_err("7 does not divide 768").to_string();
    assert!(error.contains("n_heads"), "{error}");
    // As many rows as learned positions have.
    CostReport::new(&preset("gpt2"), &CostOptions { seq: Some(1024), ..options }).expect("it fits");
}
