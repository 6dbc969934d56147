//! Models with a head for labels: scores in one pass, and those of a padded batch.

use super::case::{Case, Kind};
use super::model_cases::{LENGTHS, Sequences, build, sentence, seq};
use super::probe::Probe;
use super::shrink::{ablations, shrunk};
use crate::activation::Activation;
use crate::error::Error;
use crate::model::{ForwardOptions, ModelConfig, ModelInput};
use crate::task_head::{TaskHeadConfig, TaskInput};

pub(super) fn all() -> Result<Vec<Case>, Error> {
    let cases = classifiers()?.into_iter().flat_map(|(name, config)| of_classifier(&format!("model/{name}"), config));
    Ok(cases.collect())
}

/// Models with a head for labels, one for each thing that such a head reads.
fn classifiers() -> Result<Vec<(&'static str, ModelConfig)>, Error> {
    let bert = shrunk(&ModelConfig::preset("bert-base")?);
    let unpooled = bert.clone().with_pooler(false);
    let mut decoder = shrunk(&ModelConfig::preset("llama-3.2-1b")?);
    decoder.head = None;
    let vit = shrunk(&ModelConfig::preset("vit-base")?).with_pooler(false);
    let head = |input| TaskHeadConfig::new(input, 5);
    Ok(vec![
        ("labels from the pooler", bert.with_task(head(TaskInput::Pooled))),
        (
            "labels from the first token",
            unpooled.clone().with_task(head(TaskInput::FirstToken).with_transform(Activation::Tanh)),
        ),
        ("labels of every token", unpooled.with_task(head(TaskInput::EveryToken).with_transform(Activation::Relu))),
        ("labels from the last token", decoder.with_task(head(TaskInput::LastToken).with_bias(false))),
        ("labels of images", vit.with_task(head(TaskInput::FirstToken))),
    ])
}

/// Scores in one pass, and those of sequences in a padded batch.
fn of_classifier(name: &str, config: ModelConfig) -> Vec<Case> {
    let run = config.clone();
    let mut whole = Case::new(Kind::Model, name, move |probe| scores(&run, probe));
    for (option, twin) in ablations(&config).into_iter().filter(|(option, _)| option.starts_with("task")) {
        whole = whole.without(option, move |probe| scores(&twin, probe));
    }
    let mut cases = vec![whole];
    if config.patches.is_none() {
        let twin = config.clone();
        let padded =
            Case::new(Kind::Model, format!("{name}, padded"), move |probe| padded_scores(&config, true, probe));
        cases.push(padded.forward_only().without("padding", move |probe| padded_scores(&twin, false, probe)));
    }
    cases
}

fn scores(config: &ModelConfig, probe: &mut Probe) -> Result<(), Error> {
    let model = build(config, probe);
    let seq = seq(config);
    let input = Sequences::draw(config, seq, probe).part(0, seq);
    let output = model.forward(&input, None, ForwardOptions::default())?;
    // Only the first place, which heads of one token have too.
    probe.output("scores", output.scores.expect("the model has a task head").slice_dim(1, 0..1));
    Ok(())
}

/// Scores of sequences of unequal lengths in one batch, padded on the right; the oracle takes each sequence alone.
/// Without `is_marked` (the mistake that twins make) padding is taken for tokens.
fn padded_scores(config: &ModelConfig, is_marked: bool, probe: &mut Probe) -> Result<(), Error> {
    let model = build(config, probe);
    let sentences: Vec<Vec<i64>> = LENGTHS.iter().map(|len| sentence(config, *len)).collect();
    let is_alone = probe.is_oracle() && is_marked;
    let mut row = 0;
    for batch in sentences.chunks(if is_alone { 1 } else { LENGTHS.len() }) {
        let longest = batch[0].len();
        let pad = |ids: &Vec<i64>| ids.iter().copied().chain(std::iter::repeat(0)).take(longest).collect();
        let mut input = ModelInput::tokens(&batch.iter().map(pad).collect::<Vec<Vec<i64>>>());
        if is_marked {
            let marks = |ids: &Vec<i64>| (0..longest).map(|at| at >= ids.len()).collect();
            input = input.with_padding(batch.iter().map(marks).collect());
        }
        let output = model.forward(&input, None, ForwardOptions::default())?;
        let scores = output.scores.expect("the model has a task head");
        for (at, ids) in batch.iter().enumerate() {
            let tokens = scores.dims()[1].min(ids.len());
            probe.output(&format!("row {row}"), scores.clone().slice_dim(0, at..at + 1).slice_dim(1, 0..tokens));
            row += 1;
        }
    }
    Ok(())
}
