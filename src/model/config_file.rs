//! Reading a [`ModelConfig`] from files and text.

use std::path::Path;

use serde_json::Value;

use super::config::{ModelConfig, ModelKind};
use crate::attention::MultiHeadAttentionConfig;
use crate::config_reader::{self, FileConfig};
use crate::embedding::EmbeddingConfig;
use crate::error::{ConfigError, Error, Faults};
use crate::feed_forward::FeedForwardConfig;
use crate::head::HeadConfig;
use crate::patch_embedding::PatchEmbeddingConfig;
use crate::task_head::{TaskHeadConfig, TaskInput};

impl ModelConfig {
    /// Reads a configuration file: TOML, or JSON where the name ends in `.json`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or with every fault of the configuration.
    pub fn load_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        config_reader::from_file(path.as_ref())
    }

    /// Reads a configuration from TOML text.
    ///
    /// # Errors
    ///
    /// With every fault of the configuration.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        config_reader::from_toml(text)
    }

    /// Reads a configuration from JSON text.
    ///
    /// # Errors
    ///
    /// With every fault of the configuration.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        config_reader::from_json(text)
    }

    /// The configuration as TOML text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration can be written as TOML")
    }
}

impl FileConfig for ModelConfig {
    fn stand_in() -> Value {
        let config = ModelConfig::new(
            ModelKind::Decoder,
            1,
            1,
            MultiHeadAttentionConfig::new(8, 1),
            FeedForwardConfig::new(8, 8),
        )
        .with_embedding(EmbeddingConfig::new(1))
        .with_patches(PatchEmbeddingConfig::new(1, 1))
        .with_head(HeadConfig::default())
        .with_task(TaskHeadConfig::new(TaskInput::FirstToken, 1));
        let mut tree = serde_json::to_value(config).expect("a configuration can be written as JSON");
        // Widths of parts follow the model's.
        for section in ["attention", "feed_forward"] {
            if let Some(section) = tree.get_mut(section).and_then(Value::as_object_mut) {
                section.remove("d_model");
            }
        }
        tree
    }

    fn check_values(&self, faults: &mut Faults) {
        self.check(faults);
    }
}
