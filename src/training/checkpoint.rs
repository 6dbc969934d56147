//! States of a run, each in a folder of its own that is a model's folder as well, or that of adapters where those are
//! trained.
//!
//! A folder is written under a hidden name and renamed when everything is in it and on the disk, so one that has its name
//! is whole, whenever the program or the machine may have stopped. Old ones go after the new one is there.

use std::fs::File;
use std::path::{Path, PathBuf};

use burn::optim::OptimizerRecord;
use serde::{Deserialize, Serialize};

use super::config::TrainingConfig;
use super::text::TextCoder;
use crate::error::Error;
use crate::model::Transformer;
use crate::pretrained::{Container, Existing, save_adapters, save_model, write_json};

/// The file with the state of the optimizer.
const OPTIMIZER: &str = "optimizer.bpk";

/// The file with everything else.
const STATE: &str = "training.json";

/// What a run goes on with, besides weights and the optimizer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct SavedState {
    /// Steps that are done.
    pub step: usize,
    /// The text that is trained on.
    pub text: TextStamp,
    /// The run. Schedule, order of windows and dropout follow from it and the step.
    pub config: TrainingConfig,
}

/// By what a text is known again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct TextStamp {
    /// Number of tokens.
    pub tokens: usize,
    /// A hash of them (FNV-1a, 64 bits, in hexadecimal).
    pub hash: String,
}

impl TextStamp {
    pub fn of(tokens: &[u32]) -> Self {
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self { tokens: tokens.len(), hash: format!("{hash:016x}") }
    }
}

/// What a checkpoint is made of.
pub(super) struct Snapshot<'a> {
    pub model: &'a Transformer,
    pub coder: &'a TextCoder,
    pub optimizer: OptimizerRecord,
    pub state: &'a SavedState,
}

/// The folder that holds the checkpoints of a run.
#[derive(Clone, Debug)]
pub(super) struct CheckpointStore {
    folder: PathBuf,
    keep: usize,
}

impl CheckpointStore {
    /// The checkpoints in `folder`, of which `keep` are kept.
    pub fn new(folder: PathBuf, keep: usize) -> Self {
        Self { folder, keep }
    }

    /// Makes the folder, and removes from it what a run that was stopped had not finished.
    pub fn prepare(&self) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| Error::file(&self.folder, format!("cannot be made: {error}")))?;
        for name in self.names()? {
            if name.starts_with('.') {
                remove(&self.folder.join(name))?;
            }
        }
        Ok(())
    }

    /// The newest checkpoint, if there is one.
    pub fn latest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.steps()?.last().map(|step| self.path(*step)))
    }

    /// Writes a checkpoint, and removes those that are too many then. A failure leaves the ones before as they were.
    pub fn save(&self, snapshot: Snapshot) -> Result<PathBuf, Error> {
        let step = snapshot.state.step;
        let (path, partial) = (self.path(step), self.folder.join(format!(".{}.partial", name(step))));
        let put_in_place = || {
            std::fs::rename(&partial, &path)
                .map_err(|error| Error::file(&path, format!("cannot be put in place: {error}")))?;
            sync(&self.folder)
        };
        let written = write(&partial, snapshot).and_then(|()| put_in_place());
        if let Err(error) = written {
            // What failed is what the user is told of.
            let _ = std::fs::remove_dir_all(&partial);
            let kept = match self.steps()?.last() {
                Some(last) => format!("the one of step {last} is kept"),
                None => "there is none before it".to_owned(),
            };
            return Err(Error::Training(format!("the checkpoint of step {step} failed, {kept}: {error}")));
        }
        let steps = self.steps()?;
        for old in &steps[..steps.len().saturating_sub(self.keep)] {
            // Under its own name it would look whole until the last file is gone.
            let hidden = self.folder.join(format!(".{}.old", name(*old)));
            let old = self.path(*old);
            std::fs::rename(&old, &hidden).map_err(|error| Error::file(&old, format!("cannot be removed: {error}")))?;
            remove(&hidden)?;
        }
        Ok(path)
    }

    fn path(&self, step: usize) -> PathBuf {
        self.folder.join(name(step))
    }

    /// The steps of all checkpoints, in order.
    fn steps(&self) -> Result<Vec<usize>, Error> {
        let names = self.names()?;
        let mut steps: Vec<usize> = names.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let unreadable = |error| Error::file(&self.folder, error);
        if !self.folder.is_dir() {
            return Ok(Vec::new());
        }
        let entries = std::fs::read_dir(&self.folder).map_err(unreadable)?;
        entries.map(|entry| Ok(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// The name of a checkpoint, in which the order of letters is that of steps.
fn name(step: usize) -> String {
    format!("step-{step:08}")
}

fn remove(folder: &Path) -> Result<(), Error> {
    std::fs::remove_dir_all(folder).map_err(|error| Error::file(folder, format!("cannot be removed: {error}")))
}

/// Writes all files of a checkpoint and waits until they are on the disk.
fn write(folder: &Path, snapshot: Snapshot) -> Result<(), Error> {
    let Snapshot { model, coder, optimizer, state } = snapshot;
    match &state.config.lora {
        None => save_model(model, folder, Container::Safetensors, Existing::Keep)?,
        Some(lora) => save_adapters(model, lora, folder, Existing::Keep)?,
    }
    coder.write(folder)?;
    let path = folder.join(OPTIMIZER);
    optimizer.save(&path).map_err(|error| Error::file(&path, format!("cannot be written: {error}")))?;
    write_json(&folder.join(STATE), state)?;
    let entries = std::fs::read_dir(folder).map_err(|error| Error::file(folder, error))?;
    for entry in entries {
        sync(&entry.map_err(|error| Error::file(folder, error))?.path())?;
    }
    sync(folder)
}

/// Waits until a file, or the names in a folder, are on the disk.
fn sync(path: &Path) -> Result<(), Error> {
    // Elsewhere than on Unix, folders cannot be opened and their names need no such call.
    if cfg!(not(unix)) && path.is_dir() {
        return Ok(());
    }
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::file(path, format!("cannot be written: {error}")))
}

/// Reads what the checkpoint in `folder` says about its run.
pub(super) fn read_state(folder: &Path) -> Result<SavedState, Error> {
    let path = folder.join(STATE);
    let bytes = std::fs::read(&path).map_err(|error| Error::file(&path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::file(&path, format!("is no state of a run: {error}")))
}

/// Reads the state of the optimizer of the checkpoint in `folder`.
pub(super) fn read_optimizer(folder: &Path) -> Result<OptimizerRecord, Error> {
    let path = folder.join(OPTIMIZER);
    OptimizerRecord::load(&path).map_err(|error| Error::file(&path, format!("is no state of an optimizer: {error}")))
}
