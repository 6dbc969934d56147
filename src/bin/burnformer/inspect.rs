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
    /// Preset, configuration file, checkpoint folder or GGUF file.
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

/// A row of the table.
type Row = [String; 5];

/// The rows of the table, experts and layers that are alike in one.
fn collapsed(tensors: &[Placement]) -> Vec<Row> {
    let rows = tensors.chunk_by(|a, b| a.parameter == b.parameter).map(row).collect();
    collapsed_by(collapsed_by(rows, EXPERTS), LAYERS)
}

/// The row of a parameter and the tensors that make it up.
fn row(placements: &[Placement]) -> Row {
    let first = &placements[0];
    let last = &placements[placements.len() - 1];
    let tensor = match (&first.tensor, &last.tensor) {
        (Some(first), Some(last)) => from_to(first, last),
        _ => String::new(),
    };
    let stored_shape = first.stored_shape.as_ref().map(|shape| format!("{shape:?}")).unwrap_or_default();
    let stored_dtype = first.stored_dtype.clone().unwrap_or_default();
    [first.parameter.clone(), format!("{:?}", first.shape), tensor, stored_shape, stored_dtype]
}

/// `norms.0..3.weight` for `norms.0.weight` and `norms.3.weight`.
fn from_to(first: &str, last: &str) -> String {
    let parts = first.split('.').zip(last.split('.'));
    let joined = parts.map(|(first, last)| if first == last { first.to_owned() } else { format!("{first}..{last}") });
    joined.collect::<Vec<_>>().join(".")
}

/// Puts rows together that differ in the number behind `marker` only.
fn collapsed_by(rows: Vec<Row>, marker: &str) -> Vec<Row> {
    let numbered: Vec<Numbered> = rows.into_iter().map(|row| Numbered::new(row, marker)).collect();
    let blocks: Vec<&[Numbered]> = numbered.chunk_by(|a, b| a.place == b.place).collect();
    let rows = |block: &[Numbered]| block.iter().map(|numbered| numbered.row.clone()).collect::<Vec<_>>();
    let is_numbered = |block: &[Numbered]| block[0].place.is_some();
    let mut collapsed = Vec::new();
    for alike in blocks.chunk_by(|a, b| is_numbered(a) && is_numbered(b) && rows(a) == rows(b)) {
        let number = |block: &[Numbered]| block[0].place.as_ref().map_or(0, |(_, number)| *number);
        let (first, last) = (number(alike[0]), number(alike[alike.len() - 1]));
        let range = if first == last { first.to_string() } else { format!("{first}..{last}") };
        collapsed.extend(rows(alike[0]).into_iter().map(|row| row.map(|cell| cell.replace(NUMBER, &range))));
    }
    collapsed
}

/// What stands before the number of a layer.
const LAYERS: &str = "layers.";
/// What stands before the number of an expert.
const EXPERTS: &str = "experts.";
/// Stands where a number was.
const NUMBER: &str = "\0";

/// A row without the number of its layer or expert.
struct Numbered {
    /// What stands before the number in the parameter's name, and the number.
    place: Option<(String, usize)>,
    row: Row,
}

impl Numbered {
    fn new(mut row: Row, marker: &str) -> Self {
        let place = number_behind(&row[0], marker);
        if let Some((before, number)) = &place {
            let number = number.to_string();
            row[0] = format!("{before}{NUMBER}{}", &row[0][before.len() + number.len()..]);
            let sign = format!(".{number}.");
            // In the name of a tensor, the number of an expert comes after that of its layer.
            let found = if marker == EXPERTS { row[2].rfind(&sign) } else { row[2].find(&sign) };
            if let Some(start) = found {
                row[2].replace_range(start + 1..start + sign.len() - 1, NUMBER);
            }
        }
        Self { place, row }
    }
}

/// What stands before the number behind `marker`, and the number.
fn number_behind(parameter: &str, marker: &str) -> Option<(String, usize)> {
    let end = parameter.find(marker)? + marker.len();
    let number = parameter[end..].split('.').next()?.parse().ok()?;
    Some((parameter[..end].to_owned(), number))
}
