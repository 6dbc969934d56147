//! The errors of this crate: everything that comes from outside (files, configs, weights, token ids, backend names)
//! is answered with one of these; a shape mistake in a call panics instead, as the called function documents.

use std::fmt;
use std::path::{Path, PathBuf};

/// What a `Result` of this crate carries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A backend that is unknown, not compiled in, without a device, or unable to do what was asked.
    #[error("backend `{backend}`: {problem}")]
    Backend {
        /// The name as the caller wrote it.
        backend: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file or folder that cannot be read or written.
    #[error("`{}`: {problem}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Weights that do not fill a model: tensors missing, left over or of the wrong shape.
    #[error("weights `{}`: {problem}", path.display())]
    Weights {
        /// The weight file or folder.
        path: PathBuf,
        /// The tensors concerned, and what was expected.
        problem: String,
    },
    /// An input that the model cannot take: a token id out of range, a sequence too long, rows of unequal length.
    #[error("input: {0}")]
    Input(String),
    /// Logits that no token can be drawn from.
    #[error("logits: {0}")]
    Logits(String),
    /// A training run that cannot go on.
    #[error("training: {0}")]
    Training(String),
}

impl Error {
    /// A [`Error::File`] for `path`.
    pub fn file(path: impl AsRef<Path>, problem: impl fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_path_buf(), problem: problem.to_string() }
    }

    /// A [`Error::Weights`] for `path`.
    pub fn weights(path: impl AsRef<Path>, problem: impl fmt::Display) -> Self {
        Self::Weights { path: path.as_ref().to_path_buf(), problem: problem.to_string() }
    }

    /// A [`Error::Backend`] for the backend named `backend`.
    pub fn backend(backend: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Backend { backend: backend.to_string(), problem: problem.to_string() }
    }
}

/// One thing that is wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key concerned, as a dotted path (`attention.n_heads`).
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { f.write_str(&self.problem) } else { write!(f, "`{}` {}", self.key, self.problem) }
    }
}

/// A configuration that cannot be built, with every fault that was found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the configuration came from: a file, a preset name, or empty.
    pub origin: String,
    /// All faults, in the order in which they were found; never empty.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("config")?;
        if !self.origin.is_empty() {
            write!(f, " `{}`", self.origin)?;
        }
        for (index, fault) in self.faults.iter().enumerate() {
            write!(f, "{} {fault}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// The same error, said to come from `origin`.
    pub fn at(mut self, origin: impl fmt::Display) -> Self {
        self.origin = origin.to_string();
        self
    }
}

/// Sizes above this are refused: no model has them, and the product of two such and a depth would not fit in 64 bits.
const LARGEST_SIZE: usize = 1 << 24;

/// Likewise for numbers of positions, which contexts of some published models come near to.
const LARGEST_LEN: usize = 1 << 32;

/// Collects faults so that a validation can report all of them at once.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    prefix: String,
    found: Vec<Fault>,
}

impl Faults {
    /// Records `key` as faulty unless `holds`.
    pub(crate) fn require(&mut self, holds: bool, key: &str, problem: impl FnOnce() -> String) {
        if !holds {
            self.add(key, problem());
        }
    }

    /// Records a fault of `key`.
    pub(crate) fn add(&mut self, key: &str, problem: impl Into<String>) {
        let key = match (self.prefix.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.prefix.clone(),
            (false, false) => format!("{}.{key}", self.prefix),
        };
        let fault = Fault { key, problem: problem.into() };
        if !self.found.contains(&fault) {
            self.found.push(fault);
        }
    }

    /// Requires a size that must not be zero, and that leaves room for products of it.
    pub(crate) fn positive(&mut self, value: usize, key: &str) {
        self.within(value, LARGEST_SIZE, key);
    }

    /// Requires a number of positions that must not be zero.
    pub(crate) fn positive_len(&mut self, value: usize, key: &str) {
        self.within(value, LARGEST_LEN, key);
    }

    fn within(&mut self, value: usize, largest: usize, key: &str) {
        self.require(value > 0, key, || "must be at least 1, got 0".into());
        self.require(value <= largest, key, || format!("must be at most {largest}, got {value}"));
    }

    /// Requires a finite number above zero.
    pub(crate) fn positive_number(&mut self, value: f64, key: &str) {
        self.require(value.is_finite() && value > 0.0, key, || format!("must be a number above 0, got {value}"));
    }

    /// Requires a dropout probability in `[0, 1)`.
    pub(crate) fn probability(&mut self, value: f64, key: &str) {
        self.require((0.0..1.0).contains(&value), key, || format!("must be at least 0 and below 1, got {value}"));
    }

    /// Takes over what `check` finds, its keys put under `section`.
    pub(crate) fn section(&mut self, section: &str, check: impl FnOnce(&mut Faults)) {
        let outer = self.prefix.clone();
        self.prefix = if outer.is_empty() { section.to_owned() } else { format!("{outer}.{section}") };
        check(self);
        self.prefix = outer;
    }

    /// All faults so far.
    pub(crate) fn into_faults(self) -> Vec<Fault> {
        self.found
    }

    /// `Ok` when nothing was found.
    pub(crate) fn into_result(self) -> Result<(), ConfigError> {
        match self.found.is_empty() {
            true => Ok(()),
            false => Err(ConfigError { origin: String::new(), faults: self.found }),
        }
    }
}

/// Of `candidates` the one that looks most like `name`, if any is near enough to be a slip of the pen.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// What to say of a `name` that is none of `known`: the nearest of them, or all.
pub(crate) fn advice<const N: usize>(name: &str, known: [&str; N]) -> String {
    match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}
