//! GGUF files: one file with the sizes of a model, its weights, often quantised, and its tokenizer.
//!
//! A file becomes what a folder of the hub is: the `config.json` object of its family, and tensors under the names and in
//! the layout that its checkpoints have. So the rules of the families serve both.

mod architectures;
mod config;
mod header;
mod metadata;
mod names;
mod quantization;
mod tensor;
#[cfg(feature = "tokenizer")]
mod tokenizer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::{Map, Value};

use self::architectures::Architecture;
use self::header::Header;
use self::metadata::Metadata;
use self::tensor::Tensor;
use super::tensor_file::{StoredTensor, TensorFile};
use super::{CONFIG, mapped_file};
use crate::error::{ConfigError, Error};
use crate::kernel::BlockKind;
#[cfg(feature = "tokenizer")]
use crate::tokenizer::TokenizerParts;

const ARCHITECTURE: &str = "general.architecture";

/// The GGUF file that a path means: the path itself, or the only weight file of a folder without a `config.json`.
pub(super) fn find(path: &Path) -> Option<PathBuf> {
    match path.is_dir() {
        true => only_file(path),
        false => is_file(path).then(|| path.to_path_buf()),
    }
}

/// Whether a path means a GGUF file, which may be missing.
pub(super) fn is_file(path: &Path) -> bool {
    !path.is_dir() && (has_extension(path) || begins_with_magic(path))
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn begins_with_magic(path: &Path) -> bool {
    let mut start = [0; 4];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && header::has_magic(&start)
}

fn only_file(folder: &Path) -> Option<PathBuf> {
    if folder.join(CONFIG).exists() {
        return None;
    }
    let paths = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut files = paths.filter(|path| has_extension(path));
    files.next().filter(|_| files.next().is_none())
}

/// A mapped file.
#[derive(Debug)]
pub(super) struct GgufFile {
    path: PathBuf,
    map: Mmap,
    /// What the tokenizer is read from.
    #[cfg(feature = "tokenizer")]
    keys: BTreeMap<String, header::Value>,
    config: Map<String, Value>,
    /// Each tensor under its name in a checkpoint.
    tensors: BTreeMap<String, Tensor>,
}

/// A configuration, and tensors by name.
type Translated = (Map<String, Value>, BTreeMap<String, Tensor>);

impl GgufFile {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let map = mapped_file::open(path)?;
        let mut header = Header::read(&map).map_err(|problem| Error::weights(path, problem))?;
        let (config, tensors) = Self::translate(path, &map, &mut header)?;
        Ok(Self {
            path: path.to_path_buf(),
            map,
            #[cfg(feature = "tokenizer")]
            keys: header.keys,
            config,
            tensors,
        })
    }

    fn translate(path: &Path, map: &Mmap, header: &mut Header) -> Result<Translated, Error> {
        let architecture = architecture(map, header).map_err(|error| error.at(path.display()))?;
        let (config, heads) = config::read(map, header, architecture).map_err(|error| error.at(path.display()))?;
        let mut tensors = BTreeMap::new();
        for entry in std::mem::take(&mut header.tensors) {
            if config::is_configuration(&entry.name) {
                continue;
            }
            let (name, layout) =
                names::translate(architecture, heads, &entry).map_err(|problem| Error::weights(path, problem))?;
            tensors.insert(name, Tensor { entry, layout });
        }
        Ok((config, tensors))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text that the `config.json` of a checkpoint would have.
    pub fn config(&self) -> String {
        format!("{:#}", Value::Object(self.config.clone()))
    }

    /// Each tensor as a checkpoint has it.
    pub fn tensors(&self) -> impl Iterator<Item = (String, StoredTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.describe()))
    }

    /// Files that the folder of a checkpoint has beside its weights, by name with their text. A tokenizer that is not
    /// supported is left out: the weights are as good without it.
    pub fn companions(&self) -> Vec<(&'static str, String)> {
        #[cfg(feature = "tokenizer")]
        if let Ok(Some(parts)) = self.tokenizer() {
            return tokenizer::files(&parts);
        }
        Vec::new()
    }

    /// The tokenizer, if the header holds one.
    #[cfg(feature = "tokenizer")]
    pub fn tokenizer(&self) -> Result<Option<TokenizerParts>, Error> {
        let tokenizer = tokenizer::read(Metadata::new(&self.map, &self.keys));
        // The words are as long as some tensors.
        mapped_file::release(&self.map, &(0..self.map.len()));
        tokenizer.map_err(|error| error.at(self.path.display()).into())
    }
}

fn architecture(bytes: &[u8], header: &Header) -> Result<&'static Architecture, ConfigError> {
    let metadata = Metadata::new(bytes, &header.keys);
    match metadata.text(ARCHITECTURE).map(architectures::find) {
        Some(Ok(architecture)) => return Ok(architecture),
        Some(Err(problem)) => metadata.fault(ARCHITECTURE, problem),
        None => metadata.missing_unless_there(ARCHITECTURE),
    }
    Err(metadata.into_error())
}

impl TensorFile for GgufFile {
    fn read(&self, name: &str, rows: &[Range<usize>], take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let broken = |problem: &str| Error::weights(&self.path, format!("tensor `{name}` {problem}"));
        let tensor = self.tensors.get(name).ok_or_else(|| broken("is not there"))?;
        let bytes = self.map.get(tensor.entry.bytes.clone()).ok_or_else(|| broken("lies outside the file"))?;
        let is_whole = tensor.read(bytes, rows, take);
        mapped_file::release(&self.map, &tensor.entry.bytes);
        is_whole.ok_or_else(|| broken("is smaller than it should be"))
    }

    fn block_kind(&self, name: &str) -> Option<(BlockKind, usize)> {
        self.tensors.get(name)?.block_kind()
    }

    fn read_blocks(&self, name: &str, rows: &[Range<usize>]) -> Result<Vec<u8>, Error> {
        let broken = || Error::weights(&self.path, format!("tensor `{name}` is smaller than it should be"));
        let tensor = self.tensors.get(name).ok_or_else(broken)?;
        let blocks = self.map.get(tensor.entry.bytes.clone()).and_then(|bytes| tensor.read_blocks(bytes, rows));
        mapped_file::release(&self.map, &tensor.entry.bytes);
        blocks.ok_or_else(broken)
    }
}
