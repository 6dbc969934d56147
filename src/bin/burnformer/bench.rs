//! `burnformer bench`

use burnformer::Error;
use burnformer::bench::{BenchRow, Measurement, run as measure};
use clap::Args;

use crate::arguments::{Show, open_all, positive};
use crate::{Outcome, output};

/// Measure a transformer block and attention, beside Burn's own.
#[derive(Args)]
#[command(after_help = "\
Rows: block, burn-nn-block (one layer, 512 tokens, d_model 768); attention, attention-composed, burn-attention (causal, \
12 heads of 64 over 2048 tokens); memory (by how many bytes blockwise attention over 4096 tokens makes the process grow). \
Rows of one kind are run in turn. A row that does not fit a device is left out, and said so.

Examples:
  burnformer bench
  burnformer bench --backend flex --rows block,burn-nn-block --samples 15 --json")]
pub struct Arguments {
    /// Backend; may be given several times [default: all that work here].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    backend: Vec<String>,
    /// Rows, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<String>,
    /// Runs of each row, of which the median counts.
    #[arg(long, value_name = "N", default_value = "7", value_parser = positive)]
    samples: usize,
    #[command(flatten)]
    show: Show,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { backend, rows, samples, show } = arguments;
    let rows = match rows.is_empty() {
        true => BenchRow::ALL.to_vec(),
        false => rows.iter().map(|row| row.parse()).collect::<Result<_, _>>()?,
    };
    let devices = open_all(&backend, &show)?;
    let mut measured = Vec::new();
    // Memory comes first on every device: what other rows have freed would hide its growth.
    let is_memory = |row: &BenchRow| *row == BenchRow::Memory;
    for memory in [true, false] {
        let rows: Vec<BenchRow> = rows.iter().copied().filter(|row| is_memory(row) == memory).collect();
        for (name, device) in &devices {
            let (found, skipped) = measure(device, &name.to_string(), &rows, samples);
            for (row, reason) in skipped {
                show.note(format!("{name} {row}: left out, as {reason}"));
            }
            for row in &found {
                show.note(format!("{name} {}: {:.4} s", row.row, row.seconds));
            }
            measured.extend(found);
        }
    }
    match show.json {
        true => output::print_json(&measured)?,
        false => output::print(&text(&measured))?,
    }
    Ok(Outcome::Done)
}

fn text(measured: &[Measurement]) -> String {
    let rows: Vec<[String; 6]> = measured
        .iter()
        .map(|row| {
            let shape = row.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
            let rate = if row.unit == "bytes" { format!("{:.0}", row.rate) } else { format!("{:.1}", row.rate) };
            let seconds = format!("{:.6}", row.seconds);
            [row.row.clone(), row.backend.clone(), format!("[{shape}]"), seconds, rate, row.unit.into()]
        })
        .collect();
    output::table(["row", "backend", "shape", "seconds", "rate", "unit"], &rows)
}
