//! A folder that appears whole or not at all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::peft::PEFT_CONFIG;
use super::{ADAPTER_CONFIG, CONFIG};
use crate::error::Error;

/// What happens to a folder that is already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// It is kept, and writing to it is an error, unless it is empty.
    #[default]
    Keep,
    /// It is replaced as a whole if it holds a model or adapters.
    Replace,
}

/// A folder in the making, under a temporary name beside the place where it will stand. Removed when it is dropped before
/// it is finished.
#[derive(Debug)]
pub(super) struct OutputFolder {
    target: PathBuf,
    existing: Existing,
    scratch: PathBuf,
    is_finished: bool,
}

impl OutputFolder {
    /// Makes a folder that is to stand at `target`.
    pub fn create(target: &Path, existing: Existing) -> Result<Self, Error> {
        check_target(target, existing)?;
        let scratch = beside(target, "partial")?;
        // What a run that was killed has left under the name of this process.
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir(&scratch).map_err(|error| Error::file(target, format!("cannot be made: {error}")))?;
        Ok(Self { target: target.to_path_buf(), existing, scratch, is_finished: false })
    }

    /// Where files are written.
    pub fn path(&self) -> &Path {
        &self.scratch
    }

    /// Puts the folder where it belongs, in the place of what is there.
    pub fn finish(mut self) -> Result<(), Error> {
        // Writing takes long enough for somebody to put something there.
        check_target(&self.target, self.existing)?;
        let failed = |error: std::io::Error| Error::file(&self.target, format!("cannot be put in place: {error}"));
        let old = beside(&self.target, "replaced")?;
        let is_replaced = self.target.symlink_metadata().is_ok();
        if is_replaced {
            std::fs::rename(&self.target, &old).map_err(failed)?;
        }
        if let Err(error) = std::fs::rename(&self.scratch, &self.target) {
            if is_replaced {
                std::fs::rename(&old, &self.target).map_err(failed)?;
            }
            return Err(failed(error));
        }
        self.is_finished = true;
        match is_replaced {
            true => std::fs::remove_dir_all(&old).map_err(|error| Error::file(&old, format!("is left over: {error}"))),
            false => Ok(()),
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if !self.is_finished {
            // There is nobody left to tell, and the name says what it is.
            let _ = std::fs::remove_dir_all(&self.scratch);
        }
    }
}

/// Fails where nothing may be put at `target`.
fn check_target(target: &Path, existing: Existing) -> Result<(), Error> {
    let refused = |problem: &str| Err(Error::file(target, problem));
    let Ok(entries) = std::fs::read_dir(target) else {
        return match target.symlink_metadata() {
            Ok(_) => refused("is there and is no folder that can be read"),
            Err(_) => Ok(()),
        };
    };
    if target.is_symlink() {
        return refused("is a link; name the folder it leads to");
    }
    let is_empty = entries.into_iter().next().is_none();
    match existing {
        _ if is_empty => Ok(()),
        Existing::Keep => refused("is not empty; choose another folder, or replace it (`--force`)"),
        Existing::Replace if [CONFIG, ADAPTER_CONFIG, PEFT_CONFIG].iter().any(|name| target.join(name).is_file()) => {
            Ok(())
        }
        Existing::Replace => refused("is not empty and holds no model, so it is not replaced"),
    }
}

/// A name beside `target` that nobody else uses.
fn beside(target: &Path, what: &str) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(target).map_err(|error| Error::file(target, error))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::file(target, "has no name that a new folder could have"));
    };
    if !parent.is_dir() {
        return Err(Error::file(target, format!("cannot be made: there is no folder `{}`", parent.display())));
    }
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{what}-{}", std::process::id()));
    Ok(parent.join(hidden))
}
