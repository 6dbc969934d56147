//! The same weights as in PyTorch and transformers give the same numbers: outputs, attention weights and gradients of
//! PyTorch's own layers, and the logits of tiny checkpoints, whole, in chunks, padded and greedy.
//!
//! The values come from `tests/fixtures/generate.py`, which computes in 32 bits as the code under test does.

mod common;

use burn::tensor::{Device, Gradients, Tensor};
use burnformer::activation::Activation;
use burnformer::attention::{AttentionContext, AttentionMask, MultiHeadAttention, MultiHeadAttentionConfig};
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::model::{ModelInput, ModelKind, Transformer};
use burnformer::norm::Norm;
use burnformer::transformer_block::{
    BlockContext, BlockLayout, BranchNorms, Memory, NormPlacement, TransformerBlock, TransformerBlockConfig,
};
use burnformer::verification::{Golden, verify};

use common::{
    Array, Fixture, Greedy, argmax, assert_apart, assert_close, checkpoint_folder, devices, fill, fixtures, flex,
    golden, gradient, largest, load, logits, logits_in_chunks_after, projection_gradients, values,
};

/// One module: sums of up to 40 products in another order, a softmax and norms. Each step adds a few roundings of 6e-8
/// to numbers around 1; measured are 1.6e-6.
const MODULE: f64 = 1e-5;

/// Gradients of one module: sums over the batch on top of that, with values up to 30; measured are 8e-6. The derivative
/// of the other kind of GELU is off by 9e-4.
const GRADIENT: f64 = 5e-5;

/// A whole tiny model, relative to the largest logit; measured are 1.2e-6. The mistakes that show the least, a wrong eps
/// or the other kind of GELU, change the logits by four times the tolerance.
const MODEL: f64 = 1e-5;

/// Ways of feeding nine tokens.
const CHUNKS: [&[usize]; 5] = [&[9], &[4, 5], &[3, 3, 3], &[1; 9], &[8, 1]];

/// One checkpoint per kind of block: post-norm, learned positions, rotary with grouped heads, sandwich norms with
/// windows and caps, parallel, norms on outputs, linear biases, parallel with one norm, mixtures of experts, and encoder
/// and decoder.
const KINDS: [&str; 10] =
    ["bert_bare", "gpt2", "llama", "gemma2", "gpt_neox", "olmo2", "bloom", "falcon", "qwen2_moe", "t5_v1_1"];

// The sizes of the fixtures of PyTorch's layers.
const WIDTH: usize = 24;
const HEADS: usize = 4;
const D_FF: usize = 40;

// ---------------------------------------------------------------------------------------------------------------------
// PyTorch's layers
// ---------------------------------------------------------------------------------------------------------------------

/// Fills attention from the joint projection that PyTorch has.
fn fill_attention(attention: &mut MultiHeadAttention, fixture: &Fixture, prefix: &str) {
    let (weight, bias) =
        (fixture.array(&format!("{prefix}in_proj_weight")), fixture.array(&format!("{prefix}in_proj_bias")));
    let part = |index: usize| index * WIDTH..(index + 1) * WIDTH;
    fill(&mut attention.query, &weight.part(part(0)), Some(&bias.part(part(0))));
    fill(&mut attention.key, &weight.part(part(1)), Some(&bias.part(part(1))));
    fill(&mut attention.value, &weight.part(part(2)), Some(&bias.part(part(2))));
    let output = |name: &str| fixture.array(&format!("{prefix}out_proj.{name}"));
    fill(&mut attention.output, &output("weight"), Some(&output("bias")));
}

/// The gradients of attention under PyTorch's names.
fn attention_gradients(attention: &MultiHeadAttention, prefix: &str, gradients: &Gradients) -> Vec<(String, Array)> {
    let joint = [&attention.query, &attention.key, &attention.value];
    let (weights, biases): (Vec<Array>, Vec<Array>) =
        joint.iter().map(|linear| projection_gradients(prefix, linear, gradients).into()).unzip();
    let [weight, bias] = projection_gradients(prefix, &attention.output, gradients);
    vec![
        (format!("{prefix}in_proj_weight"), Array::joined(&weights)),
        (format!("{prefix}in_proj_bias"), Array::joined(&biases)),
        (format!("{prefix}out_proj.weight"), weight),
        (format!("{prefix}out_proj.bias"), bias),
    ]
}

