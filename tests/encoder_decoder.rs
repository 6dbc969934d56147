//! Models of encoder and decoder: what is read once and remembered, and what is refused. That the numbers are those of
//! transformers, whole and in chunks, is compared in `reference.rs`.

mod common;

use burnformer::model::{Cache, ForwardOptions, ModelInput, Transformer};
use common::{assert_apart, assert_close, devices, flex, largest, load, logits, values};

/// A whole tiny model in another order of sums, relative to the largest logit; measured are 1e-6.
const MODEL: f64 = 1e-5;

fn source() -> ModelInput {
    ModelInput::tokens(&[vec![5_i64, 11, 30, 7, 1]])
}

fn step(model: &Transformer, input: &ModelInput, cache: &mut Cache) -> Vec<f64> {
    let output = model.forward(input, Some(cache), ForwardOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    values(output.logits.expect("the model has a head"))
}

#[test]
fn the_source_is_read_once_and_remembered() {
    for (backend, device) in devices() {
        let model = load("t5_v1_1", &device);
        let ids = [0_i64, 4, 19, 33];
        let whole = logits(&model, &ModelInput::tokens(&[ids.to_vec()]).with_source(source()));
        let mut cache = model.new_cache();
        let mut found = step(&model, &ModelInput::tokens(&[vec![ids[0]]]).with_source(source()), &mut cache);
        let room = cache.bytes();
        for id in &ids[1..] {
            found.extend(step(&model, &ModelInput::tokens(&[vec![*id]]), &mut cache));
        }
        assert_close(&format!("{backend}: token by token"), &found, &whole, MODEL * largest(&whole));
        assert_eq!(cache.bytes(), room, "{backend}: four tokens fit into the first block of the cache");

        // What was read belongs to the cache, and goes with it.
        cache.reset();
        let other = ModelInput::tokens(&[vec![9_i64, 9, 2]]);
        let found = step(&model, &ModelInput::tokens(&[vec![ids[0]]]).with_source(other), &mut cache);
        assert_apart(&format!("{backend}: another source"), &found, &whole[..found.len()], 100.0 * MODEL);
    }
}

#[test]
fn padding_of_the_source_is_not_read() {
    for (backend, device) in devices() {
        let model = load("t5", &device);
        let decoded = |rows: usize| ModelInput::tokens(&vec![vec![0_i64, 4, 19]; rows]);
        let alone = logits(&model, &decoded(1).with_source(source()));
        let padded = ModelInput::tokens(&[vec![5_i64, 11, 30, 7, 1, 0, 0], vec![6, 12, 31, 8, 3, 3, 1]]);
        let padding = vec![vec![false, false, false, false, false, true, true], vec![false; 7]];
        let marked = logits(&model, &decoded(2).with_source(padded.clone().with_padding(padding)));
        let tolerance = MODEL * largest(&alone);
        assert_close(&format!("{backend}: padded"), &marked[..alone.len()], &alone, tolerance);
        let unmarked = logits(&model, &decoded(2).with_source(padded));
        let what = format!("{backend}: padding that is not said to be padding");
        assert_apart(&what, &unmarked[..alone.len()], &alone, 100.0 * tolerance);
    }
}

#[test]
fn a_source_must_be_there_once_and_fit() {
    let (t5, llama) = (load("t5", &flex()), load("llama", &flex()));
    let ids = || ModelInput::tokens(&[vec![0_i64, 4]]);
    let fault = |model: &Transformer, input: &ModelInput, cache: Option<&mut Cache>| {
        let found = model.forward(input, cache, ForwardOptions::default());
        found.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(fault(&t5, &ids(), None).contains("needs a source"));
    assert!(fault(&t5, &ids(), Some(&mut t5.new_cache())).contains("needs a source"));
    assert!(fault(&llama, &ids().with_source(source()), None).contains("has no encoder"));
    let two = ModelInput::tokens(&[vec![3_i64], vec![4]]);
    assert!(fault(&t5, &ids().with_source(two), None).contains("the source has 2 rows, the batch 1"));
    let outside = ModelInput::tokens(&[vec![3_i64, 35]]);
    assert!(fault(&t5, &ids().with_source(outside), None).contains("token id 35 is out of range"));
    let nested = source().with_source(source());
    assert!(fault(&t5, &ids().with_source(nested), None).contains("no source of its own"));
    let mut cache = t5.new_cache();
    let first = ids().with_source(source());
    step(&t5, &first, &mut cache);
    assert!(fault(&t5, &first, Some(&mut cache)).contains("holds a source already"));
    // A refused call leaves the cache as it was.
    assert_eq!(cache.len(), 2);
    step(&t5, &ids(), &mut cache);
}

#[test]
fn a_source_of_no_tokens_is_nothing_to_attend_to() {
    for (backend, device) in devices() {
        let model = load("t5", &device);
        let empty = ModelInput::tokens::<i64>(&[vec![]]);
        let found = logits(&model, &ModelInput::tokens(&[vec![0_i64, 4]]).with_source(empty));
        assert!(found.iter().all(|x| x.is_finite()), "{backend}");
    }
}
