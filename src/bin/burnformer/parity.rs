//! `burnformer parity`

use burnformer::Error;
use burnformer::parity::{ParityOptions, ParityReport, ParityRow, run as compare};
use clap::Args;

use crate::arguments::{Show, open_all};
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Compare every backend with the 64-bit oracle.
#[derive(Args)]
#[command(after_help = "\
Without MODEL, every part of the library is compared, option by option; with it, that architecture, shrunk to a few \
layers and drawn weights. Differences are the largest absolute one, and the length of the difference over the length of \
the right answer.

Exit code 1 where a difference is above its tolerance.

Examples:
  burnformer parity
  burnformer parity --backends wgpu,libtorch --gradients
  burnformer parity gemma-2-2b --json")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: Option<String>,
    /// Backends, separated by commas [default: all that work here].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    backends: Vec<String>,
    /// Compare gradients too.
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    show: Show,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, backends, gradients, show } = arguments;
    let model = model.map(|model| ModelArgument::resolve(&model)).transpose()?;
    let backends: Vec<_> = open_all(&backends, &show)?.into_iter().map(|(name, _)| name).collect();
    let model = model.map(|model| model.config().clone());
    let options = ParityOptions { backends, gradients, model };
    let report = compare(&options, &mut |row| show.note(progress(row)))?;
    match show.json {
        true => output::print_json(&report)?,
        false => output::print(&text(&report))?,
    }
    Ok(Outcome::of_check(report.ok))
}

fn progress(row: &ParityRow) -> String {
    format!("{} {}: {}", row.backend, row.case, if row.ok { "ok" } else { "FAILED" })
}

fn text(report: &ParityReport) -> String {
    let rows: Vec<[String; 6]> = report
        .rows
        .iter()
        .map(|row| {
            let state = if row.ok { "ok" } else { "FAILED" };
            let [max_abs, rel_l2] = [row.max_abs, row.rel_l2].map(|value| format!("{value:.1e}"));
            [row.backend.clone(), row.case.clone(), max_abs, rel_l2, format!("{:.0e}", row.tolerance), state.into()]
        })
        .collect();
    let failed = report.rows.iter().filter(|row| !row.ok).count();
    let table = output::table(["backend", "case", "max_abs", "rel_l2", "tolerance", ""], &rows);
    format!("{table}\n{} of {} comparisons hold", report.rows.len() - failed, report.rows.len())
}
