//! Several devices that share a batch.

use burnformer::training::Parallelism;

use super::common::*;
use super::*;

#[test]
fn two_devices_have_the_losses_of_one() {
    let _alone = alone();
    let config = TrainingConfig { batch: 4, accumulation: 2, ..config() };
    let text = rhyme();
    let expected = train(&config, &text, &flex());
    for parallelism in [Parallelism::MultiDevice, Parallelism::MultiDeviceSharded] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (run, events) = prepared(&config, drawn(&config), &text, folder.path());
        let run = run.on_devices(vec![flex(), flex()], parallelism);
        let trained = finish(run, &events).unwrap_or_else(|error| panic!("{error}"));
        // The same windows, gradients added up in another order.
        assert_close("losses", &trained.losses(), &expected.losses(), 1e-5);
        assert!(folder.path().join("out/model.safetensors").exists());
    }
}

#[test]
fn devices_that_cannot_share_a_batch_are_refused() {
    let _alone = alone();
    let config = TrainingConfig { batch: 3, ..config() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = |devices: usize, parallelism: Parallelism| {
        let (run, _) = prepared(&config, drawn(&config), &rhyme(), folder.path());
        let error = run.on_devices(vec![flex(); devices], parallelism).run().expect_err("it must not run");
        error.to_string()
    };
    let line = refused(2, Parallelism::MultiDevice);
    assert!(line.contains("`batch` must be a multiple") && line.contains("got 3 for 2"), "{line}");
    let line = refused(3, Parallelism::DistributedDataParallel);
    assert!(line.contains("does not work on Cpu") && line.contains("--parallel multi"), "{line}");
    assert!(refused(2, Parallelism::Single).contains("does not run on 2 devices"));
    assert!(!folder.path().join("out").exists());
}
