//! Keys of a header that change what a model computes: each is in force, or refused by name.

use burnformer::attention::RotaryScaling;
use burnformer::model::{ModelConfig, ModelInput};
use burnformer::positions::Positions;

use crate::common::{assert_apart, assert_close, largest, logits};
use crate::handmade::{Handmade, Value, assert_says, f32, flag, text, u32};

fn config(file: &Handmade) -> ModelConfig {
    file.load().unwrap_or_else(|error| panic!("{error}")).config().clone()
}

fn outputs(file: &Handmade) -> Vec<f64> {
    let model = file.load().unwrap_or_else(|error| panic!("{error}"));
    logits(&model, &ModelInput::tokens(&[vec![0, 3, 1, 4, 2, 2, 0]]))
}

fn scaling(file: &Handmade) -> (f64, RotaryScaling) {
    let Positions::Rotary(rotary) = config(file).positions else { panic!("Llama turns its features") };
    (rotary.global.theta, rotary.global.scaling)
}

#[test]
fn the_base_is_ten_thousand_where_it_is_not_given() {
    let silent = Handmade::llama();
    assert_eq!(scaling(&silent), (10_000.0, RotaryScaling::None));
    let given = Handmade::llama().with("llama.rope.freq_base", f32(100.0));
    assert_eq!(scaling(&given).0, 100.0);
    assert_apart("the base", &outputs(&given), &outputs(&silent), 1e-3);
}

#[test]
fn scalings_are_in_force() {
    let plain = Handmade::llama();
    let linear =
        plain.clone().with("llama.rope.scaling.type", text("linear")).with("llama.rope.scaling.factor", f32(4.0));
    assert_eq!(scaling(&linear).1, RotaryScaling::Linear { factor: 4.0 });
    // The older key, and a factor without a type.
    let older = plain.clone().with("llama.rope.scale_linear", f32(4.0));
    assert_eq!(scaling(&older), scaling(&linear));
    let none = linear.clone().with("llama.rope.scaling.type", text("none"));
    assert_eq!(scaling(&none).1, RotaryScaling::None);
    let yarn = linear
        .clone()
        .with("llama.rope.scaling.type", text("yarn"))
        .with("llama.rope.scaling.original_context_length", u32(8))
        .with("llama.rope.scaling.finetuned", flag(true));
    let RotaryScaling::Yarn { factor: 4.0, original_max_seq_len: 8, .. } = scaling(&yarn).1 else {
        panic!("{:?}", scaling(&yarn));
    };
    let base = outputs(&plain);
    for (name, file) in [("linear", &linear), ("yarn", &yarn)] {
        assert_apart(name, &outputs(file), &base, 1e-3);
    }
    let missing = plain.clone().with("llama.rope.scaling.type", text("yarn"));
    assert_says(&missing.message(), &["`llama.rope.scaling.factor` is missing"]);
    let unknown = linear.with("llama.rope.scaling.type", text("spiral"));
    assert_says(&unknown.message(), &["`llama.rope.scaling.type` `spiral` is not known"]);
    let extra = yarn.with("llama.rope.scaling.yarn_ext_factor", f32(0.5));
    assert_says(&extra.message(), &["`llama.rope.scaling.yarn_ext_factor` = 0.5 is not understood"]);
}

#[test]
fn divisors_are_in_force() {
    let file = Handmade::llama().with_tensor("rope_freqs.weight", &[2]);
    let start = file.data.len() - 8;
    let divisors = |a: f32, b: f32| {
        let mut file = file.clone();
        file.data.splice(start.., [a.to_le_bytes(), b.to_le_bytes()].concat());
        file
    };
    let base = outputs(&Handmade::llama());
    assert_close("divisors of 1", &outputs(&divisors(1.0, 1.0)), &base, 1e-6 * largest(&base));
    assert_apart("divisors", &outputs(&divisors(3.0, 8.0)), &base, 1e-3);
    assert_says(&divisors(3.0, f32::INFINITY).message(), &["`rope_freqs.weight`", "not finite"]);
    assert_says(&divisors(3.0, 0.0).message(), &["above 0"]);
    let both = divisors(3.0, 8.0).with("llama.rope.scaling.factor", f32(2.0));
    assert_says(&both.message(), &["`llama.rope.scaling.type`", "tensors with factors"]);
    let three = Handmade::llama().with_tensor("rope_freqs.weight", &[3]);
    assert_says(&three.message(), &["2 numbers"]);
    let half = Handmade::llama().with_tensor("rope_factors_long.weight", &[2]);
    assert_says(&half.message(), &["`rope_factors_short.weight`"]);
}

#[test]
fn heads_turn_as_a_whole_in_llama() {
    let part = Handmade::llama().with("llama.rope.dimension_count", u32(2));
    assert_says(&part.message(), &["`llama.rope.dimension_count` = 2", "heads of 4 features"]);
    assert_eq!(config(&Handmade::llama().without("llama.rope.dimension_count")), config(&Handmade::llama()));
}

#[test]
fn values_are_as_wide_as_keys() {
    let file = Handmade::llama().with("llama.attention.key_length", u32(4));
    assert_eq!(config(&file), config(&Handmade::llama()));
    let wide = file.with("llama.attention.value_length", u32(6));
    assert_says(&wide.message(), &["`llama.attention.value_length` = 6"]);
    let wide = Handmade::llama().with("llama.attention.key_length", u32(6)).without("llama.rope.dimension_count");
    assert_says(&wide.message(), &["q_proj", "[12, 8]"]);
}

#[test]
fn keys_that_may_matter_are_refused() {
    for (key, value) in [
        ("llama.expert_count", u32(8)),
        ("llama.attention.scale", f32(0.5)),
        ("llama.logit_scale", f32(2.0)),
        ("llama.attention.sliding_window", u32(4)),
    ] {
        assert_says(&Handmade::llama().with(key, value).message(), &[&format!("`{key}` = "), "is not understood"]);
    }
    let slip = Handmade::llama().with("llama.rope.freq_bas", f32(2.0));
    assert_says(&slip.message(), &["did you mean `llama.rope.freq_base`?"]);
    let both_sides = Handmade::llama().with("llama.attention.causal", flag(false));
    assert_says(&both_sides.message(), &["`llama.attention.causal` is false"]);
    let part = Handmade::llama().with("split.count", Value(2, 3_u16.to_le_bytes().into()));
    assert_says(&part.message(), &["`split.count` = 3", "one of several parts"]);
    // What is off, what is about other things, and the vocabulary, which the table of tokens tells.
    let harmless = Handmade::llama()
        .with("llama.expert_count", u32(0))
        .with("llama.vocab_size", u32(4))
        .with("general.quantization_version", u32(2))
        .with("general.license", text("mit"));
    assert_eq!(config(&harmless), config(&Handmade::llama()));
}

#[test]
fn the_head_is_tied_where_it_has_no_matrix() {
    assert!(config(&Handmade::llama()).head.expect("a head").tied);
    let untied = Handmade::llama().with_tensor("output.weight", &[8, 5]);
    assert!(!config(&untied).head.expect("a head").tied);
    let biased = Handmade::llama().with_tensor("blk.0.attn_q.bias", &[8]);
    assert_apart("a bias", &outputs(&biased), &outputs(&Handmade::llama()), 1e-3);
}
