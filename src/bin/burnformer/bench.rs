//! `burnformer bench`

use std::path::PathBuf;

use burnformer::Error;
use burnformer::bench::{BenchOptions, BenchRow, Measurement, run as measure};
use clap::Args;

use crate::arguments::{Show, open_all, positive};
use crate::{Outcome, output};

/// Measure a block and attention beside Burn's own, published models, and a step of training.
#[derive(Args)]
#[command(after_help = "\
Rows:
  memory                              by how many bytes causal attention over 8192 tokens makes the process grow
  block, burn-nn-block                one layer, 512 tokens, d_model 768
  attention, attention-composed,
  burn-attention                      causal, 12 heads of 64 over 2048 tokens
  decode, prefill                     SmolLM2-135M: a token after some 50; 512 tokens, all logits
  decode-quantised                    decode with matrices in blocks of 8 bits (Q8_0), where the device keeps such
  embed                               MiniLM-L6, 32 sequences of 128 tokens
  train-step                          4 causal blocks of width 512, 4 sequences of 256 tokens, AdamW

Rows of one kind are run in turn. Each rate is shown beside its share of what the backend reaches in large matrix products \
or in passes over memory, measured in the same run. A row that cannot run on a device is left out, and said so.

Examples:
  burnformer bench
  burnformer bench --backend flex --rows block,burn-nn-block --samples 15 --json
  burnformer bench --rows decode,prefill --models ~/models")]
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
    /// Folder with the models `smollm2-135m-instruct` and `all-minilm-l6-v2`, which scripts/fetch-models fills.
    #[arg(long, value_name = "FOLDER", env = "BURNFORMER_MODELS")]
    models: Option<PathBuf>,
    #[command(flatten)]
    show: Show,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { backend, rows, samples, models, show } = arguments;
    let rows = match rows.is_empty() {
        true => BenchRow::ALL.to_vec(),
        false => rows.iter().map(|row| row.parse()).collect::<Result<_, _>>()?,
    };
    let options = BenchOptions { samples, models };
    let devices = open_all(&backend, &show)?;
    let mut measured = Vec::new();
    // Memory comes first on every device: what other rows have freed would hide its growth.
    let is_memory = |row: &BenchRow| *row == BenchRow::Memory;
    for memory in [true, false] {
        let rows: Vec<BenchRow> = rows.iter().copied().filter(|row| is_memory(row) == memory).collect();
        for (name, device) in &devices {
            let report = measure(device, &name.to_string(), &rows, &options)?;
            if let Some(machine) = report.machine {
                let (flops, bandwidth) = (machine.peak_flops / 1e9, machine.bandwidth / 1e9);
                show.note(format!("{name}: products {flops:.0} GFLOP/s, memory {bandwidth:.1} GB/s"));
            }
            for (row, reason) in report.skipped {
                show.note(format!("{name} {row}: left out, as {reason}"));
            }
            measured.extend(report.measured);
        }
    }
    match show.json {
        true => output::print_json(&measured)?,
        false => output::print(&text(&measured))?,
    }
    Ok(Outcome::Done)
}

fn text(measured: &[Measurement]) -> String {
    let rows: Vec<[String; 9]> = measured
        .iter()
        .map(|row| {
            let shape = row.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
            let rate = if row.unit == "bytes" { format!("{:.0}", row.rate) } else { format!("{:.1}", row.rate) };
            let milliseconds = |seconds: f64| format!("{:.3}", seconds * 1e3);
            let [fastest, slowest] = row.spread.map(milliseconds);
            let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            [
                row.row.clone(),
                row.backend.clone(),
                format!("[{shape}]"),
                milliseconds(row.seconds),
                format!("{fastest} to {slowest}"),
                rate,
                row.unit.into(),
                optional(row.share_of_limit.map(|share| format!("{:.0}%", share * 100.0))),
                optional(row.tokens_per_second.map(|rate| format!("{rate:.1}"))),
            ]
        })
        .collect();
    output::table(["row", "backend", "shape", "ms", "spread", "rate", "unit", "of limit", "tokens/s"], &rows)
}
