//! A whole model: embeddings, blocks, final norm and head, with one forward for all uses.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::cache::{Cache, EncodedMemory};
use super::config::{ModelConfig, ModelKind};
use super::encoder::Encoder;
use super::input::{ModelInput, Source};
use super::observer::{AttentionObserver, Collector};
use super::stack::Stack;
use crate::attention::RelativeBias;
use crate::backend;
use crate::embedding::Embedding;
use crate::error::Error;
use crate::head::{LanguageModelHead, Pooler};
use crate::norm::Norm;
use crate::patch_embedding::PatchEmbedding;
use crate::positions::{LearnedPositions, Positions};
use crate::projection::Projection;
use crate::task_head::{TaskHead, TaskInput};
use crate::transformer_block::TransformerBlock;

impl ModelConfig {
    /// Builds the model; weights are drawn when they are first used.
    ///
    /// # Panics
    ///
    /// When the configuration is not valid; configurations from files have been validated.
    pub fn init(&self, device: &Device) -> Transformer {
        self.validate().unwrap_or_else(|error| panic!("{error}"));
        let is_projected = self.embedding.as_ref().is_some_and(|embedding| embedding.is_projected(self.d_model));
        Transformer {
            embedding: self.embedding.as_ref().map(|embedding| {
                embedding.init(self.d_model, self.max_seq_len, &self.positions, self.norm, self.dropout, device)
            }),
            patches: self.patches.map(|patches| {
                let has_positions = matches!(self.positions, Positions::Learned(_));
                patches.init(self.d_model, has_positions, self.dropout, device)
            }),
            encoder: self.encoder.as_ref().map(|encoder| Encoder::new(encoder, device)),
            relative_bias: self.relative_bias(device),
            layers: self.blocks(device),
            final_norm: self.final_norm.then(|| self.norm.init(self.d_model, device)),
            project_out: is_projected.then(|| Projection::new(self.d_model, self.d_embedding(), false, device)),
            head: self.head.as_ref().map(|head| head.init(self.vocab_size(), self.d_embedding(), self.norm, device)),
            pooler: self.pooler.then(|| Pooler::new(self.d_model, device)),
            task: self.task.as_ref().map(|task| task.init(self.task_width(), self.dropout, device)),
            config: self.clone(),
        }
    }

    pub(super) fn blocks(&self, device: &Device) -> Vec<TransformerBlock> {
        (0..self.n_layers).map(|layer| self.block(layer).init(device)).collect()
    }

    pub(super) fn relative_bias(&self, device: &Device) -> Option<RelativeBias> {
        match &self.positions {
            Positions::Relative(relative) => {
                Some(relative.init(self.attention.n_heads, self.kind == ModelKind::Encoder, device))
            }
            _ => None,
        }
    }
}

/// For which positions logits are computed. For a large vocabulary they cost more than the rest of a small model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logits {
    /// Every position.
    #[default]
    All,
    /// The last position of the call.
    Last,
    /// None.
    None,
}

/// What one forward is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForwardOptions {
    /// For which positions logits are computed, where the model has a head. Default: all.
    pub logits: Logits,
    /// Whether the attention weights of each layer are returned. Default: no.
    pub weights: bool,
}

/// What a model gives.
#[derive(Clone, Debug)]
pub struct ModelOutput {
    /// The residual stream after the final norm, `[batch, seq, d_model]`.
    pub hidden: Tensor<3>,
    /// The logits, `[batch, seq, vocab_size]`, or `[batch, 1, vocab_size]` for the last position; absent without a head
    /// or where none were asked for.
    pub logits: Option<Tensor<3>>,
    /// The pooled first token, `[batch, d_model]`; absent without a pooler or with an empty sequence.
    pub pooled: Option<Tensor<2>>,
    /// The scores of labels, `[batch, seq, n_labels]` where every token has its own, otherwise `[batch, 1, n_labels]`;
    /// absent without a task head, and of an empty batch or sequence unless every token has its own.
    pub scores: Option<Tensor<3>>,
    /// The attention weights of each layer, `[batch, n_heads, seq, key_len]`; empty unless asked for.
    pub weights: Vec<Tensor<4>>,
}

/// An encoder, a decoder or both, built from a [`ModelConfig`].
#[derive(Module, Debug)]
pub struct Transformer {
    /// From token ids to the residual stream.
    pub embedding: Option<Embedding>,
    /// From images to the residual stream.
    pub patches: Option<PatchEmbedding>,
    /// The encoder whose output the blocks attend to.
    pub encoder: Option<Encoder>,
    /// The learned biases of relative positions.
    pub relative_bias: Option<RelativeBias>,
    /// The blocks.
    pub layers: Vec<TransformerBlock>,
    /// The norm after the last block.
    pub final_norm: Option<Norm>,
    /// From the model's width to that of the token table.
    pub project_out: Option<Projection>,
    /// The language-model head.
    pub head: Option<LanguageModelHead>,
    /// The pooler of the first token.
    pub pooler: Option<Pooler>,
    /// The head that gives scores for labels.
    pub task: Option<TaskHead>,
    #[module(skip)]
    config: ModelConfig,
}

