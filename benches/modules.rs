//! Modules on every backend of the build, beside each other: to see whether a change makes one slower.
//!
//! `cargo bench`, or of some only `cargo bench -- attention`; `--features wgpu,libtorch` adds these. How far a device is from its
//! limit, and from PyTorch, is what `burnformer bench` and `scripts/compare-pytorch` say.

use burn::tensor::{Device, Distribution, Tensor};
use burnformer::activation::Activation;
use burnformer::attention::{AttentionKernel, AttentionMask, RotaryConfig, ScoreOptions, scaled_dot_product_attention};
use burnformer::backend::{Backend, DeviceName};
use burnformer::norm::NormConfig;
use burnformer::projection::Projection;
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

fn backends() -> impl Iterator<Item = Backend> {
    Backend::compiled()
}

fn open(backend: Backend) -> Device {
    DeviceName::new(backend).open().unwrap_or_else(|error| panic!("{error}"))
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Runs `work` and waits for what it gives.
fn run<const D: usize>(bencher: Bencher, device: &Device, items: usize, work: impl Fn() -> Tensor<D>) {
    bencher.counter(ItemsCount::new(items)).bench_local(|| {
        let output = work();
        device.sync().expect("the device computes");
        output
    });
}

/// Tokens of a sequence.
const SEQ: usize = 512;
const D_MODEL: usize = 768;
const N_HEADS: usize = 12;
const D_HEAD: usize = D_MODEL / N_HEADS;

#[divan::bench(args = backends())]
fn attention_causal(bencher: Bencher, backend: Backend) {
    attention(bencher, backend, SEQ, &AttentionMask::causal());
}

#[divan::bench(args = backends())]
fn attention_of_one_query(bencher: Bencher, backend: Backend) {
    attention(bencher, backend, 1, &AttentionMask::causal());
}

#[divan::bench(args = backends())]
fn attention_in_a_window(bencher: Bencher, backend: Backend) {
    attention(bencher, backend, SEQ, &AttentionMask::causal().with_window(128));
}

fn attention(bencher: Bencher, backend: Backend, query_len: usize, mask: &AttentionMask) {
    let device = open(backend);
    let [query, key, value] = [query_len, SEQ, SEQ].map(|len| normal([1, N_HEADS, len, D_HEAD], &device));
    let options = ScoreOptions { kernel: AttentionKernel::Auto, ..ScoreOptions::default() };
    run(bencher, &device, query_len, || {
        scaled_dot_product_attention(query.clone(), key.clone(), value.clone(), mask, None, &options).context
    });
}

#[divan::bench(args = backends())]
fn projection(bencher: Bencher, backend: Backend) {
    project(bencher, backend, SEQ);
}

#[divan::bench(args = backends())]
fn projection_of_one_token(bencher: Bencher, backend: Backend) {
    project(bencher, backend, 1);
}

fn project(bencher: Bencher, backend: Backend, seq: usize) {
    let device = open(backend);
    let projection = Projection::new(D_MODEL, 4 * D_MODEL, true, &device);
    let x = normal([1, seq, D_MODEL], &device);
    run(bencher, &device, seq, || projection.forward(x.clone()));
}

#[divan::bench(args = backends())]
fn gelu(bencher: Bencher, backend: Backend) {
    let device = open(backend);
    let x = normal([1, SEQ, 4 * D_MODEL], &device);
    run(bencher, &device, SEQ, || Activation::Gelu.forward(x.clone()));
}

#[divan::bench(args = backends())]
fn layer_norm(bencher: Bencher, backend: Backend) {
    let device = open(backend);
    let norm = NormConfig::default().init(D_MODEL, &device);
    let x = normal([1, SEQ, D_MODEL], &device);
    run(bencher, &device, SEQ, || norm.forward(x.clone()));
}

#[divan::bench(args = backends())]
fn rotary_positions(bencher: Bencher, backend: Backend) {
    let device = open(backend);
    let angles = RotaryConfig::new(10_000.0).angles(D_HEAD, &[(0..SEQ).collect()], &device);
    let x = normal([1, N_HEADS, SEQ, D_HEAD], &device);
    run(bencher, &device, SEQ, || angles.apply(x.clone()));
}
