//! From images to the residual stream: patches, each projected to a vector, behind a class token
//! ([Dosovitskiy et al. 2020](https://arxiv.org/abs/2010.11929)).

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Initializer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::Faults;
use crate::precision::narrow;

/// Configuration of a [`PatchEmbedding`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PatchEmbeddingConfig {
    /// Height and width of an image, in pixels.
    pub image_size: [usize; 2],
    /// Height and width of a patch, in pixels. What is left of an image at the right and at the bottom is not seen.
    pub patch_size: [usize; 2],
    /// Numbers per pixel. Default: 3.
    #[serde(default = "three")]
    pub channels: usize,
}

fn three() -> usize {
    3
}

impl PatchEmbeddingConfig {
    /// Square images of `image_size` pixels with three channels, in square patches of `patch_size` pixels.
    pub fn new(image_size: usize, patch_size: usize) -> Self {
        Self { image_size: [image_size; 2], patch_size: [patch_size; 2], channels: 3 }
    }

    setters! {
        with_image_size => image_size: [usize; 2],
        with_patch_size => patch_size: [usize; 2],
        with_channels => channels: usize,
    }

    pub(crate) fn check(&self, faults: &mut Faults) {
        faults.positive(self.channels, "channels");
        for (axis, name) in ["height", "width"].into_iter().enumerate() {
            let (image, patch) = (self.image_size[axis], self.patch_size[axis]);
            faults.positive(image, "image_size");
            faults.positive(patch, "patch_size");
            faults.require(patch <= image || image == 0, "patch_size", || {
                format!("has {name} {patch}, above the image's {name} {image}")
            });
        }
    }

    /// How many patches an image has.
    pub fn n_patches(&self) -> usize {
        let along = |axis: usize| self.image_size[axis].checked_div(self.patch_size[axis]).unwrap_or(0);
        along(0).saturating_mul(along(1))
    }

    /// How many vectors an image becomes: its patches and the class token.
    pub fn seq_len(&self) -> usize {
        self.n_patches().saturating_add(1)
    }

    /// The shape of an image: channels, height, width.
    pub fn image_shape(&self) -> [usize; 3] {
        [self.channels, self.image_size[0], self.image_size[1]]
    }

    pub(crate) fn n_parameters(&self, d_model: usize, has_positions: bool) -> u64 {
        let numbers = [self.channels, self.patch_size[0], self.patch_size[1]].into_iter().map(|size| size as u64);
        let patch = numbers.fold(1, u64::saturating_mul);
        let positions = if has_positions { self.seq_len() as u64 } else { 0 };
        // Per feature: the kernel's numbers, its bias, the class token, the positions.
        patch.saturating_add(2).saturating_add(positions).saturating_mul(d_model as u64)
    }

    pub(crate) fn init(&self, d_model: usize, has_positions: bool, dropout: f64, device: &Device) -> PatchEmbedding {
        let Self { patch_size: [height, width], channels, .. } = *self;
        let init = Initializer::Normal { mean: 0.0, std: 0.02 };
        PatchEmbedding {
            kernel: init.init([d_model, channels, height, width], device),
            bias: Initializer::Zeros.init([d_model], device),
            class_token: init.init([1, 1, d_model], device),
            positions: has_positions.then(|| init.init([1, self.seq_len(), d_model], device)),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }
}

/// The embedding of images: `[class, kernel · patch + bias, ...] + positions`.
///
/// Patches do not overlap, so a convolution is one matrix product over all patches, which every backend computes alike.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// The projection, as a convolution has it: `[d_model, channels, patch height, patch width]`.
    pub kernel: Param<Tensor<4>>,
    /// Bias of the projection, `[d_model]`.
    pub bias: Param<Tensor<1>>,
    /// What stands before the patches, `[1, 1, d_model]`.
    pub class_token: Param<Tensor<3>>,
    /// Learned positions, the class token's first: `[1, seq_len, d_model]`.
    pub positions: Option<Param<Tensor<3>>>,
    dropout: Dropout,
}

impl PatchEmbedding {
    /// Embeds images. Patches follow each other row by row.
    ///
    /// # Shapes
    ///
    /// - pixels: `[batch, channels, height, width]`
    /// - output: `[batch, 1 + n_patches, d_model]`
    ///
    /// # Panics
    ///
    /// When the images have other channels than the kernel, or another size than the positions are for.
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<3> {
        let kernel = self.kernel.val();
        let [d_model, channels, patch_height, patch_width] = kernel.dims();
        let [batch, image_channels, height, width] = pixels.dims();
        assert_eq!(image_channels, channels, "images have {image_channels} channels, the kernel {channels}");
        let (rows, columns) = (height / patch_height, width / patch_width);
        let patch = channels * patch_height * patch_width;

        let patches = narrow(pixels, kernel.dtype())
            .slice([0..batch, 0..channels, 0..rows * patch_height, 0..columns * patch_width])
            .reshape([batch, channels, rows, patch_height, columns, patch_width])
            .permute([0, 2, 4, 1, 3, 5])
            .reshape([batch * rows * columns, patch]);
        let projected = patches.matmul(kernel.reshape([d_model, patch]).transpose()) + self.bias.val().unsqueeze();
        let class_token = self.class_token.val().expand([batch, 1, d_model]);
        let mut x = Tensor::cat(vec![class_token, projected.reshape([batch, rows * columns, d_model])], 1);
        if let Some(positions) = &self.positions {
            x = x + positions.val();
        }
        self.dropout.forward(x)
    }
}
