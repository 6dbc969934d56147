//! The weights of a checkpoint: one file of any kind, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::numbers::{Cut, Float, Numbers, are_finite};
use super::pack_file::PackFile;
use super::pytorch_file::PytorchFile;
use super::safetensors_file::SafetensorsFile;
use super::tensor_file::{StoredTensor, TensorFile};
use crate::error::Error;
use crate::kernel::BlockKind;

/// The names of weight files, in the order in which they are looked for.
const FILES: [(&str, Kind); 5] = [
    (SAFETENSORS, Kind::Single(open_safetensors)),
    ("model.safetensors.index.json", Kind::Index(open_safetensors)),
    ("pytorch_model.bin", Kind::Single(open_pytorch)),
    ("pytorch_model.bin.index.json", Kind::Index(open_pytorch)),
    (PACK, Kind::Single(open_pack)),
];
/// The name of a safetensors file that is alone.
pub(super) const SAFETENSORS: &str = "model.safetensors";
/// The name of a file in Burn's own format.
pub(super) const PACK: &str = "model.bpk";
/// Endings of PyTorch files that have no name of their own.
const PYTORCH_ENDINGS: [&str; 2] = [".pt", ".pth"];
/// Endings of weight files that may have other names than those above.
const OTHER_ENDINGS: [&str; 8] = [".safetensors", ".bin", ".bpk", ".pt", ".pth", ".gguf", ".h5", ".msgpack"];

type Opened = (Arc<dyn TensorFile>, Vec<(String, StoredTensor)>);
type Open = fn(&Path) -> Result<Opened, Error>;

#[derive(Clone, Copy)]
enum Kind {
    /// A file with all tensors.
    Single(Open),
    /// A list of files.
    Index(Open),
}

fn open_safetensors(path: &Path) -> Result<Opened, Error> {
    SafetensorsFile::open(path).map(|(file, tensors)| (Arc::new(file) as Arc<dyn TensorFile>, tensors))
}

fn open_pytorch(path: &Path) -> Result<Opened, Error> {
    PytorchFile::open(path).map(|(file, tensors)| (Arc::new(file) as Arc<dyn TensorFile>, tensors))
}

fn open_pack(path: &Path) -> Result<Opened, Error> {
    PackFile::open(path).map(|(file, tensors)| (Arc::new(file) as Arc<dyn TensorFile>, tensors))
}