/// Compares gradients with those of a case and says if one of the case's was left out.
fn compare_gradients(name: &str, case: &str, fixture: &Fixture, found: &[(String, Array)]) {
    let prefix = format!("{case}.grad.");
    for (parameter, gradient) in found {
        let want = fixture.array(&format!("{prefix}{parameter}"));
        assert_eq!(gradient.shape, want.shape, "{name}: shape of the gradient of {parameter}");
        assert_close(&format!("{name}: gradient of {parameter}"), &gradient.values, &want.values, GRADIENT);
    }
    let wanted = fixture.all().into_keys().filter(|key| key.starts_with(&prefix)).count();
    assert_eq!(found.len(), wanted, "{name}: number of gradients");
}

#[test]
fn attention_equals_pytorch() {
    let fixture = Fixture::open("torch_mha.safetensors");
    for (backend, device) in devices() {
        for case in ["self", "self_causal", "self_padding", "cross"] {
            compare_attention(backend, case, &fixture, &device);
            compare_attention_gradients(backend, case, &fixture, &device.clone().autodiff());
        }
    }
}

fn attention_case(case: &str, fixture: &Fixture, device: &Device) -> (MultiHeadAttention, AttentionMask) {
    let mut attention = MultiHeadAttentionConfig::new(WIDTH, HEADS).init(device);
    fill_attention(&mut attention, fixture, "");
    let mask = match case {
        "self_causal" => AttentionMask::causal(),
        "self_padding" => AttentionMask::none().with_padding(fixture.array("padding_mask").mask(device)),
        _ => AttentionMask::none(),
    };
    (attention, mask)
}

fn compare_attention(backend: &str, case: &str, fixture: &Fixture, device: &Device) {
    let name = format!("{backend}, {case}");
    let (attention, mask) = attention_case(case, fixture, device);
    let x: Tensor<3> = fixture.array("x").tensor(device);
    let memory: Option<Tensor<3>> = (case == "cross").then(|| fixture.array("memory").tensor(device));
    let want = fixture.values(&format!("{case}.output"));

    let context = || AttentionContext::masked(&mask);
    let output = match &memory {
        Some(memory) => attention.forward_cross(x.clone(), memory.clone(), context()),
        None => attention.forward(x.clone(), context()),
    };
    assert_close(&format!("{name}: output"), &values(output), &want, MODULE);

    let (output, weights) = attention.forward_with_weights(x, memory, context());
    assert_close(&format!("{name}: output beside weights"), &values(output), &want, MODULE);
    let averaged = values(weights.mean_dim(1));
    assert_close(&format!("{name}: weights"), &averaged, &fixture.values(&format!("{case}.weights")), MODULE);
}

fn compare_attention_gradients(backend: &str, case: &str, fixture: &Fixture, device: &Device) {
    let name = format!("{backend} with autodiff, {case}");
    let (attention, mask) = attention_case(case, fixture, device);
    let input = |name: &str| fixture.array(name).tensor::<3>(device).require_grad();
    let x = input("x");
    let memory = (case == "cross").then(|| input("memory"));
    let context = AttentionContext::masked(&mask);
    let output = match &memory {
        Some(memory) => attention.forward_cross(x.clone(), memory.clone(), context),
        None => attention.forward(x.clone(), context),
    };
    assert_close(
        &format!("{name}: output"),
        &values(output.clone()),
        &fixture.values(&format!("{case}.output")),
        MODULE,
    );

    let loss = (output * fixture.array("grad_output").tensor(device)).sum();
    let gradients = loss.backward();
    let mut found = attention_gradients(&attention, "", &gradients);
    found.push(("x".into(), gradient("x", &x, &gradients)));
    found.extend(memory.map(|memory| ("memory".into(), gradient("memory", &memory, &gradients))));
    compare_gradients(&name, case, fixture, &found);
}

