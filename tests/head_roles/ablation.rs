//! Switching a head off is zeroing its share of the output projection.

use burn::module::Param;
use burn::tensor::Tensor;
use burnformer::head_roles::{HeadId, HeadInput, ablate_heads, all_heads};
use burnformer::model::{AttentionPart, ModelInput};
use serde_json::Value;

use super::{expected, id_of, input};
use crate::common::{assert_apart, assert_close, devices, flex, load, logits};

/// A mean of logarithms around 4 in 32 bits, of models whose logits are right to 1e-5 of the largest.
const LOSS: f64 = 2e-5;

#[test]
fn losses_without_a_head_equal_those_of_transformers() {
    for name in ["gpt2", "llama", "gemma2", "t5"] {
        let fixture = expected(name);
        let heads = fixture["heads"].as_array().expect("a list");
        let ids: Vec<HeadId> = heads.iter().map(id_of).collect();
        let want: Vec<f64> = heads.iter().map(|head| head["ablation"].as_f64().expect("a number")).collect();
        for (backend, device) in devices() {
            let model = load(name, &device);
            assert_eq!(ids, all_heads(model.config()), "{backend}: {name}");
            let mut done = Vec::new();
            let found = ablate_heads(&model, &input(&fixture), &ids, &mut |count| done.push(count));
            let found = found.unwrap_or_else(|error| panic!("{backend}: {error}"));
            assert_close(&format!("{backend}: {name}"), &found.effects, &want, LOSS);
            assert!((found.loss - fixture["loss"].as_f64().expect("a number")).abs() < LOSS, "{backend}: {name}");
            assert_apart(&format!("{backend}: {name}"), &found.effects, &vec![0.0; want.len()], 100.0 * LOSS);
            assert_eq!(done.last(), Some(&ids.len()), "{backend}");
        }
    }
}

#[test]
fn a_head_that_is_off_is_one_whose_rows_of_the_output_projection_are_zero() {
    let fixture = expected("llama");
    let tokens = super::ids(&fixture["ids"]);
    let text = ModelInput::tokens(std::slice::from_ref(&tokens));
    let head = HeadId { part: AttentionPart::Decoder, layer: 1, head: 4 };
    for (backend, device) in devices() {
        let mut model = load("llama", &device);
        let found = ablate_heads(&model, &HeadInput::new(tokens.clone()), &[head], &mut |_| ());
        let found = found.unwrap_or_else(|error| panic!("{backend}: {error}"));
        let before = loss(&logits(&model, &text), &tokens, 35);
        // Burn's weights are `[in, out]`: the head's four inputs are rows.
        let output = &mut model.layers[1].attention.output;
        let weight = output.weight.val();
        let [_, width] = weight.dims();
        let zeros = Tensor::zeros([4, width], (&device, weight.dtype()));
        output.weight = Param::from_tensor(weight.slice_assign([16..20, 0..width], zeros));
        let after = loss(&logits(&model, &text), &tokens, 35);
        assert_close(backend, &[found.loss, found.effects[0]], &[before, after - before], LOSS);
    }
}

/// −ln p of each token but the first, by hand.
fn loss(logits: &[f64], tokens: &[i64], vocab_size: usize) -> f64 {
    let rows = logits.chunks(vocab_size).zip(&tokens[1..]);
    let of_row = |(row, token): (&[f64], &i64)| {
        row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[usize::try_from(*token).expect("an id")]
    };
    rows.map(of_row).sum::<f64>() / (tokens.len() - 1) as f64
}

#[test]
fn what_cannot_be_ablated_is_said() {
    let fault = |name: &str, tokens: Vec<i64>, head: Value| {
        let found = ablate_heads(&load(name, &flex()), &HeadInput::new(tokens), &[id_of(&head)], &mut |_| ());
        found.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let head = |part: &str, layer: usize, head: usize| serde_json::json!({"part": part, "layer": layer, "head": head});
    assert!(fault("bert", vec![3, 4, 5], head("encoder", 0, 0)).contains("predicts no next token"));
    assert!(fault("llama", vec![3], head("decoder", 0, 0)).contains("at least 2 tokens"));
    assert!(fault("llama", vec![3, 4], head("decoder", 0, 6)).contains("heads 0 to 5"));
    assert!(fault("llama", vec![3, 4], head("cross", 0, 0)).contains("no cross attention"));
}
