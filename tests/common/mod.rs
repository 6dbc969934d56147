//! What the test programs share: devices, fixtures, seeded numbers, comparison, and running a model.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, FloatDType, Gradients, Tensor, TensorData};
use burnformer::attention::{AttentionMask, ScoreOptions, scaled_dot_product_attention};
use burnformer::backend::{Backend, DeviceName};
use burnformer::error::Error;
use burnformer::model::{Cache, ForwardOptions, Logits, ModelConfig, ModelInput, Transformer};
use burnformer::pretrained::{Checkpoint, read_config};
use burnformer::projection::Projection;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The relative error of one rounding in 32 bits.
pub const EPSILON: f64 = f32::EPSILON as f64;

// ---------------------------------------------------------------------------------------------------------------------
// Devices
// ---------------------------------------------------------------------------------------------------------------------

/// Every backend of this build with its default device. A backend that is compiled in but finds no device fails the
/// test: skipping it would turn a broken installation into a pass.
pub fn devices() -> Vec<(&'static str, Device)> {
    let open = |backend: Backend| match DeviceName::new(backend).open() {
        Ok(device) => (backend.name(), device),
        Err(error) => panic!("{error}"),
    };
    let devices: Vec<_> = Backend::compiled().map(open).collect();
    assert!(!devices.is_empty(), "this build has no backend");
    devices
}

/// The device of one backend, which must be compiled in.
pub fn device(backend: Backend) -> Device {
    DeviceName::new(backend).open().unwrap_or_else(|error| panic!("{error}"))
}

/// The default backend, for tests of what does not depend on the backend.
pub fn flex() -> Device {
    device(Backend::Flex)
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparison
// ---------------------------------------------------------------------------------------------------------------------

/// All numbers of a tensor, on the host.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The largest absolute value.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, value| value.abs().max(most))
}

/// The worst difference and its index. Refuses what would make a comparison pass by accident: nothing to compare,
/// different lengths, and numbers that are not finite.
pub fn worst(name: &str, got: &[f64], want: &[f64]) -> (f64, usize) {
    assert_eq!(got.len(), want.len(), "{name}: got {} numbers, want {}", got.len(), want.len());
    assert!(!want.is_empty(), "{name}: there is nothing to compare");
    for (what, values) in [("got", got), ("want", want)] {
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            panic!("{name}: {what} {} at index {index} of {}", values[index], values.len());
        }
    }
    let differences = got.iter().zip(want).map(|(got, want)| (got - want).abs());
    differences.zip(0..).max_by(|a, b| a.0.total_cmp(&b.0)).expect("there is something to compare")
}

/// Fails where some number is further than `tolerance` from the wanted one, and says which is the worst.
#[track_caller]
pub fn assert_close(name: &str, got: &[f64], want: &[f64], tolerance: f64) {
    let (error, index) = worst(name, got, want);
    let outside = got.iter().zip(want).filter(|(got, want)| (*got - *want).abs() > tolerance).count();
    assert!(
        error <= tolerance,
        "{name}: off by {error:.3e} at index {index}: got {}, want {}; {outside} of {} numbers are off by more than \
         {tolerance:.1e} (largest wanted: {:.3e})",
        got[index],
        want[index],
        want.len(),
        largest(want)
    );
}

/// The twin of [`assert_close`]: fails where two results that must differ do not differ by `distance` anywhere. It shows
/// that a comparison could have failed.
#[track_caller]
pub fn assert_apart(name: &str, one: &[f64], other: &[f64], distance: f64) {
    let (difference, _) = worst(name, one, other);
    assert!(difference >= distance, "{name}: must differ by {distance:.1e}, differ by only {difference:.3e}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Seeded numbers
// ---------------------------------------------------------------------------------------------------------------------

/// Seeded random numbers on the host (SplitMix64), the same on every backend.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `(0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A whole number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.uniform() * limit as f64) as usize
    }

    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    pub fn tensor<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        Array { shape: shape.to_vec(), values: self.normals(shape.iter().product()) }.tensor(device)
    }

    /// Rows of token ids below `vocab_size`.
    pub fn tokens(&mut self, rows: usize, len: usize, vocab_size: usize) -> Vec<Vec<i64>> {
        (0..rows).map(|_| (0..len).map(|_| self.below(vocab_size) as i64).collect()).collect()
    }
}