/// A block as `nn.TransformerEncoderLayer` or, with cross-attention, `nn.TransformerDecoderLayer` has it.
fn torch_layer(case: &str, has_memory: bool, fixture: &Fixture, device: &Device) -> TransformerBlock {
    let (place, activation) = case.split_once('_').expect("a case names placement and activation");
    let placement = if place == "pre" { NormPlacement::Pre } else { NormPlacement::Post };
    let activation = if activation == "gelu" { Activation::Gelu } else { Activation::Relu };
    let attention = MultiHeadAttentionConfig::new(WIDTH, HEADS);
    let feed_forward = FeedForwardConfig::new(WIDTH, D_FF).with_activation(activation);
    let mut config =
        TransformerBlockConfig::new(attention.clone(), feed_forward).with_layout(BlockLayout::new(placement));
    if has_memory {
        config = config.with_cross_attention(attention);
    }
    let mut block = config.init(device);
    let array = |name: &str| fixture.array(&format!("weights.{name}"));

    fill_attention(&mut block.attention, fixture, "weights.self_attn.");
    if let Some(cross) = &mut block.cross_attention {
        fill_attention(cross, fixture, "weights.multihead_attn.");
    }
    let feed_forward = block.feed_forward.as_mut().expect("the block has a feed-forward network");
    fill(&mut feed_forward.up, &array("linear1.weight"), Some(&array("linear1.bias")));
    fill(&mut feed_forward.down, &array("linear2.weight"), Some(&array("linear2.bias")));
    let mut branches = vec![&mut block.attention_norm, &mut block.feed_forward_norm];
    if has_memory {
        branches.insert(1, &mut block.cross_attention_norm);
    }
    for (number, branch) in (1..).zip(branches) {
        let norm = branch.pre.as_mut().or(branch.post.as_mut()).expect("the branch has a norm");
        let parameter = |name: &str| Some(burn::module::Param::from_tensor(array(name).tensor(device)));
        norm.weight = parameter(&format!("norm{number}.weight"));
        norm.bias = parameter(&format!("norm{number}.bias"));
    }
    block
}

/// The gradients of a block under PyTorch's names.
fn layer_gradients(block: &TransformerBlock, gradients: &Gradients) -> Vec<(String, Array)> {
    let mut found = attention_gradients(&block.attention, "self_attn.", gradients);
    let mut branches = vec![&block.attention_norm];
    if let Some(cross) = &block.cross_attention {
        found.extend(attention_gradients(cross, "multihead_attn.", gradients));
        branches.push(&block.cross_attention_norm);
    }
    branches.push(&block.feed_forward_norm);
    let feed_forward = block.feed_forward.as_ref().expect("the block has a feed-forward network");
    for (name, linear) in [("linear1", &feed_forward.up), ("linear2", &feed_forward.down)] {
        let [weight, bias] = projection_gradients(name, linear, gradients);
        found.extend([(format!("{name}.weight"), weight), (format!("{name}.bias"), bias)]);
    }
    for (number, branch) in (1..).zip(branches) {
        let Norm { weight, bias, .. } = only_norm(branch);
        for (name, param) in [("weight", weight), ("bias", bias)] {
            let name = format!("norm{number}.{name}");
            let param = param.as_ref().expect("the norm has weight and bias");
            found.push((name.clone(), gradient(&name, &param.val(), gradients)));
        }
    }
    found
}

fn only_norm(branch: &BranchNorms) -> &Norm {
    branch.pre.as_ref().or(branch.post.as_ref()).expect("the branch has a norm")
}

