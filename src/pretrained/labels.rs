//! What the scores of a checkpoint's task head mean: labels by name, and how scores become probabilities.

use std::collections::BTreeMap;

use super::hf_config::HfConfig;
use crate::task_head::{TaskHeadConfig, TaskInput};

/// What the scores of a task head are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Labels of a whole text or image.
    Whole,
    /// Labels of each token.
    Tokens,
    /// For each token, whether an answer starts there and whether it ends there.
    Answer,
}

/// How scores of a whole text or image are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// One label holds: a softmax over all of them.
    OneOf,
    /// Each label holds or not: a sigmoid of each.
    EachAlone,
    /// The scores are quantities and stay as they are.
    Quantity,
}

/// The task of a checkpoint that has a task head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What the scores are for.
    pub kind: TaskKind,
    /// How the scores of [`TaskKind::Whole`] are read.
    pub scoring: Scoring,
    /// The labels, in the order of the scores; `LABEL_0` and so on where the checkpoint does not name them.
    pub labels: Vec<String>,
}

impl Task {
    /// The task of a head of which nothing but its configuration is known.
    pub(super) fn unnamed(head: &TaskHeadConfig) -> Self {
        let kind = match head.input {
            TaskInput::EveryToken => TaskKind::Tokens,
            TaskInput::FirstToken | TaskInput::LastToken | TaskInput::Pooled => TaskKind::Whole,
        };
        TaskHints::default().task(kind, head.n_labels)
    }
}

/// What a `config.json` says about a task head.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskHints {
    /// The class that the model was saved from.
    pub architecture: Option<String>,
    /// The token id that fills rows up.
    pub padding_id: Option<u32>,
    names: Option<BTreeMap<usize, String>>,
    count: Option<usize>,
    problem_type: Option<String>,
}

impl TaskHints {
    pub fn read(hf: &mut HfConfig) -> Self {
        Self {
            architecture: hf.architecture(),
            padding_id: hf.token_id("pad_token_id"),
            names: hf.names_by_number("id2label"),
            count: hf.optional_size("num_labels"),
            problem_type: hf.optional_text("problem_type"),
        }
    }

    /// How many labels there are, if the file says so. Names come before the number, as in transformers.
    pub fn n_labels(&self) -> Option<usize> {
        self.names.as_ref().map(BTreeMap::len).or(self.count)
    }

    /// The task of a head with `n_labels` scores, read as transformers does.
    pub fn task(&self, kind: TaskKind, n_labels: usize) -> Task {
        let scoring = match self.problem_type.as_deref() {
            Some("regression") => Scoring::Quantity,
            Some("multi_label_classification") => Scoring::EachAlone,
            _ if n_labels == 1 => Scoring::EachAlone,
            _ => Scoring::OneOf,
        };
        let name = |label: usize| self.names.as_ref().and_then(|names| names.get(&label)).cloned();
        let labels = (0..n_labels).map(|label| name(label).unwrap_or_else(|| format!("LABEL_{label}"))).collect();
        Task { kind, scoring, labels }
    }
}
