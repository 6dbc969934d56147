//! The two experiments among the examples, with margins to what they show.

#![cfg(feature = "plot")]

use std::sync::Mutex;

use burn::tensor::Device;
use burnformer::backend::{Backend, DeviceName};
use burnformer::transformer_block::NormPlacement;

#[path = "../examples/induction.rs"]
#[expect(dead_code, reason = "the program's `main` is not called")]
mod induction;

#[path = "../examples/pre_norm_post_norm.rs"]
#[expect(dead_code, reason = "the program's `main` is not called")]
mod pre_norm_post_norm;

/// Weights come from the one generator of the backend, which each experiment seeds; so one runs at a time.
static GENERATOR: Mutex<()> = Mutex::new(());

fn flex() -> Device {
    DeviceName::new(Backend::Flex).open().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn gradients_grow_towards_the_output_with_post_norm_and_are_bounded_with_pre_norm() {
    let _one = GENERATOR.lock();
    let of = |placement, depth| pre_norm_post_norm::gradients(placement, depth, &flex()).unwrap();
    let [post_2, post_24] = [2, 24].map(|depth| of(NormPlacement::Post, depth));
    let [pre_2, pre_24] = [2, 24].map(|depth| of(NormPlacement::Pre, depth));
    let growth = |norms: &[f64]| {
        let [first, last] = pre_norm_post_norm::ends(norms);
        last / first
    };
    assert!(growth(&post_24) > 1.15, "{post_24:?}");
    assert!(growth(&pre_24) < 0.6, "{pre_24:?}");

    // The paper's bounds for the last layer: O(1) in the depth, and O(1/√depth). √(2/24) is 0.29.
    let last = |norms: &[f64]| norms[norms.len() - 1];
    let (post, pre) = (last(&post_24) / last(&post_2), last(&pre_24) / last(&pre_2));
    assert!((0.7..2.0).contains(&post), "{post}");
    assert!((0.2..0.6).contains(&pre), "{pre}");
}

#[test]
fn deep_post_norm_needs_a_warm_up_and_pre_norm_does_not() {
    let _one = GENERATOR.lock();
    let loss = |placement, warm_up| pre_norm_post_norm::train(placement, warm_up, 200, &flex()).unwrap();
    let guess = 16_f64.ln();
    let pre = loss(NormPlacement::Pre, 0);
    assert!(pre < 0.1, "{pre}");
    let post = loss(NormPlacement::Post, 0);
    assert!(post > 0.9 * guess, "{post}");
    let warmed_up = loss(NormPlacement::Post, 100);
    assert!(warmed_up < 0.5 * guess, "{warmed_up}");
}

#[test]
fn two_layers_learn_induction_and_one_does_not() {
    let _one = GENERATOR.lock();
    let of = |n_layers| induction::train(n_layers, induction::STEPS, 0, &flex()).unwrap();
    let (model, two) = of(2);
    assert!(two.accuracy > 0.95 && two.loss < 0.2, "{} {}", two.accuracy, two.loss);
    // In the second layer, a head looks at what followed its token before.
    let heads = induction::heads(&model).unwrap();
    let most =
        |layer| heads.iter().filter(|head| head.layer == layer).filter_map(|head| head.induction).fold(0.0, f64::max);
    assert!(most(1) > 0.4 && most(1) > 2.0 * most(0), "{} {}", most(0), most(1));
    // One layer can leave out what does not occur again, and guess at lengths: 54 % and a loss of 1.05.
    let one = of(1).1;
    assert!(one.accuracy < 0.75 && one.loss > 0.7, "{} {}", one.accuracy, one.loss);
}
