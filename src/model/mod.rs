//! Whole models: their configuration files, presets, input, cache and forward.

mod cache;
mod config;
mod config_check;
mod config_file;
mod encoder;
mod input;
mod observer;
mod parameters;
mod presets;
mod stack;
mod transformer;
mod weight_layout;

pub use cache::Cache;
pub use config::{LayerPattern, LayerRotary, ModelConfig, ModelKind};
pub use encoder::Encoder;
pub use input::ModelInput;
pub use observer::{AttentionObserver, AttentionPart, AttentionPlace};
pub use presets::{preset_names, preset_text};
pub use transformer::{ForwardOptions, Logits, ModelOutput, Transformer};
pub(crate) use weight_layout::WeightLayout;
