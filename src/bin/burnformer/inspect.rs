//! `burnformer inspect`

use burnformer::Error;
use burnformer::pretrained::{Inspection, Placement};
use clap::Args;

use crate::arguments::Show;
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Show a model's configuration and where each parameter comes from.
#[derive(Args)]
#[command(after_help = "\
No numbers are read. Layers that are alike are shown once. Weights stand in Burn's layout, [in, out] for linear layers, \
beside the shape that the file has.

Exit code 1 where a parameter has no tensor that fits.

Examples:
  burnformer inspect path/to/checkpoint
  burnformer inspect path/to/config.json
  burnformer inspect gpt2 --json")]
pub struct Arguments {
    /// Preset, configuration file or checkpoint folder.
    model: String,
    #[command(flatten)]
    show: Show,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, show } = arguments;
    let inspection = match ModelArgument::resolve(&model)? {
        ModelArgument::Config(config) => Inspection::of_config(&config),
        ModelArgument::Checkpoint(_, checkpoint) => checkpoint.inspect(),
    };
    match show.json {
        true => output::print_json(&inspection)?,
        false => output::print(&text(&inspection))?,
    }
    Ok(Outcome::of_check(inspection.faults.is_empty()))
}

fn text(inspection: &Inspection) -> String {
    let Inspection { config, parameters, tensors, unused, ignored, faults, .. } = inspection;
    let has_weights = tensors.iter().any(|placement| placement.tensor.is_some());
    let rows = collapsed(tensors);
    let table = match has_weights {
        true => output::table(["parameter", "shape", "tensor", "stored shape", "stored as"], &rows),
        false => {
            let rows: Vec<[String; 2]> = rows.into_iter().map(|[parameter, shape, ..]| [parameter, shape]).collect();
            output::table(["parameter", "shape"], &rows)
        }
    };
    let mut parts = vec![config.to_toml().trim_end().to_owned(), table];
    let mut sums = format!("{parameters} parameters");
    if has_weights {
        sums.push_str(&format!(", stored as {}", stored(tensors)));
    }
    parts.push(sums);
    for (what, names) in [("not used", unused), ("ignored", ignored), ("faults", faults)] {
        if !names.is_empty() {
            parts.push(format!("{what}:\n  {}", names.join("\n  ")));
        }
    }
    parts.join("\n\n")
}

/// The types in the file, each with the number of tensors that have it.
fn stored(tensors: &[Placement]) -> String {
    let mut found: Vec<(&str, &str)> = tensors
        .iter()
        .filter_map(|placement| Some((placement.stored_dtype.as_deref()?, placement.tensor.as_deref()?)))
        .collect();
    found.sort_unstable();
    found.dedup();
    let of_each = found.chunk_by(|a, b| a.0 == b.0).map(|group| format!("{} ({} tensors)", group[0].0, group.len()));
    of_each.collect::<Vec<_>>().join(", ")
}

/// A row of the table, the number of its layer taken out of it.
#[derive(Clone, PartialEq)]
struct Row {
    layer: Option<(String, usize)>,
    cells: [String; 5],
}

/// Stands where the number of a layer was.
const NUMBER: &str = "\0";

impl Row {
    /// The row of a parameter and the tensors that make it up.
    fn new(placements: &[Placement]) -> Self {
        let first = &placements[0];
        let layer = layer_of(&first.parameter);
        let numberless = |name: &str| match &layer {
            Some((_, number)) => name.replacen(&format!(".{number}."), &format!(".{NUMBER}."), 1),
            None => name.to_owned(),
        };
        let tensor = match (&first.tensor, placements.last().and_then(|last| last.tensor.as_ref())) {
            (Some(first), Some(last)) if first != last => {
                format!("{} to {} ({})", numberless(first), numberless(last), placements.len())
            }
            (Some(only), _) => numberless(only),
            (None, _) => String::new(),
        };
        let stored_shape = first.stored_shape.as_ref().map(|shape| format!("{shape:?}")).unwrap_or_default();
        let stored_dtype = first.stored_dtype.clone().unwrap_or_default();
        let cells = [numberless(&first.parameter), format!("{:?}", first.shape), tensor, stored_shape, stored_dtype];
        Self { layer, cells }
    }
}

/// What stands before the number of a layer, and the number.
fn layer_of(parameter: &str) -> Option<(String, usize)> {
    let (before, after) = parameter.split_once("layers.")?;
    let number = after.split('.').next()?.parse().ok()?;
    Some((before.to_owned(), number))
}

/// The rows of the table, layers that are alike in one.
fn collapsed(tensors: &[Placement]) -> Vec<[String; 5]> {
    let rows: Vec<Row> = tensors.chunk_by(|a, b| a.parameter == b.parameter).map(Row::new).collect();
    let layers: Vec<&[Row]> = rows.chunk_by(|a, b| a.layer == b.layer).collect();
    let cells = |layer: &[Row]| layer.iter().map(|row| row.cells.clone()).collect::<Vec<_>>();
    let is_layer = |layer: &[Row]| layer[0].layer.is_some();
    let alike = layers.chunk_by(|a, b| is_layer(a) && is_layer(b) && cells(a) == cells(b));
    let mut collapsed = Vec::new();
    for group in alike {
        let number = |layer: &[Row]| layer[0].layer.as_ref().map_or(0, |(_, number)| *number);
        let (first, last) = (number(group[0]), number(group[group.len() - 1]));
        let range = if first == last { first.to_string() } else { format!("{first}..{last}") };
        collapsed.extend(group[0].iter().map(|row| row.cells.clone().map(|cell| cell.replace(NUMBER, &range))));
    }
    collapsed
}
