//! What a case sees of the place it runs at: where its inputs and weights come from and where its outputs go.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Device, Gradients, Tensor, TensorData};

use super::numbers::draw;
use crate::attention::AttentionKernel;
use crate::error::Error;

/// A computation that is the same on every backend.
pub(super) type Run = Box<dyn Fn(&mut Probe) -> Result<(), Error>>;

/// A place where cases run.
pub(super) struct Target {
    /// The device, without autodiff.
    pub device: Device,
    /// The type of inputs and weights.
    pub dtype: DType,
    /// Whether this is the oracle, which always takes the plain way: composed attention, no cache, no padding.
    pub is_oracle: bool,
    /// Added to the first number of every parameter, to see that a wrong weight does not pass.
    pub fault: f64,
}

/// A named list of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

/// What a case gave.
pub(super) struct Evaluation {
    pub outputs: Vec<Numbers>,
    /// Gradients of inputs and parameters; empty unless they were asked for.
    pub gradients: Vec<Numbers>,
}

type Leaf = Box<dyn Fn(&Gradients, &mut Vec<Numbers>)>;

/// The inputs, weights and outputs of one run of a case.
pub(super) struct Probe<'a> {
    target: &'a Target,
    device: Device,
    leaves: Vec<Leaf>,
    outputs: Vec<(String, Vec<usize>, Tensor<1>)>,
}

/// Runs a case; with `gradients`, on the autodiff device, followed by the backward pass of the sum of all outputs, each
/// number weighted by a fixed factor.
pub(super) fn evaluate(run: &Run, target: &Target, gradients: bool) -> Result<Evaluation, Error> {
    let device = if gradients { target.device.clone().autodiff() } else { target.device.clone() };
    let mut probe = Probe { target, device, leaves: Vec::new(), outputs: Vec::new() };
    run(&mut probe)?;
    let Probe { device, leaves, outputs, .. } = probe;
    let mut found = Vec::new();
    if gradients {
        let weighted = outputs.iter().map(|(name, _, output)| {
            let factors = draw(&format!("{name}.gradient"), output.dims()[0], 1.0);
            (output.clone() * upload(factors, &[output.dims()[0]], target.dtype, &device)).sum()
        });
        let loss = weighted.reduce(|a, b| a + b).expect("a case has outputs");
        let gradients = loss.backward();
        for leaf in &leaves {
            leaf(&gradients, &mut found);
        }
    }
    let read = |(name, shape, output): (String, Vec<usize>, Tensor<1>)| Numbers { name, shape, values: read(output) };
    Ok(Evaluation { outputs: outputs.into_iter().map(read).collect(), gradients: found })
}

impl Probe<'_> {
    /// Where masks, angles and modules belong.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of inputs and weights.
    pub fn dtype(&self) -> DType {
        self.target.dtype
    }

    /// Whether this is the oracle.
    pub fn is_oracle(&self) -> bool {
        self.target.is_oracle
    }

    /// `kernel`, or for the oracle the composed one. Where gradients are recorded, no fused kernel is asked for.
    pub fn kernel(&self, kernel: AttentionKernel) -> AttentionKernel {
        match kernel {
            _ if self.is_oracle() => AttentionKernel::Composed,
            AttentionKernel::Fused if self.device.is_autodiff() => AttentionKernel::Auto,
            kernel => kernel,
        }
    }

    /// An input with these values.
    pub fn values<const D: usize>(&mut self, name: &str, shape: [usize; D], values: Vec<f64>) -> Tensor<D> {
        let flat: Tensor<1> = upload(values, &[shape.iter().product()], self.target.dtype, &self.device);
        if !self.device.is_autodiff() {
            return flat.reshape(shape);
        }
        let leaf = flat.require_grad();
        let (name, source) = (name.to_owned(), leaf.clone());
        self.leaves.push(Box::new(move |gradients, found| found.push(gradient_of(&name, &source, gradients))));
        leaf.reshape(shape)
    }

    /// An input of drawn numbers around 0 with the standard deviation 1.
    pub fn input<const D: usize>(&mut self, name: &str, shape: [usize; D]) -> Tensor<D> {
        self.values(name, shape, draw(name, shape.iter().product(), 1.0))
    }

    /// A boolean tensor.
    pub fn flags<const D: usize>(&self, shape: [usize; D], values: Vec<bool>) -> Tensor<D, Bool> {
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// A module with drawn weights, the same for the same name and parameter path.
    pub fn module<M: Module + 'static>(&mut self, name: &str, module: M) -> M {
        let (dtype, device, fault) = (self.target.dtype, self.device.clone(), self.target.fault);
        let module = module.map(&mut Fill { path: Path::new(name), dtype, device, fault });
        if self.device.is_autodiff() {
            let (name, source) = (name.to_owned(), module.clone());
            self.leaves.push(Box::new(move |gradients, found| {
                source.visit(&mut Collect { path: Path::new(&name), gradients, found });
            }));
        }
        module
    }

    /// Takes an output.
    pub fn output<const D: usize>(&mut self, name: &str, output: Tensor<D>) {
        let shape = output.dims();
        self.outputs.push((name.to_owned(), shape.to_vec(), output.flatten(0, D - 1)));
    }
}

