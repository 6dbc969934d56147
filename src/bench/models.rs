//! Published models.

use std::collections::HashMap;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, FloatDType, Tensor};

use super::task::{Task, Work, finish, timed};
use crate::cost::{Call, forward_flops, roofline};
use crate::error::Error;
use crate::kernel::{BLOCK, BlockKind, to_q8_0};
use crate::model::{ForwardOptions, Logits, ModelInput, Transformer};
use crate::pretrained::Checkpoint;

/// Tokens before the first that is made, and tokens that are made, in one run of decoding.
const PROMPT: usize = 32;
const STEPS: usize = 32;

pub(super) fn decode<'a>(folder: &Path, device: &'a Device) -> Result<Task<'a>, Error> {
    decoding(load(folder, device)?, 0.0)
}

/// The task, or what keeps it from running.
pub(super) fn decode_quantised<'a>(folder: &Path, device: &'a Device) -> Result<Result<Task<'a>, String>, Error> {
    let mut model = load(folder, device)?;
    let mut matrices = Matrices::default();
    model.visit(&mut matrices);
    let Matrices { found } = matrices;
    let read = |id, is_table| -> Result<Vec<u8>, Error> {
        let outputs = if is_table { found[&id].clone() } else { found[&id].clone().transpose() };
        Ok(to_q8_0(outputs.into_data().as_slice().expect("numbers of 32 bits")))
    };
    let kept = model.keep_blocks(device, |_, _| Some(BlockKind::Q8_0), read)?;
    if kept.is_empty() {
        return Ok(Err("the device multiplies with numbers only".to_owned()));
    }
    let numbers: usize = kept.iter().map(|id| found[id].shape().num_elements()).sum();
    let bytes = (numbers * size_of::<f32>() - numbers / BLOCK * BlockKind::Q8_0.bytes()) as f64;
    decoding(model, bytes).map(Ok)
}

/// The matrices of a model.
#[derive(Default)]
struct Matrices {
    found: HashMap<ParamId, Tensor<2>>,
}

impl ModuleVisitor for Matrices {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let [height, width] = param.lazy_shape()[..] {
            self.found.insert(param.id, param.val().reshape([height, width]));
        }
    }
}

/// Decoding, for which `saved` bytes less are read than the numbers of the model have.
fn decoding<'a>(model: Transformer, saved: f64) -> Result<Task<'a>, Error> {
    let options = ForwardOptions { logits: Logits::Last, ..ForwardOptions::default() };
    let prompt = tokens(1, PROMPT, model.config().vocab_size());
    let mut cache = model.new_cache();
    model.forward(&ModelInput::tokens(&prompt), Some(&mut cache), options)?;
    let call = Call::step(1, PROMPT + STEPS / 2);
    let bytes = roofline(model.config(), call, FloatDType::F32, None).forward.bytes as f64 - saved;
    let run = move || {
        // What was made in the run before is made again.
        let mut cache = cache.clone();
        let mut next = 1_i64;
        let start = std::time::Instant::now();
        for _ in 0..STEPS {
            let output = model.forward(&ModelInput::tokens(&[vec![next]]), Some(&mut cache), options);
            let output = output.unwrap_or_else(|error| panic!("{error}"));
            let logits = output.logits.expect("a decoder has a head").into_data();
            let logits = logits.as_slice::<f32>().expect("numbers of 32 bits");
            let likeliest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            next = likeliest.map_or(0, |(index, _)| index as i64);
        }
        start.elapsed() / STEPS as u32
    };
    Ok(Task { shape: vec![1, 1], work: Work::Bytes(bytes), tokens: Some(1), run: Box::new(run) })
}

pub(super) fn prefill<'a>(folder: &Path, device: &'a Device) -> Result<Task<'a>, Error> {
    const SEQ: usize = 512;
    let model = load(folder, device)?;
    Ok(forward(model, 1, SEQ, device, |output| output.logits.expect("a decoder has a head")))
}

pub(super) fn embed<'a>(folder: &Path, device: &'a Device) -> Result<Task<'a>, Error> {
    const BATCH: usize = 32;
    const SEQ: usize = 128;
    let model = load(folder, device)?;
    Ok(forward(model, BATCH, SEQ, device, |output| output.hidden))
}

fn load(folder: &Path, device: &Device) -> Result<Transformer, Error> {
    if !folder.exists() {
        return Err(Error::Input(format!("there is no model at `{}`; run scripts/fetch-models", folder.display())));
    }
    Checkpoint::open(folder)?.load_numbers(device)
}

fn forward(
    model: Transformer,
    batch: usize,
    seq: usize,
    device: &Device,
    output: impl Fn(crate::model::ModelOutput) -> burn::tensor::Tensor<3> + 'static,
) -> Task<'_> {
    let flops = forward_flops(model.config(), Call::whole(batch, seq)).visible.total as f64;
    let input = ModelInput::tokens(&tokens(batch, seq, model.config().vocab_size()));
    Task {
        shape: vec![batch, seq],
        work: Work::Flops(flops),
        tokens: Some(batch * seq),
        run: Box::new(move || {
            timed(|| {
                let result = model.forward(&input, None, ForwardOptions::default());
                finish(device, output(result.unwrap_or_else(|error| panic!("{error}"))));
            })
        }),
    }
}

/// Token ids all over the vocabulary, the same in every run.
fn tokens(batch: usize, seq: usize, vocab_size: usize) -> Vec<Vec<i64>> {
    (0..batch).map(|row| (0..seq).map(|at| ((row * seq + at) * 7919 % vocab_size) as i64).collect()).collect()
}
