//! Trains a small model over the bytes of a text, and lets it go on writing.
//!
//! ```sh
//! cargo run --release --example train_language_model -- README.md
//! ```

use std::path::Path;

use burnformer::Error;
use burnformer::attention::{MultiHeadAttentionConfig, RotaryConfig};
use burnformer::embedding::EmbeddingConfig;
use burnformer::feed_forward::FeedForwardConfig;
use burnformer::head::HeadConfig;
use burnformer::model::{ModelConfig, ModelKind};
use burnformer::positions::Positions;
use burnformer::training::{SampleConfig, Start, TrainingConfig, TrainingEvent, TrainingRun, ValidationConfig};

fn main() -> Result<(), Error> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "README.md".into());
    let attention = MultiHeadAttentionConfig::new(64, 4);
    let model = ModelConfig::new(ModelKind::Decoder, 2, 128, attention, FeedForwardConfig::new(64, 256))
        .with_embedding(EmbeddingConfig::new(256))
        .with_positions(Positions::rotary(RotaryConfig::default()))
        .with_final_norm(true)
        .with_head(HeadConfig::new(true));
    let config = TrainingConfig {
        steps: 300,
        seq: 64,
        validation: ValidationConfig { every: 100, ..ValidationConfig::default() },
        samples: SampleConfig { every: 100, prompt: "The ".into(), ..SampleConfig::default() },
        ..TrainingConfig::default()
    };
    let out = std::env::temp_dir().join(format!("burnformer-example-{}", std::process::id()));
    let run = TrainingRun::new(config, Start::Drawn(Box::new(model)), Path::new(&text), &out)?;
    let summary = run
        .observed_by(|event| match event {
            TrainingEvent::Step(report) if report.step % 20 == 0 => {
                println!("step {:3}  loss {:.4}  {:.0} tokens/s", report.step, report.loss, report.tokens_per_second);
            }
            TrainingEvent::Validation(report) => println!("perplexity {:.2}", report.perplexity),
            TrainingEvent::Sample(report) => println!("sample: {:?}", report.sample),
            _ => (),
        })
        .run()?;
    println!("{} parameters, in {}", summary.parameters, summary.out.display());
    Ok(())
}
