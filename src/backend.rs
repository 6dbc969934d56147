//! Backends by name. This is the only file that knows their names, Cargo features and peculiarities; everything else
//! takes a [`Device`].

#[cfg(feature = "remote")]
mod remote;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use burn::tensor::{Device, FloatDType};

use crate::attention::AttentionRequest;
use crate::error::{Error, advice};
#[cfg(any(feature = "flex", feature = "ndarray"))]
use crate::kernel::HostMemory;
#[cfg(feature = "remote")]
pub use remote::{DeviceServer, TOKEN_VARIABLE, open_remote_devices};

/// A kind of backend, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Burn's own CPU backend; the default.
    Flex,
    /// CPU through the ndarray crate.
    NdArray,
    /// GPU through wgpu.
    Wgpu,
    /// PyTorch's C++ library.
    LibTorch,
    /// NVIDIA GPUs through CubeCL. Passed through, not tested.
    Cuda,
    /// AMD GPUs through CubeCL. Passed through, not tested.
    Rocm,
    /// CPU through CubeCL. Passed through, not tested.
    Cpu,
    /// A device of another process or machine, which serves it.
    Remote,
}

impl Backend {
    /// Every backend, compiled in or not.
    pub const ALL: [Self; 8] =
        [Self::Flex, Self::NdArray, Self::Wgpu, Self::LibTorch, Self::Cuda, Self::Rocm, Self::Cpu, Self::Remote];

    /// The name on the command line and in files, which is also the name of the Cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::NdArray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::LibTorch => "libtorch",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Cpu => "cpu",
            Self::Remote => "remote",
        }
    }

    /// Whether this build holds the backend.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::NdArray => cfg!(feature = "ndarray"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::LibTorch => cfg!(feature = "libtorch"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Rocm => cfg!(feature = "rocm"),
            Self::Cpu => cfg!(feature = "cpu"),
            Self::Remote => cfg!(feature = "remote"),
        }
    }

    /// The backends of this build that compute in this process. `remote` is not among them: it needs an address.
    pub fn compiled() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|backend| backend.is_compiled() && *backend != Self::Remote)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device by name: a backend, and for some backends which of its devices (`wgpu:discrete:0`, `libtorch:cuda:1`,
/// `remote:ws://host:3000`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    backend: Backend,
    selector: String,
}

/// The devices that are open.
static OPEN: Mutex<Option<HashMap<DeviceName, Device>>> = Mutex::new(None);

impl DeviceName {
    /// The backend.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The default device of a backend.
    pub fn new(backend: Backend) -> Self {
        Self { backend, selector: String::new() }
    }

    /// Opens the device. The same name gives the same device for as long as the program runs.
    ///
    /// # Errors
    ///
    /// When the backend is not compiled in, has no such device, or cannot use it.
    pub fn open(&self) -> Result<Device, Error> {
        let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let open = open.get_or_insert_default();
        if let Some(device) = open.get(self) {
            return Ok(device.clone());
        }
        if !self.backend.is_compiled() {
            let problem = format!(
                "is not compiled in; build with `--features {}` (this build has {})",
                self.backend,
                Backend::compiled().map(Backend::name).collect::<Vec<_>>().join(", ")
            );
            return Err(Error::backend(self, problem));
        }
        let device = open_device(self)?;
        open.insert(self.clone(), device.clone());
        Ok(device)
    }

    fn no_such_device(&self, known: &str) -> Error {
        Error::backend(self, format!("has no device `{}`; there are {known}", self.selector))
    }
}

impl From<Backend> for DeviceName {
    fn from(backend: Backend) -> Self {
        Self::new(backend)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.backend.name())?;
        if self.selector.is_empty() { Ok(()) } else { write!(f, ":{}", self.selector) }
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, selector) = text.split_once(':').unwrap_or((text, ""));
        let name = if name == "tch" { Backend::LibTorch.name() } else { name };
        let backend = Backend::ALL.into_iter().find(|backend| backend.name() == name);
        let backend = backend.ok_or_else(|| {
            let advice = advice(name, Backend::ALL.map(Backend::name));
            Error::backend(text, format!("is not known; {advice}"))
        })?;
        Ok(Self { backend, selector: selector.to_owned() })
    }
}