impl Transformer {
    /// The configuration the model was built from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// An empty cache for this model. It grows as tokens come.
    pub fn new_cache(&self) -> Cache {
        Cache::new(&self.config)
    }

    /// Runs the model on `input`; with a `cache`, as the continuation of what the cache holds. Any split of a sequence
    /// over several calls gives the same result as one call.
    ///
    /// # Errors
    ///
    /// When a token id or type is out of range, rows have unequal lengths, images have another size than the model's,
    /// the batch differs from the cache's, a sequence is longer than learned positions reach, an encoder is given a
    /// cache, a decoder with an encoder is given no source in its first call or another one in a later call, or a kernel
    /// named in the configuration cannot honour the call on this device.
    pub fn forward(
        &self,
        input: &ModelInput,
        cache: Option<&mut Cache>,
        options: ForwardOptions,
    ) -> Result<ModelOutput, Error> {
        self.forward_observed(input, cache, options, &mut ())
    }

    /// As [`forward`](Self::forward), under the eyes of `observer`, which sees attention weights as they are made and may
    /// switch heads off.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_observed(
        &self,
        input: &ModelInput,
        cache: Option<&mut Cache>,
        options: ForwardOptions,
        observer: &mut dyn AttentionObserver,
    ) -> Result<ModelOutput, Error> {
        let collected = options.weights.then(|| self.config.attention_part());
        let observer = &mut Collector { observer, collected, weights: Vec::new() };
        let device = self.device();
        input.check(&self.config)?;
        if cache.is_some() && self.config.kind == ModelKind::Encoder {
            return Err(Error::Input("an encoder reads whole sequences and takes no cache".into()));
        }
        // From here on, an image is a sequence of hidden states.
        let seen = match (&input.source, &self.patches) {
            (Source::Pixels(images), Some(patches)) => Some(ModelInput::hidden(self.see(patches, images))),
            _ => None,
        };
        let input = seen.as_ref().unwrap_or(input);
        // Without a cache, a call is the first and last of a cache of its own that holds no keys.
        let mut alone = Cache::without_keys();
        let cache = cache.unwrap_or(&mut alone);
        let step = cache.plan(input, &self.config)?;
        let [batch, seq] = input.dims();
        self.stack().check_kernel(batch, &step, observer, &device)?;
        let memory = match &self.encoder {
            Some(encoder) => Some(self.read_source(encoder, input, cache, observer)?),
            None => None,
        };
        if let Some(memory) = &memory {
            cache.remember(memory.clone());
        }
        cache.commit(&step);

        if batch * seq == 0 {
            return Ok(self.empty_output([batch, seq]));
        }
        let x = match &input.source {
            Source::Hidden(hidden) => hidden.clone(),
            Source::Pixels(_) => return Err(Error::Input("the model takes no images".into())),
            Source::Tokens(ids) => self.embed(ids, input, &cache.positions())?,
        };
        let x = self.stack().run(x, cache, memory.as_ref(), observer);
        let pooled = self.pooler.as_ref().map(|pooler| pooler.forward(x.clone()));
        Ok(ModelOutput {
            logits: self.logits(&x, options.logits),
            scores: self.scores(&x, pooled.clone(), input),
            pooled,
            hidden: x,
            weights: std::mem::take(&mut observer.weights),
        })
    }

    /// The logits of hidden states that came from [`forward`](Self::forward).
    ///
    /// # Shapes
    ///
    /// - hidden: `[batch, seq, d_model]`
    /// - output: `[batch, seq, vocab_size]`, `None` without a head
    pub fn logits_of(&self, hidden: Tensor<3>) -> Option<Tensor<3>> {
        let head = self.head.as_ref()?;
        let x = match &self.project_out {
            Some(project_out) => project_out.forward(hidden),
            None => hidden,
        };
        Some(head.forward(x, self.embedding.as_ref()))
    }

    /// Fails where a parameter would not fit into one buffer of `device`.
    ///
    /// # Errors
    ///
    /// Names the largest parameter, its size and the limit.
    pub fn check_fits(&self, device: &Device) -> Result<(), Error> {
        let Some(limit) = backend::largest_buffer(device) else { return Ok(()) };
        let bytes = |shape: &[usize]| shape.iter().product::<usize>() as u64 * size_of::<f32>() as u64;
        let sizes = self.parameters().into_iter().map(|(name, shape)| (bytes(&shape), name));
        let largest = sizes.reduce(|largest, next| if next.0 > largest.0 { next } else { largest });
        let Some((bytes, name)) = largest.filter(|(bytes, _)| *bytes > limit) else { return Ok(()) };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(Error::Input(format!(
            "parameter `{name}` has {} MiB and this device's largest buffer is {} MiB; use a CPU backend or a device \
             with larger buffers",
            mib(bytes),
            mib(limit)
        )))
    }

    fn stack(&self) -> Stack<'_> {
        Stack {
            config: &self.config,
            layers: &self.layers,
            relative_bias: self.relative_bias.as_ref(),
            final_norm: self.final_norm.as_ref(),
        }
    }

    /// What the blocks read of the encoder: its output on the source of the first call, or what the cache remembers.
    fn read_source(
        &self,
        encoder: &Encoder,
        input: &ModelInput,
        cache: &Cache,
        observer: &mut dyn AttentionObserver,
    ) -> Result<EncodedMemory, Error> {
        let source = match (&input.encoder_input, cache.memory()) {
            (Some(source), None) => source,
            (None, Some(memory)) => return Ok(memory.clone()),
            (Some(_), Some(_)) => {
                return Err(Error::Input("the cache holds a source already; give one in the first call only".into()));
            }
            (None, None) => return Err(Error::Input("the model has an encoder and needs a source to read".into())),
        };
        let mut read = Cache::without_keys();
        let step = read.plan(source, &self.config)?;
        read.commit(&step);
        let Source::Tokens(ids) = &source.source else {
            return Err(Error::Input("an encoder's source must be token ids".into()));
        };
        let states = if source.dims().contains(&0) {
            self.empty_output(source.dims()).hidden
        } else {
            encoder.forward(self.embed(ids, source, &read.positions())?, &step, &mut read, observer)?
        };
        let layers = self.layers.iter().filter_map(|layer| layer.project_memory(states.clone())).collect();
        Ok(EncodedMemory::new(layers, read.padding_mask(&states.device())))
    }

    /// The device that the model is on.
    pub fn device(&self) -> Device {
        self.layers[0].attention.query.weight.lazy_device()
    }

    fn embed(&self, ids: &[Vec<i64>], input: &ModelInput, positions: &[Vec<usize>]) -> Result<Tensor<3>, Error> {
        let embedding = self
            .embedding
            .as_ref()
            .ok_or_else(|| Error::Input("the model has no embeddings and takes hidden states, not token ids".into()))?;
        let padding_id = match self.config.positions {
            Positions::Learned(LearnedPositions { padding_id, .. }) => padding_id,
            _ => None,
        };
        let positions: Vec<Vec<Option<usize>>> = match padding_id {
            None => positions.iter().map(|row| row.iter().copied().map(Some).collect()).collect(),
            Some(padding_id) => {
                // Positions of all rows, as each row has its own padding.
                let of_row = |row: usize| &positions[row % positions.len()];
                let rows = ids.iter().enumerate().map(|(row, ids)| {
                    ids.iter().zip(of_row(row)).map(|(id, p)| (*id != i64::from(padding_id)).then_some(*p)).collect()
                });
                rows.collect()
            }
        };
        Ok(embedding.forward(ids, &positions, input.types.as_deref()))
    }

    fn see(&self, patches: &PatchEmbedding, images: &Tensor<4>) -> Tensor<3> {
        match images.dims() {
            [0, ..] => {
                let shape = [0, self.config.max_seq_len, self.config.d_model];
                Tensor::zeros(shape, (&images.device(), images.dtype()))
            }
            _ => patches.forward(images.clone()),
        }
    }

    fn scores(&self, hidden: &Tensor<3>, pooled: Option<Tensor<2>>, input: &ModelInput) -> Option<Tensor<3>> {
        let (task, config) = (self.task.as_ref()?, self.config.task.as_ref()?);
        let x = match &self.project_out {
            Some(project_out) => project_out.forward(hidden.clone()),
            None => hidden.clone(),
        };
        Some(task.forward(x, pooled, &input.last_tokens(config.padding_id)))
    }

    fn logits(&self, hidden: &Tensor<3>, which: Logits) -> Option<Tensor<3>> {
        let seq = hidden.dims()[1];
        match which {
            Logits::All => self.logits_of(hidden.clone()),
            Logits::Last => self.logits_of(hidden.clone().slice_dim(1, seq - 1..seq)),
            Logits::None => None,
        }
    }

    fn empty_output(&self, [batch, seq]: [usize; 2]) -> ModelOutput {
        let like = &self.layers[0].attention.query;
        let zeros = |width| Tensor::zeros([batch, seq, width], (&like.weight.lazy_device(), like.dtype()));
        ModelOutput {
            hidden: zeros(self.config.d_model),
            logits: self.head.as_ref().map(|_| zeros(self.config.vocab_size())),
            pooled: None,
            scores: self
                .config
                .task
                .as_ref()
                .filter(|task| task.input == TaskInput::EveryToken)
                .map(|t| zeros(t.n_labels)),
            weights: Vec::new(),
        }
    }
}
