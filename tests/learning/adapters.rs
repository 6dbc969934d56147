//! Low-rank adapters: what they compute, what is trained, and merging.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burnformer::adapters::{LoraConfig, Projection, has_adapters, merge_adapters};
use burnformer::model::{ForwardOptions, ModelInput, Transformer};

use crate::common::{assert_apart, assert_close, devices, flex, golden, load, logits, numbers, values};
use crate::references;

/// A tiny model in 32 bits is right to about 1e-6 of its largest logit, which is below 10.
const TOLERANCE: f64 = 1e-5;

/// Adapters of the reference: rank 3, alpha 6, on queries, values and the output of the feed-forward network.
pub fn reference_config() -> LoraConfig {
    let projections = vec![Projection::Query, Projection::Value, Projection::Down];
    LoraConfig::new(3, 6.0).with_projections(projections)
}

/// The numbers of a factor of the reference.
fn factor(count: usize, phase: f64) -> Vec<f64> {
    (0..count).map(|entry| 0.3 * (1.7 * entry as f64 + phase).sin()).collect()
}

/// Puts the factors of the reference into a model with adapters.
pub fn with_reference_factors(model: Transformer) -> Transformer {
    struct Fill(Vec<String>);
    impl ModuleMapper for Fill {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let [_, layer, .., projection, _, _, name] = &self.0[..] else { return param };
            let projections = ["query", "value", "down"];
            let Some(number) = projections.iter().position(|known| known == projection) else { return param };
            let phase = layer.parse::<f64>().unwrap() + 0.1 * number as f64 + if name == "b" { 0.5 } else { 0.0 };
            let old = param.val();
            let (shape, device) = (old.dims(), old.device());
            let data = TensorData::new(factor(shape.iter().product(), phase), shape).convert_dtype(old.dtype());
            param.map(|old| Tensor::from_data(data, &device).set_require_grad(old.is_require_grad()))
        }
    }
    model.map(&mut Fill(Vec::new()))
}

/// `llama` with the adapters of the reference.
pub fn adapted_llama(device: &Device) -> Transformer {
    with_reference_factors(reference_config().apply(load("llama", device)).unwrap())
}

/// The first nine tokens, for which the reference has logits.
pub fn reference_input() -> ModelInput {
    ModelInput::tokens(&[golden("llama").rows("input_ids")[0][..9].to_vec()])
}

/// All parameters with their stored numbers: those that are trained, and the others.
fn parameters(model: &Transformer) -> [BTreeMap<String, Vec<f64>>; 2] {
    struct Collect {
        path: Vec<String>,
        found: [BTreeMap<String, Vec<f64>>; 2],
    }
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let list = usize::from(!param.val().is_require_grad());
            self.found[list].insert(self.path.join("."), values(param.val()));
        }
    }
    let mut collect = Collect { path: Vec::new(), found: [BTreeMap::new(), BTreeMap::new()] };
    model.visit(&mut collect);
    collect.found
}

/// A few steps towards saying the next token; gives the losses.
fn train(mut model: Transformer, steps: usize) -> (Transformer, Vec<f64>) {
    let rows = [golden("llama").rows("input_ids")[0][..9].to_vec()];
    let targets = rows[0][1..].to_vec();
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let output = model.forward(&ModelInput::tokens(&rows), None, ForwardOptions::default()).unwrap();
        let logits = output.logits.unwrap();
        let [batch, seq, vocab] = logits.dims();
        let logits = logits.slice_dim(1, 0..seq - 1).reshape([batch * (seq - 1), vocab]);
        let ids = TensorData::new(targets.clone(), [targets.len()]);
        let loss = burn::nn::loss::CrossEntropyLossConfig::new()
            .init(&model.device())
            .forward(logits, Tensor::from_data(ids, &model.device()));
        losses.push(values(loss.clone())[0]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.05, model, gradients);
    }
    (model, losses)
}

#[test]
fn an_adapted_model_gives_what_torch_gives_on_every_backend_and_so_does_the_merged_one() {
    let wanted = numbers(&references()["lora"]["logits"]);
    for (backend, device) in devices() {
        let base = load("llama", &device);
        let adapted = adapted_llama(&device);
        let got = logits(&adapted, &reference_input());
        assert_close(&format!("{backend}: adapted"), &got, &wanted, TOLERANCE);
        assert_apart("adapted and not", &got, &logits(&base, &reference_input()), 100.0 * TOLERANCE);

        let merged = merge_adapters(adapted);
        assert!(!has_adapters(&merged));
        // The same sum of the same products.
        assert_close(&format!("{backend}: merged"), &logits(&merged, &reference_input()), &got, TOLERANCE / 10.0);
    }
}