/// The module with every parameter drawn anew: matrices with a deviation of 1/√(fan in), so that attention is far from
/// uniform, norm weights around 1, and biases that show. A parameter's numbers depend on the seed and its place only.
pub fn randomised<M: Module>(module: M, seed: u64) -> M {
    struct Randomise {
        seed: u64,
        path: Vec<String>,
    }
    impl ModuleMapper for Randomise {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.push(format!("{container}.{name}"));
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let path = self.path.join("/");
            let hash = path.bytes().fold(self.seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
            });
            let old = param.val();
            let (shape, dtype, device) = (old.dims(), old.dtype(), old.device());
            let (centre, deviation) = match () {
                () if path.ends_with("Struct:Projection.weight") => (0.0, (shape[0] as f64).sqrt().recip()),
                () if path.ends_with("Struct:Norm.weight") => (1.0, 0.3),
                () if D == 1 => (0.0, 0.3),
                // Tables and the head: one row per token.
                () => (0.0, (shape[1] as f64).sqrt().recip()),
            };
            let mut numbers = Numbers::new(hash);
            let count: usize = shape.iter().product();
            let drawn = (0..count).map(|_| centre + deviation * numbers.normal());
            let data = TensorData::new(drawn.collect::<Vec<f64>>(), shape).convert_dtype(dtype);
            let requires_grad = old.is_require_grad();
            param.map(|_| Tensor::from_data(data, (&device, dtype)).set_require_grad(requires_grad))
        }
    }
    module.map(&mut Randomise { seed, path: Vec::new() })
}

// ---------------------------------------------------------------------------------------------------------------------
// Fixtures
// ---------------------------------------------------------------------------------------------------------------------

/// Numbers with a shape, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Array {
    /// The numbers on a device, in 32 bits.
    pub fn tensor<const D: usize>(&self, device: &Device) -> Tensor<D> {
        self.tensor_of(FloatDType::F32, device)
    }

    /// The numbers on a device, in the type `dtype`.
    pub fn tensor_of<const D: usize>(&self, dtype: FloatDType, device: &Device) -> Tensor<D> {
        let dtype = DType::from(dtype);
        let data = TensorData::new(self.values.clone(), self.shape.clone()).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    /// A mask: true where the number is not zero.
    pub fn mask<const D: usize>(&self, device: &Device) -> Tensor<D, Bool> {
        let hidden: Vec<bool> = self.values.iter().map(|value| *value != 0.0).collect();
        Tensor::from_data(TensorData::new(hidden, self.shape.clone()), device)
    }

    /// A matrix with its axes swapped.
    pub fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("only a matrix is transposed, not {:?}", self.shape) };
        let at = |index: usize| self.values[index % rows * columns + index / rows];
        Self { shape: vec![columns, rows], values: (0..rows * columns).map(at).collect() }
    }

    /// A part of the first axis.
    pub fn part(&self, rows: std::ops::Range<usize>) -> Self {
        let stride: usize = self.shape[1..].iter().product();
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Self { shape, values: self.values[rows.start * stride..rows.end * stride].to_vec() }
    }

    /// Arrays one after another along the first axis.
    pub fn joined(parts: &[Self]) -> Self {
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        Self { shape, values: parts.iter().flat_map(|part| part.values.iter().copied()).collect() }
    }

    /// A matrix of whole numbers as rows.
    pub fn rows(&self) -> Vec<Vec<i64>> {
        let width = *self.shape.last().expect("an array has an axis");
        self.values.chunks(width).map(|row| row.iter().map(|value| *value as i64).collect()).collect()
    }
}

/// The folder of the fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A safetensors file.
pub struct Fixture {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Fixture {
    /// Opens a file of the fixtures folder.
    pub fn open(name: &str) -> Self {
        Self::at(&fixtures().join(name))
    }

    pub fn at(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path: path.to_owned(), bytes }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// All tensors by name.
    pub fn all(&self) -> BTreeMap<String, Array> {
        self.tensors().iter().map(|(name, view)| (name.to_owned(), read(&view))).collect()
    }

    /// One tensor.
    pub fn array(&self, name: &str) -> Array {
        let tensors = self.tensors();
        read(&tensors.tensor(name).unwrap_or_else(|error| panic!("{}: {error}", self.path.display())))
    }

    /// The numbers of one tensor.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.array(name).values
    }

    /// The rows of a matrix of whole numbers.
    pub fn rows(&self, name: &str) -> Vec<Vec<i64>> {
        self.array(name).rows()
    }