/// A tensor with these values in the type `dtype`.
fn upload<const D: usize>(values: Vec<f64>, shape: &[usize], dtype: DType, device: &Device) -> Tensor<D> {
    let data = TensorData::new(values, shape.to_vec()).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    if tensor.shape().num_elements() == 0 { Vec::new() } else { tensor.into_data().iter::<f64>().collect() }
}

/// The gradient of a leaf; zeros where the result does not depend on it.
fn gradient_of<const D: usize>(name: &str, leaf: &Tensor<D>, gradients: &Gradients) -> Numbers {
    let shape = leaf.dims().to_vec();
    let values = match leaf.grad(gradients) {
        Some(gradient) => read(gradient),
        None => vec![0.0; shape.iter().product()],
    };
    Numbers { name: name.to_owned(), shape, values }
}

/// Where in a module a traversal is: names of fields, and for each whether a linear projection holds it.
struct Path(Vec<(String, bool)>);

impl Path {
    fn new(root: &str) -> Self {
        Self(vec![(root.to_owned(), false)])
    }

    fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container == "Struct:Projection"));
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn text(&self) -> String {
        self.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    fn is(&self, name: &str) -> bool {
        self.0.last().is_some_and(|(last, _)| last == name)
    }

    fn is_projection(&self) -> bool {
        self.0.last().is_some_and(|(_, is_linear)| *is_linear)
    }
}

/// Fills a module with drawn numbers.
struct Fill {
    path: Path,
    dtype: DType,
    device: Device,
    fault: f64,
}

impl ModuleMapper for Fill {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape: [usize; D] = param.lazy_shape().dims();
        let len = shape.iter().product();
        let mut values = if D == 1 {
            // A norm's weight starts at 1, or at 0 where 1 is added to it; it and every bias vary by half of 1.
            let start = if self.path.is("weight") { read(param.val())[0] } else { 0.0 };
            draw(&self.path.text(), len, 0.29).iter().map(|x| f64::from((start + x) as f32)).collect()
        } else {
            // The weight of a projection is `[in, out]`, a table has one row per entry.
            // A kernel is `[out, in, ...]`.
            let width = match D {
                _ if self.path.is_projection() => shape[0],
                4 => shape[1..].iter().product(),
                _ => shape[D - 1],
            };
            draw(&self.path.text(), len, (width as f64).sqrt().recip())
        };
        if let Some(first) = values.first_mut() {
            *first += self.fault;
        }
        let tensor = upload(values, &shape, self.dtype, &self.device);
        Param::initialized(param.id, tensor.set_require_grad(self.device.is_autodiff()))
    }
}

/// Collects the gradients of a module's parameters.
struct Collect<'a> {
    path: Path,
    gradients: &'a Gradients,
    found: &'a mut Vec<Numbers>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(gradient_of(&self.path.text(), &param.val(), self.gradients));
    }
}
