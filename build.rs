//! Tells the linker where the programs of this package find libtorch when they run.
//!
//! torch-sys says where libtorch is only to the linker, not to the loader: a program built against a libtorch outside
//! the system's folders stops at start with "cannot open shared object file". An rpath settles that for this package's
//! binaries, tests and examples. The libtorch of a Python wheel is in turn linked to the CUDA runtime (`libtorch_cpu`
//! and `libc10_cuda`, also where no GPU is used), which its wheels put beside it in `nvidia/*/lib`.
//!
//! Programs of other packages that use this crate set their own rpath or `LD_LIBRARY_PATH`: cargo does not hand link
//! arguments on.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_LIBTORCH").is_none() || env::var_os("CARGO_CFG_UNIX").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    // Unset: torch-sys has found or downloaded a libtorch by itself.
    let Some(libtorch) = env::var_os("LIBTORCH").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return;
    };
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", libtorch.join("lib").display());
    for directory in cuda_libraries(&libtorch) {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", directory.display());
    }
}

/// The folders `nvidia/*/lib` beside `libtorch`, in a fixed order so that equal builds link equally.
fn cuda_libraries(libtorch: &Path) -> Vec<PathBuf> {
    let Some(packages) = libtorch.parent().and_then(|parent| fs::read_dir(parent.join("nvidia")).ok()) else {
        return Vec::new();
    };
    let mut directories: Vec<PathBuf> =
        packages.flatten().map(|package| package.path().join("lib")).filter(|path| path.is_dir()).collect();
    directories.sort();
    directories
}
