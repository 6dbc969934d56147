//! Every backend of this build against the oracle in 64 bits: outputs, cached decoding, padding and gradients.

#![cfg(any(feature = "flex", feature = "ndarray"))]

use std::collections::{BTreeMap, BTreeSet};

use burnformer::backend::{Backend, DeviceName};
use burnformer::model::ModelConfig;
use burnformer::parity::{Difference, ParityOptions, ParityReport, run, run_with_fault, sensitivities};

/// The backends of this build that find a device here.
fn backends() -> Vec<DeviceName> {
    Backend::compiled().map(DeviceName::new).filter(|name| name.open().is_ok()).collect()
}

fn cpu() -> Vec<DeviceName> {
    backends().into_iter().filter(|name| matches!(name.backend(), Backend::Flex | Backend::NdArray)).collect()
}

fn failures(report: &ParityReport) -> String {
    let failed = report.rows.iter().filter(|row| !row.ok);
    failed.map(|row| format!("\n  {row:?}")).collect()
}

#[test]
fn every_backend_agrees_with_the_oracle() {
    let options = ParityOptions { backends: backends(), gradients: true, model: None };
    let report = run(&options, &mut |_| ()).unwrap();
    assert!(report.ok, "rows out of bounds:{}", failures(&report));
    assert!(report.rows.iter().all(|row| row.max_abs.is_finite() && row.rel_l2.is_finite()));

    // Every backend has every case; only the fused kernels are not everywhere.
    let mut cases: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in &report.rows {
        assert!(cases.entry(&row.backend).or_default().insert(&row.case), "`{}` comes twice", row.case);
    }
    assert_eq!(cases.len(), options.backends.len());
    let everywhere = |names: &BTreeSet<&str>| -> BTreeSet<String> {
        names.iter().filter(|name| !name.starts_with("attention/fused/")).map(ToString::to_string).collect()
    };
    let expected = everywhere(cases.values().next().unwrap());
    for (backend, names) in &cases {
        assert_eq!(everywhere(names), expected, "{backend}");
    }
    for (group, at_least) in [
        ("activation/", 21),
        ("norm/", 36),
        ("rotary/", 27),
        ("attention/composed/", 81),
        ("attention/blockwise/", 81),
        ("attention/auto/", 81),
        ("feed_forward/", 12),
        ("mixture_of_experts/", 18),
        ("multi_head_attention/", 60),
        ("block/", 54),
        ("model/", 96),
        ("empty/", 17),
    ] {
        let count = expected.iter().filter(|name| name.starts_with(group)).count();
        assert!(count >= at_least, "{group}: {count} rows");
    }
    if let Some(names) = cases.get("flex") {
        assert!(names.iter().filter(|name| name.starts_with("attention/fused/")).count() >= 27);
    }
}

#[test]
fn every_option_moves_the_answer_by_a_hundred_tolerances() {
    let found = sensitivities().unwrap();
    assert!(found.len() >= 150, "{} options", found.len());
    let weak: String = found.iter().filter(|s| s.moved < 100.0 * s.allowed).map(|s| format!("\n  {s:?}")).collect();
    assert!(weak.is_empty(), "options that move too little:{weak}");
}

#[test]
fn a_wrong_weight_is_found() {
    let options = ParityOptions { backends: cpu(), gradients: false, model: None };
    let report = run_with_fault(&options, 0.01, &mut |_| ()).unwrap();
    assert!(!report.ok);
    for row in &report.rows {
        if ["feed_forward/", "mixture_of_experts/", "multi_head_attention/", "block/", "model/"]
            .iter()
            .any(|group| row.case.starts_with(group))
        {
            assert!(!row.ok, "a weight that is off by 0.01 passes: {row:?}");
        }
    }
}

#[test]
fn what_is_not_a_number_is_never_within() {
    let within = |expected: &[f64], found: &[f64]| Difference::between(expected, found).is_within(1e-6);
    assert!(within(&[1.0, -2.0], &[1.0, -2.000_001]));
    assert!(!within(&[1.0, -2.0], &[1.0, -2.000_01]));
    assert!(within(&[], &[]));
    assert!(!within(&[1.0], &[]));
    for (expected, found) in [
        ([f64::NAN, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [f64::NAN, 1.0]),
        ([0.0, 1.0], [0.0, f64::NAN]),
        ([f64::NAN, 1.0], [f64::NAN, 1.0]),
        ([f64::INFINITY, 1.0], [f64::INFINITY, 1.0]),
        ([0.0, 1.0], [f64::INFINITY, 1.0]),
    ] {
        assert!(!within(&expected, &found), "{expected:?} {found:?}");
    }
}

#[test]
fn a_model_of_the_users_is_compared() {
    let cases_of = |preset: &str, backends: Vec<DeviceName>| {
        let model = Some(ModelConfig::preset(preset).unwrap());
        let report = run(&ParityOptions { backends, gradients: true, model }, &mut |_| ()).unwrap();
        assert!(report.ok, "{preset}:{}", failures(&report));
        report.rows.into_iter().map(|row| row.case).collect::<BTreeSet<_>>()
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(cases_of("encoder-layer", cpu()), names(&["model", "model: autodiff", "model: gradients"]));
    assert_eq!(
        cases_of("gpt3-175b", cpu()),
        names(&["", ": autodiff", ": gradients", ", cached"])
            .into_iter()
            .map(|suffix| format!("model, shrunk to 2 layers of width 48{suffix}"))
            .collect()
    );
    let options = ParityOptions { backends: Vec::new(), gradients: false, model: None };
    assert!(run(&options, &mut |_| ()).unwrap_err().to_string().contains("no backend"));
}

#[test]
fn progress_gets_every_row() {
    let model = Some(ModelConfig::preset("encoder-layer").unwrap());
    let mut seen = Vec::new();
    let options = ParityOptions { backends: cpu(), gradients: true, model };
    let report = run(&options, &mut |row| seen.push(row.clone())).unwrap();
    assert_eq!(report.rows, seen);
}
