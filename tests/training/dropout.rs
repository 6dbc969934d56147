//! Dropout while training and not otherwise, and activations that are computed again.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients};
use burnformer::model::Transformer;
use burnformer::training::{ModelSource, window_loss};

use super::common::*;
use super::*;

fn windows() -> Vec<Vec<i64>> {
    Numbers::new(2).tokens(3, 11, 256)
}

/// The model with these probabilities of dropout, in blocks and in attention.
fn with_dropout(probability: f64, device: &Device) -> Transformer {
    let mut model = model().with_dropout(probability);
    model.attention.dropout = probability;
    randomised(model.init(device), 7)
}

fn loss(model: &Transformer) -> f64 {
    window_loss(model, &windows()).expect("the model takes them").into_scalar()
}

#[test]
fn evaluation_knows_no_dropout() {
    let _alone = alone();
    for (name, device) in devices() {
        let training = with_dropout(0.5, &device.autodiff());
        let plain = loss(&with_dropout(0.0, &training.device()));
        let evaluated = training.valid();
        assert_eq!(loss(&evaluated), loss(&evaluated), "{name}");
        assert_close(name, &[loss(&evaluated)], &[plain], 1e-6);
        training.device().seed(1);
        assert_apart(name, &[loss(&training)], &[plain], 1e-3);
    }
}

#[test]
fn a_measurement_knows_no_dropout() {
    let _alone = alone();
    // A learning rate that rounds away leaves the weights as they are drawn.
    let with = |probability: f64| {
        let mut config = config();
        config.steps = 1;
        config.schedule.learning_rate = 1e-30;
        config.validation = ValidationConfig { share: 0.3, every: 1, ..ValidationConfig::default() };
        if let Some(ModelSource::Config(model)) = &mut config.model {
            model.dropout = probability;
        }
        train(&config, &rhyme(), &flex())
    };
    let (dropped, plain) = (with(0.5), with(0.0));
    assert_eq!(dropped.measured(), plain.measured());
    assert_apart("training", &dropped.losses(), &plain.losses(), 1e-4);
}

/// The gradients of the loss by all parameters, in their order.
fn gradients(model: &Transformer) -> Vec<f64> {
    use burn::module::{ModuleVisitor, Param};
    use burn::tensor::Tensor;
    struct All(GradientsParams, Vec<f64>);
    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.remove::<D>(param.id).expect("every parameter has a gradient");
            self.1.extend(values(gradient));
        }
    }
    let backward: Gradients = window_loss(model, &windows()).expect("the model takes them").backward();
    let mut all = All(GradientsParams::from_grads(backward, model), Vec::new());
    model.visit(&mut all);
    all.1
}

#[test]
fn recomputed_activations_give_the_same_gradients() {
    let _alone = alone();
    for (name, device) in devices() {
        let kept = device.clone().autodiff();
        let recomputed = device.autodiff().gradient_checkpointing();
        for probability in [0.0, 0.4] {
            let of = |device: &Device, seed: u64| {
                let model = with_dropout(probability, device);
                device.seed(seed);
                gradients(&model)
            };
            let expected = of(&kept, 5);
            // The same operations on the same numbers: a mask of dropout is kept, and not drawn again.
            assert_close(name, &of(&recomputed, 5), &expected, 1e-6 * largest(&expected));
            if probability > 0.0 {
                assert_apart(name, &of(&kept, 6), &expected, 1e-3 * largest(&expected));
            }
        }
    }
}

#[test]
fn a_run_that_recomputes_has_the_same_losses() {
    let _alone = alone();
    let mut config = config();
    if let Some(ModelSource::Config(model)) = &mut config.model {
        model.dropout = 0.3;
    }
    let text = rhyme();
    let kept = train(&config, &text, &flex()).losses();
    config.recompute_activations = true;
    assert_close("recomputed", &train(&config, &text, &flex()).losses(), &kept, 1e-6);
}
