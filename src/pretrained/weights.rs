//! The weight files of a checkpoint folder: one file, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::safetensors_file::{Float, SafetensorsFile, StoredTensor};
use crate::error::Error;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a checkpoint.
#[derive(Debug)]
pub(super) struct Weights {
    /// The file or, where there are several, the index.
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Each tensor with the file that holds it.
    tensors: BTreeMap<String, (usize, StoredTensor)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens `model.safetensors` in `folder`, or else the files that `model.safetensors.index.json` lists.
    ///
    /// An index may name files of its own folder only. Those may be links: the Hugging Face cache is made of links that
    /// lead out of the folder, and whoever could put one there could as well have put the file.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if is_there(&single) {
            let (file, tensors) = SafetensorsFile::open(&single)?;
            let tensors = tensors.into_iter().map(|(name, tensor)| (name, (0, tensor))).collect();
            Ok(Self { path: single, files: vec![file], tensors })
        } else if is_there(&index) {
            Self::open_shards(folder, &index)
        } else {
            Err(Error::file(folder, format!("has no {SINGLE} and no {INDEX}{}", other_weights(folder))))
        }
    }

    fn open_shards(folder: &Path, index: &Path) -> Result<Self, Error> {
        let broken = |problem: String| Error::weights(index, problem);
        let text = std::fs::read_to_string(index).map_err(|error| Error::file(index, error))?;
        let Index { weight_map } =
            serde_json::from_str(&text).map_err(|error| broken(format!("is no index of weight files: {error}")))?;
        let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (tensor, shard) in &weight_map {
            shards.entry(shard).or_default().insert(tensor);
        }
        let mut weights = Self { path: index.to_path_buf(), files: Vec::new(), tensors: BTreeMap::new() };
        for (shard, listed) in shards {
            if !is_plain_name(shard) {
                return Err(broken(format!("names the file `{shard}`; only files of its own folder are read")));
            }
            let path = folder.join(shard);
            if !is_there(&path) {
                let count = listed.len();
                return Err(broken(format!("lists `{shard}` with {count} tensors, and there is no such file")));
            }
            let (file, tensors) = SafetensorsFile::open(&path)?;
            let found: BTreeSet<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
            if let Some(absent) = listed.difference(&found).next() {
                return Err(broken(format!("says that `{absent}` is in `{shard}`, and it is not")));
            }
            if let Some(unlisted) = found.difference(&listed).next() {
                return Err(broken(format!("does not say that `{unlisted}` is in `{shard}`, and it is")));
            }
            let place = weights.files.len();
            weights.files.push(file);
            weights.tensors.extend(tensors.into_iter().map(|(name, tensor)| (name, (place, tensor))));
        }
        Ok(weights)
    }

    /// The file or index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The type and shape of a tensor.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name).map(|(_, tensor)| tensor)
    }

    /// The numbers of a tensor; see [`SafetensorsFile::read`].
    pub fn read<F: Float>(&self, name: &str, axis: usize, ranges: &[Range<usize>]) -> Result<Vec<F>, Error> {
        match self.tensors.get(name) {
            Some((file, tensor)) => self.files[*file].read(name, tensor, axis, ranges),
            None => Err(Error::weights(&self.path, format!("has no tensor `{name}`"))),
        }
    }
}

/// Whether a folder has this entry, be it a link that leads nowhere, which opening it will report.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether a name is that of a file in the folder itself, on every system.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_one_part = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    is_one_part && !name.contains(['/', '\\', ':'])
}

/// A hint about weight files of other kinds.
fn other_weights(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return String::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut others: Vec<String> = names
        .filter(|name| {
            [".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"].iter().any(|e| name.ends_with(e))
        })
        .collect();
    others.sort();
    match others.as_slice() {
        [] => String::new(),
        [only] => format!("; there is `{only}`, which is not read"),
        [first, ..] => format!("; there are {} other weight files, as `{first}`, which are not read", others.len()),
    }
}
