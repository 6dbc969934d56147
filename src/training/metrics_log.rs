//! The log of a run: one JSON document per line for each step, measurement and sample.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::events::TrainingEvent;
use crate::error::Error;

/// An open log, to which lines are added.
#[derive(Debug)]
pub(super) struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Opens the log at `path` and takes out what comes after step `done`, which will come again.
    pub fn open(path: &Path, done: usize) -> Result<Self, Error> {
        let unwritable = |error| Error::file(path, format!("cannot be written: {error}"));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::file(path, error)),
        };
        let kept: String = text.lines().filter(|line| is_up_to(line, done)).flat_map(|line| [line, "\n"]).collect();
        let partial = path.with_extension("partial");
        let written = std::fs::write(&partial, kept).and_then(|()| std::fs::rename(&partial, path));
        written.map_err(|error| {
            // There is nobody left to tell, and the name says what it is.
            let _ = std::fs::remove_file(&partial);
            unwritable(error)
        })?;
        let file = File::options().append(true).open(path).map_err(unwritable)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a line.
    pub fn write(&mut self, event: &TrainingEvent) -> Result<(), Error> {
        let line = serde_json::to_string(event).expect("a report can be written as JSON") + "\n";
        self.file.write_all(line.as_bytes()).map_err(|error| self.unwritable(&error))
    }

    /// Makes sure that all lines are on the disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &std::io::Error) -> Error {
        Error::file(&self.path, format!("cannot be written: {error}"))
    }
}

/// Whether a line is whole and belongs to a step that is done.
fn is_up_to(line: &str, done: usize) -> bool {
    let value: Option<Value> = serde_json::from_str(line).ok();
    value.and_then(|value| value["step"].as_u64()).is_some_and(|step| step <= done as u64)
}

#[cfg(test)]
mod tests {
    use super::super::events::{SampleReport, ValidationReport};
    use super::*;

    #[test]
    fn what_comes_again_is_taken_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("metrics.jsonl");
        let sample = |step| TrainingEvent::Sample(SampleReport { step, sample: "a\nb".into() });
        let mut log = MetricsLog::open(&path, 0).expect("it is new");
        for step in 1..=4 {
            log.write(&sample(step)).expect("it is written");
        }
        drop(log);
        let text = std::fs::read_to_string(&path).expect("it is there");
        std::fs::write(&path, text + "{\"step\":2,\"loss").expect("a line that a kill cut off");
        let mut log = MetricsLog::open(&path, 2).expect("it is there");
        let report = ValidationReport { step: 2, validation_loss: 1.5, perplexity: 4.5 };
        log.write(&TrainingEvent::Validation(report)).expect("it is written");
        log.sync().expect("it is written");
        let expected = "{\"step\":1,\"sample\":\"a\\nb\"}\n{\"step\":2,\"sample\":\"a\\nb\"}\n\
                        {\"step\":2,\"validation_loss\":1.5,\"perplexity\":4.5}\n";
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), expected);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 1);
    }
}