/// All tensors of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// The file or, where there are several, the index.
    path: PathBuf,
    files: Vec<Arc<dyn TensorFile>>,
    /// Each tensor with the file that holds it.
    tensors: BTreeMap<String, (usize, StoredTensor)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens the weights in `folder`: safetensors where there are any, else what PyTorch wrote, else a burnpack.
    ///
    /// An index may name files of its own folder only. Those may be links: the Hugging Face cache is made of links that
    /// lead out of the folder, and whoever could put one there could as well have put the file.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        for (name, kind) in FILES {
            let path = folder.join(name);
            match kind {
                _ if !is_there(&path) => {}
                Kind::Single(open) => return open(&path).map(|opened| Self::single(&path, opened)),
                Kind::Index(open) => return Self::open_shards(folder, &path, open),
            }
        }
        let others = other_weights(folder);
        let is_pytorch = |name: &&String| PYTORCH_ENDINGS.iter().any(|ending| name.ends_with(ending));
        if let [only] = others.iter().filter(is_pytorch).collect::<Vec<_>>()[..] {
            let path = folder.join(only);
            return open_pytorch(&path).map(|opened| Self::single(&path, opened));
        }
        let hint = match others.as_slice() {
            [] => String::new(),
            [only] => format!("; there is `{only}`, which is not read under that name"),
            [first, ..] => format!("; there are {} weight files, as `{first}`, of other names", others.len()),
        };
        Err(Error::file(folder, format!("has no {SAFETENSORS}, no pytorch_model.bin and no {PACK}{hint}")))
    }

    /// Opens a safetensors file, whatever its name.
    pub fn open_file(path: &Path) -> Result<Self, Error> {
        open_safetensors(path).map(|opened| Self::single(path, opened))
    }

    /// The weights of a file that holds all of them.
    pub fn single(path: &Path, (file, tensors): (Arc<dyn TensorFile>, Vec<(String, StoredTensor)>)) -> Self {
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, (0, tensor))).collect();
        Self { path: path.to_path_buf(), files: vec![file], tensors }
    }

    fn open_shards(folder: &Path, index: &Path, open: Open) -> Result<Self, Error> {
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
            let (file, tensors) = open(&path)?;
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

    /// The numbers of a tensor that `cut` takes, and whether they are all finite.
    pub fn read<F: Float>(&self, name: &str, cut: Cut<'_>) -> Result<(Vec<F>, bool), Error> {
        let (file, tensor) = self.find(name)?;
        if !tensor.is_float() {
            let problem = format!("tensor `{name}` holds {} numbers", tensor.type_name());
            return Err(Error::weights(&self.path, problem));
        }
        let (rows, columns) = tensor.rows_and_columns();
        let (mut numbers, wanted) = Numbers::<F>::new(tensor.dtype, [rows, columns], cut);
        file.read(name, &wanted, &mut |bytes| numbers.take(bytes))?;
        Ok(numbers.into_values())
    }

    /// The blocks that what `cut` takes of a tensor is made of, row after row, where each belongs to one output of the
    /// parameter: these are its rows in a table, and its columns else.
    pub fn block_kind(&self, name: &str, cut: Cut<'_>, is_table: bool) -> Option<BlockKind> {
        let (file, _) = self.find(name).ok()?;
        let (kind, axis) = file.block_kind(name)?;
        let is_by_rows = cut.ranges.is_empty() || cut.axis == axis;
        let are_columns = cut.transpose != (axis == 1);
        (is_by_rows && are_columns != is_table).then_some(kind)
    }

    /// These blocks, and whether all their numbers are finite.
    pub fn read_blocks(&self, name: &str, cut: Cut<'_>) -> Result<(Vec<u8>, bool), Error> {
        let (file, tensor) = self.find(name)?;
        let (kind, axis) = file.block_kind(name).expect("only tensors in blocks are read so");
        let whole = [0..tensor.shape[axis]; 1];
        let blocks = file.read_blocks(name, if cut.ranges.is_empty() { &whole } else { cut.ranges })?;
        let is_finite = kind.are_finite(&blocks);
        Ok((blocks, is_finite))
    }

    /// The bytes of a tensor, its numbers in the type `dtype`, and whether they are all finite. What is stored in that
    /// type is not touched.
    pub fn read_bytes(&self, name: &str, dtype: Dtype) -> Result<(Vec<u8>, bool), Error> {
        let (file, tensor) = self.find(name)?;
        match dtype {
            dtype if dtype == tensor.dtype => {
                let (mut all, mut is_finite) = (Vec::with_capacity(tensor.byte_len()), true);
                let rows = tensor.rows_and_columns().0;
                file.read(name, &[0..rows; 1], &mut |bytes| {
                    is_finite &= are_finite(dtype, bytes);
                    all.extend_from_slice(bytes);
                })?;
                Ok((all, is_finite))
            }
            Dtype::F64 => self.bytes_as::<f64>(name),
            Dtype::F16 => self.bytes_as::<f16>(name),
            Dtype::BF16 => self.bytes_as::<bf16>(name),
            _ => self.bytes_as::<f32>(name),
        }
    }

    fn bytes_as<F: Float>(&self, name: &str) -> Result<(Vec<u8>, bool), Error> {
        let (values, is_finite) = self.read::<F>(name, Cut::ALL)?;
        Ok((F::into_bytes(values), is_finite))
    }

    /// Whether two tensors hold the same numbers.
    pub fn are_equal(&self, one: &str, other: &str) -> Result<bool, Error> {
        let ((_, a), (file, b)) = (self.find(one)?, self.find(other)?);
        if a != b {
            return Ok(false);
        }
        let (first, _) = self.read_bytes(one, a.dtype)?;
        let (mut place, mut is_equal) = (0, true);
        file.read(other, &[0..b.rows_and_columns().0; 1], &mut |bytes| {
            is_equal &= first.get(place..place + bytes.len()) == Some(bytes);
            place += bytes.len();
        })?;
        Ok(is_equal)
    }

    fn find(&self, name: &str) -> Result<(&dyn TensorFile, &StoredTensor), Error> {
        match self.tensors.get(name) {
            Some((file, tensor)) => Ok((self.files[*file].as_ref(), tensor)),
            None => Err(Error::weights(&self.path, format!("has no tensor `{name}`"))),
        }
    }
}

/// Whether a folder has this entry, be it a link that leads nowhere, which opening it will report.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether a name is that of a file in the folder itself, on every system.
pub(super) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_one_part = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    is_one_part && !name.contains(['/', '\\', ':'])
}

/// Names in a folder that look like those of weight files.
fn other_weights(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut others: Vec<String> =
        names.filter(|name| OTHER_ENDINGS.iter().any(|ending| name.ends_with(ending))).collect();
    others.sort();
    others
}
