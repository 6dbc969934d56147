//! Reading published checkpoints: config files, weight files, and what goes where. Outputs are compared with reference
//! values in `reference.rs`.

#[path = "../common/mod.rs"]
mod common;
mod configs;
mod families;
mod family_tensors;
mod folder;
mod placement;
mod weight_files;
