//! Which task head a checkpoint has: from its tensors, and where those leave it open, from the class it was saved from.
//!
//! `classifier.weight` is the head of a BERT that labels texts and of one that labels tokens. The class decides; without
//! one, a pooler is there to be read, and where there is none every token has labels.

use super::labels::{Task, TaskHints, TaskKind};
use super::rules::BoundRules;
use crate::activation::Activation;
use crate::model::{ModelConfig, ModelKind};
use crate::task_head::{TaskHeadConfig, TaskInput};

/// One way in which classes of transformers build a task head.
struct Layout {
    kind: TaskKind,
    input: TaskInput,
    transform: Option<Activation>,
    /// The module of the dense layer; empty without a transform.
    dense: &'static str,
    /// The module of the scores.
    output: &'static str,
    /// Which models can have it; this tells layouts with the same names apart.
    suits: fn(&ModelConfig) -> bool,
}

/// In the order in which they are tried; the first one whose tensors are there counts.
const LAYOUTS: &[Layout] = &[
    Layout { dense: "", output: "qa_outputs", ..layout(TaskKind::Answer, TaskInput::EveryToken) },
    // RoBERTa.
    Layout {
        transform: Some(Activation::Tanh),
        dense: "classifier.dense",
        output: "classifier.out_proj",
        ..layout(TaskKind::Whole, TaskInput::FirstToken)
    },
    // DistilBERT.
    Layout {
        transform: Some(Activation::Relu),
        dense: "pre_classifier",
        ..layout(TaskKind::Whole, TaskInput::FirstToken)
    },
    // BERT.
    Layout { suits: |config| config.pooler && config.patches.is_none(), ..layout(TaskKind::Whole, TaskInput::Pooled) },
    // ViT.
    Layout { suits: |config| config.patches.is_some(), ..layout(TaskKind::Whole, TaskInput::FirstToken) },
    // Decoders.
    Layout {
        output: "score",
        suits: |config| config.kind == ModelKind::Decoder,
        ..layout(TaskKind::Whole, TaskInput::LastToken)
    },
    layout(TaskKind::Tokens, TaskInput::EveryToken),
    Layout { output: "score", ..layout(TaskKind::Tokens, TaskInput::EveryToken) },
];

const fn layout(kind: TaskKind, input: TaskInput) -> Layout {
    Layout { kind, input, transform: None, dense: "", output: "classifier", suits: |_| true }
}

impl Layout {
    fn head(&self, n_labels: usize, bias: bool, hints: &TaskHints) -> TaskHeadConfig {
        let mut head = TaskHeadConfig::new(self.input, n_labels).with_bias(bias);
        head.transform = self.transform;
        head.padding_id = hints.padding_id.filter(|_| self.input == TaskInput::LastToken);
        head
    }
}

/// Gives `config` and `rules` the task head that the file has, and says what it is for. `shape_of` gives the shape of a
/// tensor, if the file has it.
///
/// # Errors
///
/// When the head has another number of labels than the config says.
pub(super) fn to_tensors(
    config: &mut ModelConfig,
    rules: &mut BoundRules,
    hints: &TaskHints,
    shape_of: impl Fn(&str) -> Option<Vec<usize>>,
) -> Result<Option<Task>, String> {
    let kinds = kinds(hints.architecture.as_deref());
    let find = |module: &str, parameter: &str| {
        let names = rules.names_of_root(&format!("{module}.{parameter}"));
        names.into_iter().find_map(|name| Some((shape_of(&name)?, name)))
    };
    let is_there = |layout: &&Layout| {
        let has = |module: &str| module.is_empty() || find(module, "weight").is_some();
        kinds.contains(&layout.kind) && (layout.suits)(config) && has(layout.dense) && has(layout.output)
    };
    let Some(layout) = LAYOUTS.iter().find(is_there) else {
        return Ok(None);
    };
    let Some((shape, name)) = find(layout.output, "weight") else {
        return Ok(None);
    };
    let n_labels = shape.first().copied().unwrap_or(0);
    // The starts and ends of answers are no labels.
    let named = hints.n_labels().filter(|_| layout.kind != TaskKind::Answer);
    if let Some(count) = named.filter(|count| *count != n_labels) {
        return Err(format!("`{name}` has {n_labels} rows, and config.json speaks of {count} labels"));
    }
    config.task = Some(layout.head(n_labels, find(layout.output, "bias").is_some(), hints));
    rules.add_root("task.output", layout.output);
    if layout.transform.is_some() {
        rules.add_root("task.dense", layout.dense);
    }
    // A tied head of words would have no tensor of its own, and no class has both.
    let has_words = rules.names("head.weight").iter().any(|name| shape_of(name).is_some());
    config.head = config.head.take().filter(|head| has_words || head.transform.is_some());
    Ok(Some(hints.task(layout.kind, n_labels)))
}

/// Gives `config` the task head that a class of transformers has, without knowing a file.
pub(super) fn to_architecture(config: &mut ModelConfig, hints: &TaskHints) {
    let Some(name) = hints.architecture.as_deref() else { return };
    let kinds = kinds(Some(name));
    let is_meant = |layout: &&Layout| {
        let is_family = match layout.dense {
            "classifier.dense" => ["Roberta", "XLMRoberta", "Camembert"].iter().any(|family| name.starts_with(family)),
            "pre_classifier" => name.starts_with("DistilBert"),
            _ => true,
        };
        kinds.contains(&layout.kind) && (layout.suits)(config) && is_family
    };
    let Some(layout) = LAYOUTS.iter().find(is_meant) else { return };
    let named = hints.n_labels().filter(|_| layout.kind != TaskKind::Answer);
    let n_labels = named.unwrap_or(DEFAULT_LABELS);
    if n_labels == 0 {
        return;
    }
    let has_bias = layout.output != "score" || layout.kind == TaskKind::Tokens;
    config.task = Some(layout.head(n_labels, has_bias, hints));
    config.pooler &= layout.input == TaskInput::Pooled;
}

/// How many labels there are where nothing says it.
const DEFAULT_LABELS: usize = 2;

/// The tasks that a class can be for; any without a class.
fn kinds(architecture: Option<&str>) -> &'static [TaskKind] {
    let Some(name) = architecture else {
        return &[TaskKind::Answer, TaskKind::Whole, TaskKind::Tokens];
    };
    let is = |task: &str| name.contains(task);
    match () {
        () if is("ForSequenceClassification") || is("ForImageClassification") => &[TaskKind::Whole],
        () if is("ForTokenClassification") => &[TaskKind::Tokens],
        () if is("ForQuestionAnswering") => &[TaskKind::Answer],
        () => &[],
    }
}