#[test]
fn an_encoder_layer_equals_pytorch() {
    let fixture = Fixture::open("torch_encoder_layer.safetensors");
    for (backend, plain) in devices() {
        for case in ["post_gelu", "pre_gelu", "post_relu", "pre_relu"] {
            for device in [plain.clone(), plain.clone().autodiff()] {
                let name = format!("{backend}{}, {case}", if device.is_autodiff() { " with autodiff" } else { "" });
                let block = torch_layer(case, false, &fixture, &device);
                let x: Tensor<3> = fixture.array("x").tensor(&device);
                for (mask, key) in [(AttentionMask::none(), "output"), (AttentionMask::causal(), "output_causal")] {
                    let output = values(block.forward(x.clone(), BlockContext::masked(&mask)));
                    assert_close(&format!("{name}: {key}"), &output, &fixture.values(&format!("{case}.{key}")), MODULE);
                }
                if device.is_autodiff() {
                    let x = x.require_grad();
                    let output = block.forward(x.clone(), BlockContext::masked(&AttentionMask::none()));
                    let loss = (output * fixture.array("grad_output").tensor(&device)).sum();
                    let gradients = loss.backward();
                    let mut found = layer_gradients(&block, &gradients);
                    found.push(("x".into(), gradient("x", &x, &gradients)));
                    compare_gradients(&name, case, &fixture, &found);
                }
            }
        }
    }
    // The cases are far enough apart that one cannot pass for another.
    let output = |case: &str| fixture.values(&format!("{case}.output"));
    for (one, other) in [("post_gelu", "post_relu"), ("pre_gelu", "pre_relu"), ("post_gelu", "pre_gelu")] {
        assert_apart(&format!("{one} and {other}"), &output(one), &output(other), 100.0 * MODULE);
    }
}

