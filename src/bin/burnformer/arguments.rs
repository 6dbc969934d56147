//! Arguments that several commands share.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{Device, FloatDType, Tensor};
use burnformer::Error;
use burnformer::backend::{Backend, DeviceName, float_dtype};
use clap::Args;

use crate::{last_resort, output};

/// How results are shown.
#[derive(Args)]
pub struct Show {
    /// Print one JSON document on stdout.
    #[arg(long)]
    pub json: bool,
    /// Print nothing but results and errors.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Show {
    /// Says something that is no result.
    pub fn note(&self, text: impl fmt::Display) {
        if !self.quiet {
            output::to_stderr(&text.to_string());
        }
    }
}

/// Where and in which number type a model computes.
#[derive(Args)]
pub struct Compute {
    /// Backend, with a device where it has several (wgpu:discrete:0, libtorch:cuda:0, remote:ws://HOST:PORT) [default: flex]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Number type: f32, f64, f16 or bf16.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub dtype: String,
    #[command(flatten)]
    pub show: Show,
}

/// A device that is open and works.
pub struct Target {
    pub name: DeviceName,
    pub device: Device,
    pub dtype: FloatDType,
    /// Whether warnings are kept back.
    pub quiet: bool,
}

impl Compute {
    /// Opens what the flags name.
    pub fn open(&self) -> Result<Target, Error> {
        let name = default_backend(self.backend.as_deref())?;
        let device = open_working(&name)?;
        let dtype = float_dtype(&self.dtype, &name, &device)?;
        Ok(Target { name, device, dtype, quiet: self.show.quiet })
    }
}

/// The device that is named, or the default device of this build's first backend.
pub fn default_backend(name: Option<&str>) -> Result<DeviceName, Error> {
    match name {
        Some(name) => name.parse(),
        None => Backend::compiled()
            .next()
            .map(DeviceName::new)
            .ok_or_else(|| Error::backend("none", "this build holds no backend; build with `--features flex`")),
    }
}

/// Opens a device and computes something on it: some backends find out only then that there is nothing to compute on.
pub fn open_working(name: &DeviceName) -> Result<Device, Error> {
    let opened = last_resort::catch(|| {
        let device = name.open()?;
        let sum: f32 = Tensor::<1>::ones([2], &device).sum().into_scalar();
        Ok((device, sum))
    });
    match opened {
        Ok(Ok((device, 2.0))) => Ok(device),
        Ok(Ok((_, sum))) => Err(Error::backend(name, format!("computes wrongly: 1 + 1 = {sum}"))),
        Ok(Err(error)) => Err(error),
        Err(panic) => Err(Error::backend(name, format!("cannot be used: {panic}"))),
    }
}

/// One row of whole numbers, separated by commas.
#[derive(Clone, Debug)]
pub struct Row<T>(pub Vec<T>);

impl<T: FromStr> FromStr for Row<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let number = |part: &str| part.trim().parse().map_err(|_| format!("`{part}` is not a number that fits here"));
        text.split(',').map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// A size of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(size) => Ok(size),
        Err(_) => Err("must be a whole number of at least 1".into()),
    }
}

/// The devices that are named, or one of each backend of this build that works here; those that do not are noted.
pub fn open_all(names: &[String], show: &Show) -> Result<Vec<(DeviceName, Device)>, Error> {
    if !names.is_empty() {
        let open = |name: &String| {
            let name: DeviceName = name.parse()?;
            Ok((name.clone(), open_working(&name)?))
        };
        return names.iter().map(open).collect();
    }
    let mut found = Vec::new();
    for name in Backend::compiled().map(DeviceName::new) {
        match open_working(&name) {
            Ok(device) => found.push((name, device)),
            Err(error) => show.note(format!("left out: {error}")),
        }
    }
    Ok(found)
}
