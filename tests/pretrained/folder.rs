//! Checkpoint folders that tests write.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};
use burnformer::error::Error;
use burnformer::model::Transformer;
use burnformer::pretrained::{Checkpoint, LoadReport};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::common::{Array, Fixture, checkpoint_folder, fixtures, flex, values};

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// A checkpoint folder that a test writes.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new(config: &Value) -> Self {
        let folder = Self(tempfile::tempdir().expect("a temporary folder can be made"));
        folder.write("config.json", config.to_string().as_bytes());
        folder
    }

    /// A copy of a fixture.
    pub fn copy(name: &str) -> Self {
        let folder = Self::new(&config_of(name, "config.json"));
        folder.write(WEIGHTS, &weights_of(name));
        folder
    }

    pub fn write(&self, file: &str, bytes: &[u8]) {
        std::fs::write(self.0.path().join(file), bytes).expect("the file can be written");
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.0.path().join(file)).expect("the file can be removed");
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn load(&self) -> Result<(Transformer, LoadReport), Error> {
        Checkpoint::open(self.path())?.load(&flex(), FloatDType::F32)
    }

    /// The model and what is left of the file, or a failed test.
    pub fn loaded(&self) -> (Transformer, LoadReport) {
        self.load().unwrap_or_else(|error| panic!("{error}"))
    }

    /// What loading says is wrong.
    pub fn message(&self) -> String {
        match self.load() {
            Ok(_) => panic!("it loads"),
            Err(error) => error.to_string(),
        }
    }
}

pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("checkpoints")).expect("there are fixtures");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a text")).collect();
    names.sort();
    assert!(names.len() >= 20, "only {names:?}");
    names
}

pub fn config_of(name: &str, file: &str) -> Value {
    let text = std::fs::read(checkpoint_folder(name).join(file)).expect("the config can be read");
    serde_json::from_slice(&text).expect("the config is JSON")
}

pub fn weights_of(name: &str) -> Vec<u8> {
    std::fs::read(checkpoint_folder(name).join(WEIGHTS)).expect("the weights can be read")
}

pub fn tensors_of(name: &str) -> BTreeMap<String, Array> {
    Fixture::at(&checkpoint_folder(name).join(WEIGHTS)).all()
}

/// A weight file, its numbers in the type `dtype`.
pub fn file_as(tensors: &BTreeMap<String, Array>, dtype: Dtype) -> Vec<u8> {
    let bytes = |x: &f64| -> Vec<u8> {
        match dtype {
            Dtype::F64 => x.to_le_bytes().to_vec(),
            Dtype::F32 => (*x as f32).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f64(*x).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f64(*x).to_le_bytes().to_vec(),
            Dtype::I64 => (*x as i64).to_le_bytes().to_vec(),
            other => panic!("no test writes {other}"),
        }
    };
    let data: BTreeMap<&str, Vec<u8>> =
        tensors.iter().map(|(name, array)| (name.as_str(), array.values.iter().flat_map(bytes).collect())).collect();
    let views = tensors.iter().map(|(name, array)| {
        let view = TensorView::new(dtype, array.shape.clone(), &data[name.as_str()]).expect("the shape fits");
        (name.as_str(), view)
    });
    safetensors::serialize(views, None).expect("the tensors can be written")
}

pub fn file(tensors: &BTreeMap<String, Array>) -> Vec<u8> {
    file_as(tensors, Dtype::F32)
}

/// A file with this header and so many zeros behind it.
pub fn file_with_header(header: &str, zeros: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; zeros]].concat()
}

/// Every parameter with its path and numbers. None may still wait for random ones.
pub fn parameters(model: &Transformer) -> BTreeMap<String, Vec<f64>> {
    #[derive(Default)]
    struct Visitor(Vec<String>, BTreeMap<String, Vec<f64>>);
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.0.join(".");
            assert!(param.is_initialized(), "{path} would draw its numbers");
            self.1.insert(path, values(param.val()));
        }
    }
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.1
}

#[track_caller]
pub fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert!(!message.contains('\n'), "{message}");
}

/// The model of a config and these tensors.
#[track_caller]
pub fn filled(config: &Value, tensors: &BTreeMap<String, Array>) -> (Transformer, LoadReport) {
    let folder = Folder::new(config);
    folder.write(WEIGHTS, &file(tensors));
    match folder.load() {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}"),
    }
}

/// `keys` with those of `more`.
pub fn with(mut keys: Value, more: Value) -> Value {
    let (Some(map), Value::Object(more)) = (keys.as_object_mut(), more) else { panic!("two objects") };
    map.extend(more);
    keys
}
