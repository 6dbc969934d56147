//! Norms of gradients by layer, compared with those that PyTorch's autograd gives in float64.

use burn::module::Module;
use burnformer::gradient_norms::{BlockPart, GradientNorms};
use burnformer::model::ModelInput;

use crate::common::{array_of, assert_apart, assert_close, devices, flex, golden, load, numbers};
use crate::references;

/// Gradients in 32 bits are right to about 1e-5 of the largest norm, which is 4.
const TOLERANCE: f64 = 1e-4;

#[test]
fn norms_are_those_of_autograd_on_every_backend() {
    let references = references();
    let checkpoints = references["gradient_norms"].as_object().unwrap();
    assert_eq!(checkpoints.len(), 3);
    for (index, (backend, device)) in devices().into_iter().enumerate() {
        // The checkpoints differ in their parts, not in what a backend computes.
        for (name, parts) in checkpoints.iter().filter(|(name, _)| index == 0 || *name == "llama") {
            let rows = golden(name).rows("input_ids");
            let norms = GradientNorms::of_next_tokens(&load(name, &device), &rows).unwrap();
            for (part, wanted) in parts.as_object().unwrap() {
                let by_layer = norms.by_layer(part.parse().unwrap());
                assert_close(&format!("{backend} {name} {part}"), &by_layer, &numbers(wanted), TOLERANCE);
            }
        }
    }
    // The parts could not be mistaken for each other.
    let of = |part: &str| array_of(&references["gradient_norms"]["llama"][part]).values;
    assert_apart("attention and network", &of("attention"), &of("feed-forward"), 100.0 * TOLERANCE);
    assert_apart("network and its output", &of("feed-forward"), &of("down"), 100.0 * TOLERANCE);
}

#[test]
fn a_model_in_training_gives_the_same_norms_as_one_for_inference() {
    // GPT-2's configuration has dropout, which must not act here.
    let rows = golden("gpt2").rows("input_ids");
    let of = |device| GradientNorms::of_next_tokens(&load("gpt2", &device), &rows).unwrap().by_layer(BlockPart::Block);
    let for_inference = of(flex());
    assert!(for_inference.iter().all(|norm| *norm > 0.1));
    assert_eq!(of(flex().autodiff()), for_inference);
}

#[test]
fn the_next_tokens_are_the_targets_of_the_ones_before() {
    let model = load("llama", &flex());
    let rows = golden("llama").rows("input_ids");
    let len = rows[0].len();
    let inputs: Vec<Vec<i64>> = rows.iter().map(|row| row[..len - 1].to_vec()).collect();
    let targets: Vec<Vec<i64>> = rows.iter().map(|row| row[1..].to_vec()).collect();
    let by_targets = GradientNorms::of_targets(&model, &ModelInput::tokens(&inputs), &targets).unwrap();
    assert_eq!(by_targets, GradientNorms::of_next_tokens(&model, &rows).unwrap());
    let others = GradientNorms::of_targets(&model, &ModelInput::tokens(&inputs), &inputs).unwrap();
    let block = |norms: &GradientNorms| norms.by_layer(BlockPart::Block);
    assert_apart("other targets", &block(&others), &block(&by_targets), 0.05);
}

#[test]
fn what_a_model_does_not_have_has_no_gradient() {
    let rows = golden("gpt2").rows("input_ids");
    let norms = GradientNorms::of_next_tokens(&load("gpt2", &flex()), &rows).unwrap();
    for (part, is_there) in [(BlockPart::Gate, false), (BlockPart::CrossAttention, false), (BlockPart::Up, true)] {
        assert_eq!(norms.has(part), is_there, "{part}");
        assert_eq!(norms.by_layer(part).iter().all(|norm| *norm > 0.0), is_there, "{part}");
    }
    // Frozen parameters have none either.
    let frozen = load("gpt2", &flex()).no_grad();
    let mut frozen_but_one = frozen;
    frozen_but_one.layers[1] = frozen_but_one.layers[1].clone().set_require_grad(true);
    let norms = GradientNorms::of_next_tokens(&frozen_but_one, &rows).unwrap().by_layer(BlockPart::Block);
    assert_eq!(norms[0], 0.0);
    assert!(norms[1] > 0.1);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let model = load("llama", &flex());
    let of = |targets: &[Vec<i64>]| {
        let input = ModelInput::tokens(&[vec![1, 5, 9]]);
        GradientNorms::of_targets(&model, &input, targets).unwrap_err().to_string()
    };
    assert!(of(&[vec![1, 5]]).contains("1 rows of 3 tokens"));
    assert!(of(&[vec![1, 5, 99]]).contains("target 99 is out of range: the vocabulary has 35"));
    let next = |rows: &[Vec<i64>]| GradientNorms::of_next_tokens(&model, rows).unwrap_err().to_string();
    assert!(next(&[]).contains("at least two tokens"));
    assert!(next(&[vec![3], vec![4]]).contains("at least two tokens"));
    assert!(next(&[vec![3, 4], vec![4]]).contains("rows of one length"));
    let bare = load("bert_bare", &flex());
    let input = ModelInput::tokens(&[vec![1, 5, 9]]);
    let error = GradientNorms::of_targets(&bare, &input, &[vec![1, 5, 9]]).unwrap_err().to_string();
    assert!(error.contains("no head"), "{error}");
    let error = "atention".parse::<BlockPart>().unwrap_err().to_string();
    assert!(error.contains("did you mean `attention`"), "{error}");
}
