//! What the numbers of a run depend on, and what they do not.

use burnformer::backend::Backend;
use burnformer::training::TextCoder;

use super::common::*;
use super::*;

#[test]
fn a_run_repeats_itself_bit_for_bit() {
    let _alone = alone();
    let mut config = config();
    config.validation = ValidationConfig { share: 0.2, every: 4, ..ValidationConfig::default() };
    if let Some(burnformer::training::ModelSource::Config(model)) = &mut config.model {
        model.dropout = 0.2;
    }
    let text = rhyme();
    let (once, again) = (train(&config, &text, &flex()), train(&config, &text, &flex()));
    assert_eq!(once.losses().len(), 8);
    assert_eq!(once.measured().len(), 2);
    assert_eq!((once.losses(), once.measured()), (again.losses(), again.measured()));
    let other = train(&TrainingConfig { seed: 4, ..config }, &text, &flex());
    assert_apart("seed", &other.losses(), &once.losses(), 1e-3);
}

#[test]
fn small_batches_add_up_to_a_large_one() {
    let _alone = alone();
    let whole = TrainingConfig { batch: 8, ..config() };
    let text = rhyme();
    let expected = train(&whole, &text, &flex()).losses();
    for (batch, accumulation) in [(2, 4), (1, 8), (4, 2)] {
        let config = TrainingConfig { batch, accumulation, ..whole.clone() };
        // The same windows, whose gradients are added up in another order: a few roundings of losses around 5.
        assert_close("accumulation", &train(&config, &text, &flex()).losses(), &expected, 1e-5);
    }
    let sum_of_fewer = TrainingConfig { batch: 2, ..whole };
    assert_apart("without it", &train(&sum_of_fewer, &text, &flex()).losses(), &expected, 1e-3);
}

/// Blocks of one of four letters and three that follow from it.
fn blocks() -> String {
    let mut numbers = Numbers::new(8);
    (0..1500).map(|_| ["pxyz", "qxyz", "rxyz", "sxyz"][numbers.below(4)]).collect()
}

#[test]
fn a_tiny_model_learns_all_that_there_is_to_learn() {
    let _alone = alone();
    // One letter in four is drawn among four, and the others follow: no model is better than ln(4) / 4, and the best one
    // has this loss on any text of this kind.
    let best = 4.0_f64.ln() / 4.0;
    let config = TrainingConfig {
        steps: 120,
        batch: 8,
        seq: 16,
        schedule: ScheduleConfig { learning_rate: 0.02, ..ScheduleConfig::default() },
        validation: ValidationConfig { share: 0.2, every: 120, ..ValidationConfig::default() },
        ..config()
    };
    let text = blocks();
    let mut expected: Option<(Vec<f64>, Vec<f64>)> = None;
    let quick = [Backend::Flex, Backend::LibTorch];
    for backend in quick.into_iter().filter(|backend| backend.is_compiled()) {
        let trained = train(&config, &text, &device(backend));
        let (losses, measured) = (trained.losses(), trained.measured());
        assert_eq!(measured.len(), 1);
        // Before it has learned, every byte is as likely: ln 256, give or take what small weights add.
        assert!((losses[0] - 256.0_f64.ln()).abs() < 0.05, "{backend}: {}", losses[0]);
        assert!((best..best + 0.02).contains(&measured[0]), "{backend}: {measured:?}, at best {best}");
        let perplexity = trained.summary.perplexity.expect("it was measured");
        assert!((perplexity - measured[0].exp()).abs() < 1e-12, "{backend}: {perplexity}");
        match &expected {
            None => expected = Some((losses, measured)),
            Some((expected, at_the_end)) => {
                // Roundings differ, and updates carry them on; they grow little while the loss falls.
                assert_close(backend.name(), &losses[..20], &expected[..20], 1e-4);
                assert_close(backend.name(), &measured, at_the_end, 2e-3);
            }
        }
    }
}

#[test]
fn the_configuration_that_comes_along_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/training/tiny.toml");
    let config = TrainingConfig::load_file(path).unwrap_or_else(|error| panic!("{error}"));
    let Start::Drawn(model) = drawn(&config) else { panic!("it holds its model") };
    config.validate_for(&model).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.vocab_size(), TextCoder::bytes().vocab_size());
}