    /// The rows of an attention mask as padding: true where the token is padding.
    pub fn padding(&self, name: &str) -> Vec<Vec<bool>> {
        self.rows(name).iter().map(|row| row.iter().map(|visible| *visible == 0).collect()).collect()
    }
}

fn read(view: &TensorView) -> Array {
    let bytes = view.data();
    let values = match view.dtype() {
        Dtype::F32 => bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Dtype::F64 => bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        Dtype::I64 => bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        Dtype::BOOL => bytes.iter().map(|b| f64::from(*b)).collect(),
        other => panic!("fixtures hold no {other:?}"),
    };
    Array { shape: view.shape().to_vec(), values }
}

/// The values of small functions.
pub fn functional() -> Value {
    let path = fixtures().join("functional.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON number, or lists of numbers, as an array. Booleans are 0 and 1.
pub fn array_of(value: &Value) -> Array {
    match value {
        Value::Array(items) => {
            let items: Vec<Array> = items.iter().map(array_of).collect();
            let mut shape = vec![items.len()];
            shape.extend(items.first().map_or(&[][..], |item| &item.shape[..]));
            Array { shape, values: items.into_iter().flat_map(|item| item.values).collect() }
        }
        Value::Bool(flag) => Array { shape: Vec::new(), values: vec![f64::from(u8::from(*flag))] },
        number => {
            let number = number.as_f64().unwrap_or_else(|| panic!("{number} is no number"));
            Array { shape: Vec::new(), values: vec![number] }
        }
    }
}

/// A JSON list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    array_of(value).values
}

// ---------------------------------------------------------------------------------------------------------------------
// PyTorch's layout
// ---------------------------------------------------------------------------------------------------------------------

/// Fills a projection from PyTorch's weight, `[out, in]`, and bias.
pub fn fill(linear: &mut Projection, weight: &Array, bias: Option<&Array>) {
    let device = linear.weight.lazy_device();
    let weight = weight.transposed();
    assert_eq!(linear.weight.lazy_shape().as_slice(), weight.shape, "shape of a projection");
    linear.weight = Param::from_tensor(weight.tensor(&device));
    assert_eq!(linear.bias.is_some(), bias.is_some(), "bias of a projection");
    linear.bias = bias.map(|bias| Param::from_tensor(bias.tensor(&device)));
}

/// The gradient of a parameter.
pub fn gradient<const D: usize>(name: &str, of: &Tensor<D>, gradients: &Gradients) -> Array {
    let gradient = of.grad(gradients).unwrap_or_else(|| panic!("{name} has no gradient"));
    Array { shape: gradient.dims().to_vec(), values: values(gradient) }
}

/// The gradients of a projection in PyTorch's layout: weight `[out, in]` and bias.
pub fn projection_gradients(name: &str, linear: &Projection, gradients: &Gradients) -> [Array; 2] {
    let bias = linear.bias.as_ref().expect("the projection has a bias");
    [gradient(name, &linear.weight.val(), gradients).transposed(), gradient(name, &bias.val(), gradients)]
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention on five keys
// ---------------------------------------------------------------------------------------------------------------------

/// Three queries over five keys, one head of two features, scale 1/√2: small enough to follow by hand, and with more
/// keys than queries. The answers lie in `functional.json`.
pub struct FiveKeys {
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub device: Device,
}

impl FiveKeys {
    pub fn new(device: &Device) -> Self {
        let set = &functional()["attention"];
        let tensor = |name: &str| {
            let Array { shape, values } = array_of(&set[name]);
            Array { shape: [vec![1, 1], shape].concat(), values }.tensor(device)
        };
        Self { query: tensor("q"), key: tensor("k"), value: tensor("v"), device: device.clone() }
    }

    /// The six numbers of the output.
    pub fn attend(&self, mask: &AttentionMask, bias: Option<&Tensor<4>>, options: &ScoreOptions) -> Vec<f64> {
        let (query, key, value) = (self.query.clone(), self.key.clone(), self.value.clone());
        values(scaled_dot_product_attention(query, key, value, mask, bias, options).context)
    }

    /// A mask of 3 × 5 pairs from rows of `x` (hidden) and `.`.
    pub fn pairs(&self, rows: [&str; 3]) -> Tensor<4, Bool> {
        let hidden: Vec<bool> = rows.iter().flat_map(|row| row.chars().map(|c| c == 'x')).collect();
        Tensor::from_data(TensorData::new(hidden, [1, 1, 3, 5]), &self.device)
    }

    /// A bias of 3 × 5 scores: `amount` where the row has an `x`, 0 elsewhere.
    pub fn bias(&self, rows: [&str; 3], amount: f64) -> Tensor<4> {
        let bias = rows.iter().flat_map(|row| row.chars().map(|c| if c == 'x' { amount } else { 0.0 }));
        Array { shape: vec![1, 1, 3, 5], values: bias.collect() }.tensor(&self.device)
    }

    /// Padding over the five keys.
    pub fn padding(&self, row: &str) -> Tensor<2, Bool> {
        let hidden: Vec<bool> = row.chars().map(|c| c == 'x').collect();
        Tensor::from_data(TensorData::new(hidden, [1, 5]), &self.device)
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Checkpoints
// ---------------------------------------------------------------------------------------------------------------------

/// The folder of a tiny checkpoint.
pub fn checkpoint_folder(name: &str) -> PathBuf {
    fixtures().join("checkpoints").join(name)
}

/// A tiny checkpoint on a device, in 32 bits.
pub fn load(name: &str, device: &Device) -> Transformer {
    let checkpoint = Checkpoint::open(checkpoint_folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (model, _) = checkpoint.load(device, FloatDType::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
    model
}

/// What a tiny checkpoint must give.
pub fn golden(name: &str) -> Fixture {
    Fixture::at(&checkpoint_folder(name).join("golden.safetensors"))
}

/// A tiny checkpoint whose files a test changes before it is opened.
pub struct Changed {
    folder: tempfile::TempDir,
}

impl Changed {
    /// A copy with the config of that file name.
    pub fn copy(name: &str, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let from = checkpoint_folder(name);
        for (source, target) in [(config, "config.json"), ("model.safetensors", "model.safetensors")] {
            std::fs::copy(from.join(source), folder.path().join(target))
                .unwrap_or_else(|error| panic!("{name}/{source}: {error}"));
        }
        Self { folder }
    }

    /// A copy in the spelling of configs that are published today.
    pub fn new(name: &str) -> Self {
        Self::copy(name, "config.json")
    }

    /// A copy in the spelling of configs before that.
    pub fn old(name: &str) -> Self {
        Self::copy(name, "config.old.json")
    }

    /// Changes the config.
    #[must_use]
    pub fn config(self, edit: impl FnOnce(&mut Value)) -> Self {
        let path = self.folder.path().join("config.json");
        let mut config =
            serde_json::from_slice(&std::fs::read(&path).expect("the config can be read")).expect("the config is JSON");
        edit(&mut config);
        std::fs::write(path, config.to_string()).expect("the config can be written");
        self
    }

    /// Sets one key of the config.
    #[must_use]
    pub fn with(self, key: &str, value: impl Into<Value>) -> Self {
        self.config(|config| config[key] = value.into())
    }

    /// Takes one key out of the config; it must be there.
    #[must_use]
    pub fn without(self, key: &str) -> Self {
        self.config(|config| {
            let keys = config.as_object_mut().expect("the config is an object");
            assert!(keys.shift_remove(key).is_some(), "the config has no `{key}`");
        })
    }

    /// Changes the weights.
    #[must_use]
    pub fn weights(self, edit: impl FnOnce(&mut BTreeMap<String, Array>)) -> Self {
        let path = self.folder.path().join("model.safetensors");
        let mut tensors = Fixture::at(&path).all();
        edit(&mut tensors);
        let bytes: BTreeMap<&String, Vec<u8>> = tensors
            .iter()
            .map(|(name, array)| (name, array.values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()))
            .collect();
        let views = tensors.iter().map(|(name, array)| {
            (name, TensorView::new(Dtype::F32, array.shape.clone(), &bytes[name]).expect("the shape fits"))
        });
        let file = safetensors::serialize(views, None).expect("the tensors can be written");
        std::fs::write(path, file).expect("the weights can be written");
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The configuration of the changed config file, whatever the weights are.
    pub fn model_config(&self) -> Result<ModelConfig, Error> {
        read_config(self.folder.path().join("config.json"))
    }

    /// Opens and loads the changed checkpoint.
    pub fn load(&self, device: &Device) -> Result<Transformer, Error> {
        Ok(Checkpoint::open(self.folder.path())?.load(device, FloatDType::F32)?.0)
    }

    /// The logits of the changed checkpoint on flex.
    pub fn logits(&self, rows: &[Vec<i64>]) -> Vec<f64> {
        let model = self.load(&flex()).unwrap_or_else(|error| panic!("{error}"));
        logits(&model, &ModelInput::tokens(rows))
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Running a model
// ---------------------------------------------------------------------------------------------------------------------

/// The logits of every position, `[batch, seq, vocab_size]`.
pub fn logits(model: &Transformer, input: &ModelInput) -> Vec<f64> {
    let output = model.forward(input, None, ForwardOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    values(output.logits.expect("the model has a head"))
}

/// The logits of every position when the rows are fed in chunks of these lengths.
pub fn logits_in_chunks(model: &Transformer, rows: &[Vec<i64>], chunks: &[usize]) -> Vec<f64> {
    logits_in_chunks_after(model, None, rows, chunks)
}

/// The same, for a model whose encoder has read `source`.
pub fn logits_in_chunks_after(
    model: &Transformer,
    source: Option<&ModelInput>,
    rows: &[Vec<i64>],
    chunks: &[usize],
) -> Vec<f64> {
    assert_eq!(chunks.iter().sum::<usize>(), rows[0].len(), "the chunks make up the rows");
    let mut cache = model.new_cache();
    let mut start = 0;
    let parts = chunks.iter().map(|len| {
        let part: Vec<Vec<i64>> = rows.iter().map(|row| row[start..start + len].to_vec()).collect();
        let mut input = ModelInput::tokens(&part);
        if let (0, Some(source)) = (start, source) {
            input = input.with_source(source.clone());
        }
        start += len;
        let output = model.forward(&input, Some(&mut cache), ForwardOptions::default());
        output.unwrap_or_else(|error| panic!("chunks {chunks:?}: {error}")).logits.expect("the model has a head")
    });
    values(Tensor::cat(parts.collect(), 1))
}

/// The token with the largest logit of each row of `logits`; the lowest id where several are equal.
pub fn argmax(logits: &[f64], vocab_size: usize) -> Vec<i64> {
    let best = |row: &[f64]| (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("there are logits");
    logits.chunks(vocab_size).map(|row| best(row) as i64).collect()
}

/// Greedy decoding, one token at a time.
pub struct Greedy<'a> {
    model: &'a Transformer,
    cache: Option<Cache>,
    rows: Vec<Vec<i64>>,
    padding: Vec<Vec<bool>>,
    fed: usize,
    prompt: usize,
}

impl<'a> Greedy<'a> {
    pub fn new(model: &'a Transformer, rows: &[Vec<i64>], cached: bool) -> Self {
        Self {
            model,
            cache: cached.then(|| model.new_cache()),
            rows: rows.to_vec(),
            padding: rows.iter().map(|row| vec![false; row.len()]).collect(),
            fed: 0,
            prompt: rows[0].len(),
        }
    }

    #[must_use]
    pub fn with_padding(mut self, padding: Vec<Vec<bool>>) -> Self {
        self.padding = padding;
        self
    }

    /// Goes on with a cache that was used before.
    #[must_use]
    pub fn with_cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The cache, to be used again.
    pub fn into_cache(self) -> Option<Cache> {
        self.cache
    }

    /// Adds one token to each row.
    pub fn step(&mut self) {
        let from = if self.cache.is_some() { self.fed } else { 0 };
        let rows: Vec<Vec<i64>> = self.rows.iter().map(|row| row[from..].to_vec()).collect();
        let padding = self.padding.iter().map(|row| row[from..].to_vec()).collect();
        self.fed = self.rows[0].len();
        let input = ModelInput::tokens(&rows).with_padding(padding);
        let options = ForwardOptions { logits: Logits::Last, ..ForwardOptions::default() };
        let output = self.model.forward(&input, self.cache.as_mut(), options).unwrap_or_else(|error| panic!("{error}"));
        let logits = values(output.logits.expect("the model has a head"));
        assert!(logits.iter().all(|logit| logit.is_finite()), "logits are not finite");
        for (row, token) in self.rows.iter_mut().zip(argmax(&logits, self.model.config().vocab_size())) {
            row.push(token);
        }
        for row in &mut self.padding {
            row.push(false);
        }
    }

    /// The tokens after the prompt.
    pub fn found(&self) -> Vec<Vec<i64>> {
        self.rows.iter().map(|row| row[self.prompt..].to_vec()).collect()
    }

    /// The first `count` tokens after the prompt.
    pub fn take(mut self, count: usize) -> Vec<Vec<i64>> {
        (0..count).for_each(|_| self.step());
        self.found()
    }
}
