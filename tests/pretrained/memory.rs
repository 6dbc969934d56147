//! How much memory loading takes, measured in a process of its own.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::FloatDType;
use burnformer::backend::{Backend, DeviceName};
use burnformer::pretrained::{Checkpoint, ConvertOptions, Format};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::torch_writer::{Saved, torch_file};

const FOLDER: &str = "BURNFORMER_TEST_FOLDER";
const DTYPE: &str = "BURNFORMER_TEST_DTYPE";

const D_MODEL: usize = 768;
const D_FF: usize = 2048;
const VOCAB_SIZE: usize = 24_000;
const N_LAYERS: usize = 4;

/// A tied Llama of 47 million parameters, 40 % of them in the token table.
fn config() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": D_MODEL, "num_hidden_layers": N_LAYERS,
        "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": D_FF, "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 64, "tie_word_embeddings": true,
    })
}

fn shapes() -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB_SIZE, D_MODEL]),
        ("model.norm.weight".to_owned(), vec![D_MODEL]),
    ]);
    for layer in 0..N_LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![D_MODEL]),
            ("post_attention_layernorm", vec![D_MODEL]),
            ("self_attn.q_proj", vec![D_MODEL, D_MODEL]),
            ("self_attn.k_proj", vec![D_MODEL, D_MODEL]),
            ("self_attn.v_proj", vec![D_MODEL, D_MODEL]),
            ("self_attn.o_proj", vec![D_MODEL, D_MODEL]),
            ("mlp.gate_proj", vec![D_FF, D_MODEL]),
            ("mlp.up_proj", vec![D_FF, D_MODEL]),
            ("mlp.down_proj", vec![D_MODEL, D_FF]),
        ] {
            shapes.insert(format!("model.layers.{layer}.{name}.weight"), shape);
        }
    }
    shapes
}

/// The bytes of a tensor of ones and twos.
fn bytes(dtype: Dtype, count: usize) -> Vec<u8> {
    let one_and_two: &[u8] = match dtype {
        Dtype::F32 => &[0, 0, 128, 63, 0, 0, 0, 64],
        Dtype::BF16 => &[128, 63, 0, 64],
        Dtype::F16 => &[0, 60, 0, 64],
        other => panic!("no test writes {other}"),
    };
    one_and_two.repeat(count / 2)
}

fn write_safetensors(path: &Path, dtype: Dtype) {
    let data: BTreeMap<String, (Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| (name, (shape.clone(), bytes(dtype, shape.iter().product()))))
        .collect();
    let views = data.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).expect("the shape fits"))
    });
    safetensors::serialize_to_file(views, None, path).expect("it is written");
}

fn write_torch(path: &Path) {
    let saved = shapes().into_iter().map(|(name, shape)| {
        let bytes = bytes(Dtype::F32, shape.iter().product());
        Saved { name, storage: "FloatStorage", shape, bytes }
    });
    std::fs::write(path, torch_file(&saved.collect::<Vec<_>>(), &[])).expect("it is written");
}

fn folder(place: &Path, name: &str, write: impl FnOnce(&Path)) -> PathBuf {
    let folder = place.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("config.json"), config().to_string()).expect("it is written");
    write(&folder);
    folder
}

/// The largest part of this process that has been in memory at a time, and the part that is there now.
fn memory() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    ["VmHWM:", "VmRSS:"].map(|key| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("Linux has it");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kib * 1024
    })
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn load_and_measure() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let dtype = match std::env::var(DTYPE).as_deref() {
        Ok("f16") => FloatDType::F16,
        _ => FloatDType::F32,
    };
    let backend = std::env::var("BURNFORMER_TEST_BACKEND").ok().and_then(|name| name.parse().ok());
    let device = backend.unwrap_or(DeviceName::new(Backend::Flex)).open().expect("it opens");
    let checkpoint = Checkpoint::open(PathBuf::from(folder)).expect("it opens");
    let [_, before] = memory();
    let (model, _) = checkpoint.load(&device, dtype).expect("it loads");
    let [peak, after] = memory();
    println!("peak {} final {}", peak - before, after - before);
    drop(model);
}

/// Bytes that loading took at most, in a process of its own so that nothing else counts.
fn peak_of_loading(folder: &Path, dtype: &str) -> u64 {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["memory::load_and_measure", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(DTYPE, dtype)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!(
        "{} as {dtype}: {}",
        folder.display(),
        text.lines().find(|line| line.contains("peak ")).unwrap_or_default()
    );
    let said = text.split("peak ").nth(1).and_then(|rest| rest.split_whitespace().next());
    said.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// The model and a fifth of it, and one tensor: the largest, in the wider of the two types. Nothing random is in this
/// number: what is read is let go of, piece by piece or tensor by tensor, whatever else the machine is doing.
#[test]
fn loading_takes_little_more_than_the_model() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let place = place.path();
    let safetensors = |dtype: Dtype| move |folder: &Path| write_safetensors(&folder.join("model.safetensors"), dtype);
    let wide = folder(place, "f32", safetensors(Dtype::F32));
    let pack = place.join("pack");
    let options = ConvertOptions { format: Some(Format::Pack), ..ConvertOptions::default() };
    Checkpoint::open(&wide).and_then(|wide| wide.convert(&pack, &options, |_| ())).expect("it is written");
    let parameters: usize = shapes().values().map(|shape| shape.iter().product::<usize>()).sum();
    let largest = VOCAB_SIZE * D_MODEL;
    for (folder, dtype, bytes) in [
        (wide.clone(), "f32", 4),
        (folder(place, "f16", safetensors(Dtype::F16)), "f32", 4),
        (folder(place, "bf16", safetensors(Dtype::BF16)), "f32", 4),
        (wide.clone(), "f16", 2),
        (folder(place, "torch", |folder| write_torch(&folder.join("pytorch_model.bin"))), "f32", 4),
        (pack, "f32", 4),
    ] {
        let peak = peak_of_loading(&folder, dtype);
        let model = (parameters * bytes) as u64;
        let bound = model + model / 5 + (largest * 4) as u64;
        assert!(peak >= model, "{}: {peak} bytes are fewer than the model's {model}", folder.display());
        assert!(peak <= bound, "{} as {dtype}: {peak} bytes, at most {bound}", folder.display());
    }
}
