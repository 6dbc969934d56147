//! What goes to stdout and stderr. A reader that closes its end early is no error.

use std::io::{ErrorKind, Write};

use burnformer::Error;
use serde::Serialize;

/// Prints `text` and a line break to stdout.
pub fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::file("stdout", error)),
        _ => Ok(()),
    }
}

/// Prints `text` as it is, at once; `false` where nobody reads any more.
pub fn print_piece(text: &str) -> Result<bool, Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::file("stdout", error)),
        Ok(()) => Ok(true),
    }
}

/// Prints one JSON document to stdout.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print(&serde_json::to_string(value).expect("a result can be written as JSON"))
}

/// Prints a line to stderr, where there is somebody to read it.
pub fn to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Rows under a head, columns aligned; numbers to the right.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let is_number: [bool; N] = std::array::from_fn(|column| {
        !rows.is_empty() && rows.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    });
    let line = |cells: [&str; N]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if is_number[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(head)).chain(rows).collect::<Vec<_>>().join("\n")
}

/// Numbers for people, six digits each.
pub fn numbers(values: impl IntoIterator<Item = f64>) -> String {
    values.into_iter().map(|value| format!("{value:.6}")).collect::<Vec<_>>().join(" ")
}
