//! The folder of a run, which becomes that of a model.

use std::path::Path;

use super::text::TextCoder;
use crate::adapters::LoraConfig;
use crate::error::Error;
use crate::model::Transformer;
use crate::pretrained::{Container, Existing, save_adapters, save_model};

/// The folder of adapters in the folder of a run.
const ADAPTER: &str = "adapter";

/// Fails where a new run would write into something that is there.
pub(super) fn check_is_free(out: &Path) -> Result<(), Error> {
    match std::fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => {
                Err(Error::file(out, "is not empty; choose another folder, or go on with the run in it (`--resume`)"))
            }
        },
        Err(_) if out.symlink_metadata().is_err() => match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
                Err(Error::file(out, format!("cannot be made: there is no folder `{}`", parent.display())))
            }
            _ => Ok(()),
        },
        Err(_) => Err(Error::file(out, "is there and is no folder that can be read")),
    }
}

/// Writes the trained model into the folder of its run, file by file; each appears whole. Adapters are merged into it,
/// and stand in a folder of their own too.
pub(super) fn write_model(
    model: &Transformer,
    lora: Option<&LoraConfig>,
    coder: &TextCoder,
    out: &Path,
) -> Result<(), Error> {
    if let Some(lora) = lora {
        save_adapters(model, lora, out.join(ADAPTER), Existing::Replace)?;
    }
    let partial = out.join(".model");
    // What a run that was killed has left.
    let _ = std::fs::remove_dir_all(&partial);
    let written = save_model(model, &partial, Container::Safetensors, Existing::Replace)
        .and_then(|()| coder.write(&partial))
        .and_then(|()| move_files(&partial, out));
    // What is left of it is nothing, or what failed.
    let _ = std::fs::remove_dir_all(&partial);
    written
}

fn move_files(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |error| Error::file(to, format!("cannot be written: {error}"));
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        std::fs::rename(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    Ok(())
}
