//! Images as another program has prepared them: resized, normalised, in a tensor.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::SafeTensors;

use crate::error::Error;
use crate::stored_numbers::floats;

/// The tensor that holds images, as transformers calls it.
const TENSOR: &str = "pixel_values";

/// A batch of images of one size.
#[derive(Clone, Debug)]
pub struct Images {
    shape: [usize; 4],
    values: Vec<f32>,
}

impl Images {
    /// Reads the tensor `pixel_values`, `[batch, channels, height, width]`, of a safetensors file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or has no such tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| Error::file(path, format!("is not a whole safetensors file: {error}")))?;
        let tensor = tensors.tensor(TENSOR).map_err(|_| {
            let names = tensors.names().join(", ");
            Error::file(path, format!("has no tensor `{TENSOR}`; there are: {names}"))
        })?;
        let shape = tensor.shape().try_into().map_err(|_| {
            let problem =
                format!("`{TENSOR}` has shape {:?}, expected [batch, channels, height, width]", tensor.shape());
            Error::file(path, problem)
        })?;
        let values = floats(&tensor).map_err(|problem| Error::file(path, format!("`{TENSOR}` {problem}")))?;
        Ok(Self { shape, values: values.into_iter().map(|value| value as f32).collect() })
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.shape[0]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The images on `device`, `[batch, channels, height, width]`.
    pub fn tensor(&self, device: &Device) -> Tensor<4> {
        Tensor::from_data(TensorData::new(self.values.clone(), self.shape), (device, DType::F32))
    }
}