// Burn marks ndarray and libtorch as deprecated from 0.22 on; this is the version that has them all.
#[allow(deprecated)]
fn open_device(name: &DeviceName) -> Result<Device, Error> {
    let selector = name.selector.as_str();
    let index = |text: &str| text.parse::<usize>().ok();
    let only_default = |device: fn() -> Device| match selector {
        "" => Ok(device()),
        _ => Err(name.no_such_device("only the default")),
    };
    let _ = (&index, &only_default);
    match name.backend {
        #[cfg(feature = "flex")]
        Backend::Flex => only_default(Device::flex),
        #[cfg(feature = "ndarray")]
        Backend::NdArray => only_default(Device::ndarray),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => open_wgpu(name),
        #[cfg(feature = "libtorch")]
        Backend::LibTorch => match selector.split_once(':') {
            None if selector.is_empty() || selector == "cpu" => Ok(Device::libtorch()),
            None if selector == "mps" => Ok(Device::libtorch_mps()),
            None if selector == "cuda" => Ok(Device::libtorch_cuda(0)),
            Some(("cuda", at)) if index(at).is_some() => Ok(Device::libtorch_cuda(index(at).unwrap_or(0))),
            _ => Err(name.no_such_device("cpu, cuda, cuda:N and mps")),
        },
        #[cfg(feature = "cuda")]
        Backend::Cuda => match index(if selector.is_empty() { "0" } else { selector }) {
            Some(at) => Ok(Device::cuda(at)),
            None => Err(name.no_such_device("numbers from 0")),
        },
        #[cfg(feature = "rocm")]
        Backend::Rocm => match index(if selector.is_empty() { "0" } else { selector }) {
            Some(at) => Ok(Device::rocm(at)),
            None => Err(name.no_such_device("numbers from 0")),
        },
        #[cfg(feature = "cpu")]
        Backend::Cpu => only_default(Device::cpu),
        #[cfg(feature = "remote")]
        Backend::Remote => remote::connect(name),
        #[allow(unreachable_patterns)]
        other => Err(Error::backend(other, "is not compiled in")),
    }
}

#[cfg(feature = "wgpu")]
fn open_wgpu(name: &DeviceName) -> Result<Device, Error> {
    use burn::tensor::DeviceKind;

    let (kind, index) = name.selector.split_once(':').unwrap_or((&name.selector, "0"));
    let kind = match (kind, index.parse::<usize>()) {
        ("", Ok(_)) => DeviceKind::DefaultDevice,
        ("cpu", Ok(_)) => DeviceKind::Cpu,
        ("discrete", Ok(index)) => DeviceKind::DiscreteGpu(index),
        ("integrated", Ok(index)) => DeviceKind::IntegratedGpu(index),
        ("virtual", Ok(index)) => DeviceKind::VirtualGpu(index),
        _ => return Err(name.no_such_device("cpu, discrete:N, integrated:N and virtual:N")),
    };
    // D22: opening by the plain constructor panics on first use where there is no adapter.
    Device::wgpu_options().device_kind(kind).init().map_err(|error| {
        let reason = error.to_string().lines().collect::<Vec<_>>().join(" ");
        let problem = format!("found no device: {reason}; install a driver (Debian: mesa-vulkan-drivers libvulkan1)");
        Error::backend(name, problem)
    })
}

/// The device in this process's own memory on which weights are drawn, so that a seed gives the same ones everywhere:
/// that of flex, or where it is not compiled in, that of ndarray, or else Burn's default device.
pub fn host_device() -> Device {
    let hosts = [Backend::Flex, Backend::NdArray].into_iter().filter(|backend| backend.is_compiled());
    hosts.map(DeviceName::new).find_map(|name| name.open().ok()).unwrap_or_default()
}

/// The number type a model computes in, by name.
///
/// # Errors
///
/// When the name is unknown or the backend of `device` does not compute in that type.
pub fn float_dtype(name: &str, backend: &DeviceName, device: &Device) -> Result<FloatDType, Error> {
    let dtype = float_dtype_named(name)?;
    if computes_in(dtype, device) {
        Ok(dtype)
    } else {
        Err(Error::backend(backend, format!("does not compute in {name}; use `--dtype f32` or another backend")))
    }
}

/// The number type called `name`, whether or not a backend has it.
///
/// # Errors
///
/// When there is no such type.
pub fn float_dtype_named(name: &str) -> Result<FloatDType, Error> {
    match name {
        "f32" => Ok(FloatDType::F32),
        "f64" => Ok(FloatDType::F64),
        "f16" => Ok(FloatDType::F16),
        "bf16" => Ok(FloatDType::BF16),
        _ => Err(Error::Input(format!("there is no number type `{name}`; there are f32, f64, f16 and bf16"))),
    }
}

/// Whether the backend of `device` computes in `dtype`. D10: ndarray has no half precision, and wgpu stores bf16 without
/// computing in it. Some Vulkan devices say that they have f64, but Vulkan's `exp` has not: softmax is then off by 1e-2.
fn computes_in(dtype: FloatDType, device: &Device) -> bool {
    let is_wrong = matches!(dtype, FloatDType::BF16 | FloatDType::F64) && kind_of(device) == Some(Kind::Cube);
    device.supports_dtype(dtype) && !is_wrong
}