#[test]
fn merged_weights_are_the_sum_in_64_bits() {
    let [_, before] = parameters(&adapted_llama(&flex()));
    let [_, merged] = parameters(&merge_adapters(adapted_llama(&flex())));
    let name = "layers.1.attention.value.weight";
    let (a, b) = (factor(24 * 3, 1.1), factor(3 * 12, 1.6));
    let wanted: Vec<f64> = (0..24 * 12)
        .map(|at| {
            let product: f64 = (0..3).map(|r| a[at / 12 * 3 + r] * b[r * 12 + at % 12]).sum();
            before[name][at] + 6.0 / 3.0 * product
        })
        .collect();
    // Numbers below 2, one rounding each for two factors, three products and two sums.
    assert_close(name, &merged[name], &wanted, 1e-6);
    assert_eq!(merged["layers.1.attention.key.weight"], before["layers.1.attention.key.weight"]);
}

#[test]
fn new_adapters_change_nothing() {
    let lora = LoraConfig::default().with_projections(Projection::ALL.to_vec());
    for (backend, device) in devices() {
        let base = logits(&load("llama", &device), &reference_input());
        let adapted = lora.apply(load("llama", &device)).unwrap();
        assert!(has_adapters(&adapted));
        assert_eq!(logits(&adapted, &reference_input()), base, "{backend}");
    }
}

#[test]
fn only_adapters_are_trained_and_the_loss_falls() {
    for (backend, device) in devices() {
        let device = device.autodiff();
        device.seed(1);
        let model = reference_config().apply(load("llama", &device)).unwrap();
        let [trained, frozen] = parameters(&model);
        assert_eq!(trained.len(), 2 * 3 * 2, "two factors, three projections, two layers");
        assert!(trained.keys().all(|path| path.contains(".lora.")), "{:?}", trained.keys());

        let (model, losses) = train(model, 3);
        assert!(losses[2] < losses[0] - 0.01, "{backend}: {losses:?}");
        let [trained_after, frozen_after] = parameters(&model);
        assert_eq!(frozen_after, frozen, "{backend}");
        for (path, before) in &trained {
            assert_ne!(&trained_after[path], before, "{backend}: {path} has not moved");
        }
    }
}

#[test]
fn a_merged_model_is_an_ordinary_one() {
    let device = flex().autodiff();
    let n_parameters = load("llama", &device).num_params();
    let merged = merge_adapters(adapted_llama(&device));
    assert_eq!(merged.num_params(), n_parameters);
    let [trained, frozen] = parameters(&merged);
    assert!(!trained.is_empty() && frozen.is_empty(), "all parameters can be trained again");
    let (_, losses) = train(merged, 3);
    assert!(losses[2] < losses[0]);
    // One for inference stays one, and can be trained once it is taken to a device with autodiff.
    let [trained, _] = parameters(&merge_adapters(adapted_llama(&flex())));
    assert!(trained.is_empty());
    let [trained, frozen] = parameters(&merge_adapters(adapted_llama(&flex())).train());
    assert!(!trained.is_empty() && frozen.is_empty());
}

#[test]
fn adapters_can_be_merged_and_given_again() {
    let model = merge_adapters(adapted_llama(&flex()));
    let before = logits(&model, &reference_input());
    let again = LoraConfig::default().apply(model).unwrap();
    assert_eq!(logits(&again, &reference_input()), before);
    let error = LoraConfig::default().apply(again).unwrap_err().to_string();
    assert!(error.contains("has adapters already; merge them"), "{error}");
}

#[test]
fn alpha_and_rank_decide_how_much_an_adapter_counts() {
    let change = |rank: usize, alpha: f64| -> Vec<f64> {
        let lora = LoraConfig { rank, alpha, ..reference_config() };
        let model = with_reference_factors(lora.apply(load("llama", &flex())).unwrap());
        let [_, merged] = parameters(&merge_adapters(model));
        let [_, before] = parameters(&load("llama", &flex()));
        let name = "layers.0.attention.query.weight";
        merged[name].iter().zip(&before[name]).map(|(merged, before)| merged - before).collect()
    };
    let once = change(3, 6.0);
    let half: Vec<f64> = once.iter().map(|change| change / 2.0).collect();
    assert_close("half of alpha", &change(3, 3.0), &half, 1e-6);
    assert_apart("half of alpha", &half, &once, 1e-4);
    assert_apart("another rank", &change(2, 6.0), &once, 1e-4);
}