#[test]
fn a_decoder_layer_equals_pytorch() {
    let fixture = Fixture::open("torch_decoder_layer.safetensors");
    for (backend, plain) in devices() {
        for case in ["post_relu", "pre_gelu"] {
            for device in [plain.clone(), plain.clone().autodiff()] {
                let name = format!("{backend}{}, {case}", if device.is_autodiff() { " with autodiff" } else { "" });
                let block = torch_layer(case, true, &fixture, &device);
                let input = |name: &str| {
                    let input = fixture.array(name).tensor::<3>(&device);
                    if device.is_autodiff() { input.require_grad() } else { input }
                };
                let (target, memory) = (input("tgt"), input("memory"));
                let (causal, all) = (AttentionMask::causal(), AttentionMask::none());
                let projected = block.project_memory(memory.clone()).expect("the block has cross-attention");
                let context = BlockContext {
                    memory: Some(Memory { projected: &projected, mask: &all }),
                    ..BlockContext::masked(&causal)
                };
                let output = block.forward(target.clone(), context);
                let want = fixture.values(&format!("{case}.output"));
                assert_close(&format!("{name}: output"), &values(output.clone()), &want, MODULE);
                if device.is_autodiff() {
                    let loss = (output * fixture.array("grad_output").tensor(&device)).sum();
                    let gradients = loss.backward();
                    let mut found = layer_gradients(&block, &gradients);
                    found.push(("tgt".into(), gradient("tgt", &target, &gradients)));
                    found.push(("memory".into(), gradient("memory", &memory, &gradients)));
                    compare_gradients(&name, case, &fixture, &found);
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Checkpoints
// ---------------------------------------------------------------------------------------------------------------------

/// Every tiny checkpoint.
fn checkpoints() -> Vec<String> {
    let folder = fixtures().join("checkpoints");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("the folder can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for kind in KINDS {
        assert!(checkpoint_folder(kind).is_dir(), "the fixtures lack {kind}");
    }
    names
}

/// Compares a checkpoint with its golden outputs.
fn compare_checkpoint(backend: &str, name: &str, model: &Transformer) {
    let golden = Golden::open(checkpoint_folder(name).join("golden.safetensors"));
    let found = golden.and_then(|golden| verify(model, &golden, MODEL)).unwrap_or_else(|error| panic!("{error}"));
    assert!(found.ok, "{backend}, {name}: {:?}", found.outputs);
}

#[test]
fn every_checkpoint_gives_the_logits_of_transformers() {
    for name in checkpoints() {
        compare_checkpoint("flex", &name, &load(&name, &flex()));
    }
}

#[test]
fn every_backend_gives_the_logits_of_transformers() {
    for (backend, device) in devices() {
        for name in KINDS {
            compare_checkpoint(backend, name, &load(name, &device));
        }
    }
}

/// Compares a decoder's logits in chunks; an encoder reads whole sequences only.
fn compare_chunks(backend: &str, name: &str, model: &Transformer) {
    if model.config().kind == ModelKind::Encoder {
        return;
    }
    let golden = golden(name);
    let want = golden.values("logits");
    let (rows, source) = if model.config().encoder.is_some() {
        let source = ModelInput::tokens(&golden.rows("input_ids")).with_padding(golden.padding("attention_mask"));
        (golden.rows("decoder_input_ids"), Some(source))
    } else {
        (golden.rows("input_ids"), None)
    };
    for chunks in CHUNKS {
        let got = logits_in_chunks_after(model, source.as_ref(), &rows, chunks);
        assert_close(&format!("{backend}, {name}, {chunks:?}"), &got, &want, MODEL * largest(&want));
    }
}

#[test]
fn every_decoder_gives_the_same_logits_in_any_chunks() {
    for name in checkpoints() {
        compare_chunks("flex", &name, &load(&name, &flex()));
    }
}

#[test]
fn every_backend_gives_the_same_logits_in_any_chunks() {
    for (backend, device) in devices() {
        for name in KINDS {
            compare_chunks(backend, name, &load(name, &device));
        }
    }
}

#[test]
fn left_padded_rows_give_what_they_give_alone() {
    let golden = golden("llama");
    let padded = golden.rows("left_padded.input_ids");
    let padding = golden.padding("left_padded.attention_mask");
    let want = golden.values("left_padded.logits_last");
    for (backend, device) in devices() {
        let model = load("llama", &device);
        let vocab_size = model.config().vocab_size();
        let tolerance = MODEL * largest(&want);
        let last = |logits: Vec<f64>, rows: usize| -> Vec<f64> {
            let per_row = logits.len() / rows;
            logits.chunks(per_row).flat_map(|row| row[per_row - vocab_size..].to_vec()).collect()
        };

        let input = ModelInput::tokens(&padded).with_padding(padding.clone());
        let together = last(logits(&model, &input), 2);
        assert_close(&format!("{backend}: the padded batch"), &together, &want, tolerance);
        // Padding is more than a token that stands there.
        let visible = last(logits(&model, &ModelInput::tokens(&padded)), 2);
        assert_apart("padding that is not said to be padding", &visible, &want, 100.0 * tolerance);

        for (row, (ids, is_padding)) in padded.iter().zip(&padding).enumerate() {
            let ids: Vec<i64> = ids.iter().zip(is_padding).filter(|(_, is)| !**is).map(|(id, _)| *id).collect();
            let alone = last(logits(&model, &ModelInput::tokens(&[ids])), 1);
            let want = &want[row * vocab_size..(row + 1) * vocab_size];
            assert_close(&format!("{backend}: row {row} alone"), &alone, want, tolerance);
        }
        for cached in [true, false] {
            let found = Greedy::new(&model, &padded, cached).with_padding(padding.clone()).take(6);
            assert_eq!(found, golden.rows("left_padded.greedy"), "{backend}: greedy tokens, cached: {cached}");
        }
    }
}

#[test]
fn greedy_tokens_do_not_depend_on_the_cache() {
    let golden = golden("llama");
    let rows = golden.rows("input_ids");
    let prompt = &rows[..1];
    let want = golden.rows("greedy");
    for (backend, device) in devices() {
        let model = load("llama", &device);
        assert_eq!(Greedy::new(&model, prompt, false).take(8), want, "{backend}: without a cache");
        for turn in ["first", "second"] {
            assert_eq!(Greedy::new(&model, prompt, true).take(8), want, "{backend}: with a cache, {turn} time");
        }

        // A cache that was used and reset remembers nothing.
        let mut used = Greedy::new(&model, &rows[1..], true);
        used.step();
        let mut cache = used.into_cache().expect("it has a cache");
        cache.reset();
        assert_eq!(Greedy::new(&model, prompt, true).with_cache(cache).take(8), want, "{backend}: with a reset cache");

        // Two caches on one model, turn by turn.
        let other = Greedy::new(&model, &rows[1..], false).take(8);
        assert_ne!(other, want, "the prompts must lead to different tokens");
        let mut both = [Greedy::new(&model, prompt, true), Greedy::new(&model, &rows[1..], true)];
        (0..8).for_each(|_| both.iter_mut().for_each(Greedy::step));
        assert_eq!(both.map(|one| one.found()), [want.clone(), other], "{backend}: two caches in turn");
    }
    assert_eq!(argmax(&[0.5, 2.0, 2.0, -1.0], 4), [1], "of equal logits the lowest id wins");
}
