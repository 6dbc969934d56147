//! A model from a preset name or a configuration file, and a fault report for one that is wrong.
//!
//! ```sh
//! cargo run --release --example config_driven
//! cargo run --release --example config_driven -- my-model.toml ndarray
//! ```

use burnformer::Error;
use burnformer::backend::DeviceName;
use burnformer::model::{ForwardOptions, ModelConfig, ModelInput};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let config = match arguments.next() {
        Some(file) => ModelConfig::load_file(file)?,
        None => ModelConfig::from_toml(
            r#"
            kind = "decoder"
            d_model = 64
            n_layers = 3
            max_seq_len = 128
            layers = [{ window = 16, repeat = 2 }, {}]
            final_norm = true
            [embedding]
            vocab_size = 100
            [positions.rotary.global]
            theta = 10000
            [attention]
            n_heads = 8
            n_kv_heads = 2
            [feed_forward]
            d_ff = 160
            gated = true
            activation = "silu"
            [norm]
            kind = "rms"
            [head]
            "#,
        )?,
    };
    let backend = arguments.next().unwrap_or_else(|| "flex".into());
    let device = backend.parse::<DeviceName>()?.open()?;
    let model = config.init(&device);
    let output = model.forward(&ModelInput::tokens(&[vec![1, 5, 9]]), None, ForwardOptions::default())?;
    println!("{} parameters, hidden states {:?}", config.n_parameters(), output.hidden.dims());

    let faulty = "kind = \"decoder\"\nd_modl = 10\nn_layers = 0\nmax_seq_len = 8\n[attention]\nn_heads = 4\n";
    if let Err(error) = ModelConfig::from_toml(faulty) {
        println!("{error}");
    }
    Ok(())
}
