//! Reading published checkpoints: config files, weight files, and what goes where. Outputs are compared with reference
//! values in `reference.rs`.

#[path = "../common/mod.rs"]
mod common;
mod configs;
mod convert;
mod families;
mod family_tensors;
mod folder;
mod memory;
mod native_folders;
mod placement;
mod torch_files;
mod torch_writer;
mod weight_files;