#[test]
fn each_projection_gets_its_own_adapters() {
    for projection in Projection::ALL {
        let lora = LoraConfig::new(2, 4.0).with_projections(vec![projection]);
        let [trained, _] = parameters(&lora.apply(load("llama", &flex().autodiff())).unwrap());
        assert_eq!(trained.len(), 4, "{projection}: two factors in two layers");
        assert!(trained.keys().all(|path| path.contains(&format!(".{projection}.weight.lora."))), "{projection}");
    }
    let count = |name: &str, projections: &[Projection]| {
        let lora = LoraConfig::new(2, 4.0).with_projections(projections.to_vec());
        let [trained, _] = parameters(&lora.apply(load(name, &flex().autodiff())).unwrap());
        trained.len()
    };
    // Five experts in two layers, two factors each.
    assert_eq!(count("mixtral", &[Projection::Gate]), 20);
    // Self-attention of encoder and decoder, and cross-attention.
    let t5 = load("t5", &flex());
    let attentions = t5.encoder.as_ref().unwrap().layers.len() + 2 * t5.layers.len();
    assert_eq!(count("t5", &[Projection::Query, Projection::Key]), 4 * attentions);

    let lora = LoraConfig::default().with_projections(vec![Projection::Value, Projection::Gate]);
    let error = lora.apply(load("gpt2", &flex())).unwrap_err().to_string();
    assert!(error.contains("`projections` names `gate`, which the model does not have"), "{error}");
    let error = "querry".parse::<Projection>().unwrap_err().to_string();
    assert!(error.contains("did you mean `query`"), "{error}");
}

#[test]
fn dropout_acts_in_training_only() {
    let with = |device: &Device, dropout: f64| {
        let lora = reference_config().with_dropout(dropout);
        with_reference_factors(lora.apply(load("llama", device)).unwrap())
    };
    let training = flex().autodiff();
    let plain = logits(&with(&flex(), 0.0), &reference_input());
    // Where gradients are recorded, some operations are computed in another order.
    let nearly = TOLERANCE / 10.0;
    assert_close("recorded", &logits(&with(&training, 0.0), &reference_input()), &plain, nearly);
    assert_eq!(logits(&with(&flex(), 0.5), &reference_input()), plain, "no dropout without training");
    let dropped = with(&training, 0.5);
    let once = logits(&dropped, &reference_input());
    assert_apart("dropout", &once, &plain, 1e-3);
    assert_apart("another draw", &logits(&dropped, &reference_input()), &once, 1e-3);
    assert_eq!(logits(&dropped.valid(), &reference_input()), plain);
    assert_close("merged", &logits(&merge_adapters(dropped), &reference_input()), &plain, nearly);

    // Half of the input features are not seen, and the others count twice.
    let weight = |dropout: f64| values(with(&training, dropout).layers[0].attention.query.weight.val());
    let (base, whole, half) =
        (values(load("llama", &flex()).layers[0].attention.query.weight.val()), weight(0.0), weight(0.5));
    let rows = base.len() / 24;
    let mut seen = 0;
    for row in 0..24 {
        let at = row * rows..(row + 1) * rows;
        let learned: Vec<f64> = half[at.clone()].iter().zip(&base[at.clone()]).map(|(new, old)| new - old).collect();
        if learned.iter().all(|number| *number == 0.0) {
            continue;
        }
        seen += 1;
        let twice: Vec<f64> = whole[at.clone()].iter().zip(&base[at]).map(|(new, old)| 2.0 * (new - old)).collect();
        assert_close("a feature that is seen", &learned, &twice, 1e-6);
    }
    assert!((4..=20).contains(&seen), "{seen} of 24 features are seen");

    let [trained, _] = parameters(&with(&training, 0.5));
    assert_eq!(trained.len(), 12);
    let (model, losses) = train(with(&training, 0.1), 3);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    assert_ne!(parameters(&model)[0], trained);
}
