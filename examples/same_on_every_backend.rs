//! One model, the same weights, every backend that this build holds: the outputs agree.
//!
//! ```sh
//! cargo run --release --example same_on_every_backend
//! cargo run --release --features wgpu,libtorch --example same_on_every_backend
//! ```

use burn::module::Module;
use burnformer::Error;
use burnformer::backend::{Backend, DeviceName};
use burnformer::model::{ForwardOptions, ModelConfig, ModelInput};

fn main() -> Result<(), Error> {
    let mut config = ModelConfig::preset("smollm2-135m")?;
    config.n_layers = 2;
    let names: Vec<DeviceName> = Backend::compiled().map(DeviceName::new).collect();
    let first = names[0].open()?;
    let model = config.init(&first);
    let input = ModelInput::tokens(&[vec![504, 3575, 282, 4649, 314]]);

    let mut reference: Option<Vec<f32>> = None;
    for name in names {
        let device = match name.open() {
            Ok(device) => device,
            Err(error) => {
                println!("{name}: left out ({error})");
                continue;
            }
        };
        let output = model.clone().to_device(&device).forward(&input, None, ForwardOptions::default())?;
        let logits = output.logits.expect("the preset has a head");
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        let reference = reference.get_or_insert_with(|| logits.clone());
        let difference = logits.iter().zip(reference.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: first logits {:.6?}, largest difference {difference:.1e}", &logits[..3]);
    }
    Ok(())
}