// A build without a backend never makes its variant.
#[allow(dead_code)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flex,
    NdArray,
    LibTorch,
    Cube,
}

/// Which implementation stands behind a device.
fn kind_of(device: &Device) -> Option<Kind> {
    use burn::backend::DispatchDevice;
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => Some(Kind::Flex),
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => Some(Kind::NdArray),
        #[cfg(feature = "libtorch")]
        DispatchDevice::LibTorch(_) => Some(Kind::LibTorch),
        #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "cpu"))]
        DispatchDevice::Cube(_) => Some(Kind::Cube),
        #[allow(unreachable_patterns)]
        _ => None,
    }
}

/// Whether Burn lets copies of a model on `device` be trained side by side. It marks their parameters for a reduction that
/// flex, ndarray and libtorch do not have, and stops where they are marked.
#[cfg(feature = "train")]
pub(crate) fn has_distributed_parameters(device: &Device) -> bool {
    !matches!(kind_of(device), Some(Kind::Flex | Kind::NdArray | Kind::LibTorch))
}

/// How kernels of our own reach the numbers of tensors on `device`; `None` where they do not.
#[cfg(any(feature = "flex", feature = "ndarray"))]
pub(crate) fn host_memory(device: &Device) -> Option<HostMemory> {
    match kind_of(device)? {
        Kind::Flex => Some(HostMemory::InPlace),
        Kind::NdArray => Some(HostMemory::Copied),
        Kind::LibTorch | Kind::Cube => None,
    }
}

/// What a device calls itself, or which of its backend's devices it is.
pub fn device_label(device: &Device) -> String {
    #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "cpu"))]
    if let Some(identity) = device.identity() {
        return identity.name;
    }
    // `Flex(Cpu)` is said of the device `Cpu`.
    let name = format!("{:?}", device.as_dispatch());
    name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(&name).to_owned()
}

/// The largest buffer that the device allocates, in bytes, where it has such a limit.
pub fn largest_buffer(device: &Device) -> Option<u64> {
    #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "cpu"))]
    use burn::backend::DispatchDevice;
    match device.clone().inner().as_dispatch() {
        #[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "cpu"))]
        DispatchDevice::Cube(device) => Some(device.client().properties().memory.max_page_size),
        #[allow(unreachable_patterns)]
        _ => None,
    }
}

/// Whether attention has a kernel of ours on `device`.
pub(crate) fn has_attention_kernel(device: &Device) -> bool {
    matches!(kind_of(device), Some(Kind::Flex | Kind::NdArray)) && crate::kernel::is_on()
}

/// Whether that kernel has a backward pass.
pub(crate) fn has_attention_gradient(device: &Device) -> bool {
    matches!(kind_of(device), Some(Kind::Flex)) && crate::kernel::is_on()
}

/// Whether the backend has an attention operation of its own.
pub(crate) fn has_fused_attention(device: &Device) -> bool {
    matches!(kind_of(device), Some(Kind::Flex | Kind::LibTorch))
}

/// Whether tensors are libtorch's.
pub(crate) fn is_libtorch(device: &Device) -> bool {
    matches!(kind_of(device), Some(Kind::LibTorch))
}

/// Whether the fused attention operation, our own or the backend's, gives the right answer to `request`.
pub(crate) fn fused_attention(request: &AttentionRequest, device: &Device) -> Result<(), String> {
    match kind_of(device) {
        _ if has_attention_kernel(device) => Ok(()),
        // Reads key/value heads by group, aligns causality to the end and gives zeros for rows without keys.
        Some(Kind::Flex) => Ok(()),
        // D01: burn-tch drops the cap, and computes a bias without the operation.
        Some(Kind::LibTorch) if request.softcapped || request.biased => {
            Err("the fused attention kernel of libtorch cannot cap scores or add a bias".into())
        }
        Some(Kind::LibTorch) => Ok(()),
        // D05: without grouped heads the operation is the composed one; with them it panics.
        Some(Kind::NdArray) => Err("ndarray has no fused attention kernel".into()),
        // D04, D05, D06: which kernel runs depends on a timing race, some multiply in 16 bits, and grouped heads read
        // past the end.
        Some(Kind::Cube) | None => Err("this backend has no fused attention kernel with a fixed result".into()),
    }
}

/// Whether fused attention is also the faster way.
pub(crate) fn prefers_fused_attention(request: &AttentionRequest, device: &Device) -> bool {
    let [_, _, query_len, _] = request.scores;
    match kind_of(device) {
        Some(Kind::Flex | Kind::LibTorch) => true,
        // The kernel copies keys and values, which pays where enough queries read them.
        Some(Kind::NdArray) => query_len >= 8,
        Some(Kind::Cube) | None => false,
    }
}
