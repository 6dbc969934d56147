//! Operations by formula, against the products that a recording device sees in the real forward.

use burnformer::cost::{Call, counted_flops, forward_flops};
use burnformer::model::{Logits, ModelConfig, ModelKind, preset_names};

use crate::{checkpoint_config, preset, shrunk, torch_counts};

#[track_caller]
fn assert_counted(name: &str, config: &ModelConfig, [batch, seq, source]: [usize; 3]) {
    let seq = if config.patches.is_some() { config.max_seq_len } else { seq };
    let flops = forward_flops(config, Call::whole(batch, seq).with_source(source)).full;
    let counted = counted_flops(config, batch, &[seq], source, Logits::All);
    let counted = counted.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((counted.scores, counted.weights), (flops.scores, flops.weights()), "{name}, {batch} x {seq}");
    assert!(counted.products > config.n_layers, "{name}: {counted:?}");
}

#[test]
fn every_shrunk_preset_counts_as_its_formula() {
    for name in preset_names() {
        for sizes in [[1, 1, 1], [3, 11, 7]] {
            assert_counted(name, &shrunk(name), sizes);
        }
    }
}

/// Nothing is computed or held, so that size is no obstacle.
#[test]
fn whole_presets_count_as_their_formula() {
    for name in ["gpt2", "bert-base", "vit-base", "t5-small", "gemma-3-1b", "llama-2-70b", "mixtral-8x7b"] {
        assert_counted(name, &preset(name), [2, 13, 5]);
    }
}

#[test]
fn every_checkpoint_counts_as_its_formula() {
    for name in torch_counts()["checkpoints"].as_object().expect("an object").keys() {
        assert_counted(name, &checkpoint_config(name), [2, 9, 6]);
    }
}

/// With a cache, each call attends to what the cache kept.
#[test]
fn cached_calls_count_as_their_formula() {
    for name in preset_names() {
        let config = shrunk(name);
        if config.kind == ModelKind::Encoder {
            continue;
        }
        let (batch, source) = (2, 6);
        let calls = [7, 1, 3, 1];
        let mut before = 0;
        let mut sum = [0, 0];
        for new in calls {
            let call = Call { batch, new, before, source, logits: Logits::Last };
            let flops = forward_flops(&config, call).full;
            sum = [sum[0] + flops.weights(), sum[1] + flops.scores];
            before += new;
        }
        let counted = counted_flops(&config, batch, &calls, source, Logits::Last);
        let counted = counted.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!([counted.weights, counted.scores], sum, "{name}");
    }
}

/// The test can fail: another architecture does not count the same.
#[test]
fn a_changed_configuration_counts_otherwise() {
    let config = shrunk("llama-2-7b");
    let count = |config: &ModelConfig| counted_flops(config, 1, &[9], 9, Logits::All).expect("it is recorded");
    let before = count(&config);
    for change in [
        |config: &mut ModelConfig| config.n_layers += 1,
        |config: &mut ModelConfig| config.attention.n_kv_heads = Some(1),
        |config: &mut ModelConfig| config.feed_forward.iter_mut().for_each(|feed_forward| feed_forward.gated = false),
        |config: &mut ModelConfig| config.head = None,
    ] {
        let mut changed = config.clone();
        change(&mut changed);
        assert!(count(&changed).weights != before.weights, "{changed:?}");
    }
}
