//! Sentence embeddings from a published checkpoint, and how alike the sentences are.
//!
//! ```sh
//! scripts/fetch-models && . scripts/env
//! cargo run --release --example embed_sentences -- "$BURNFORMER_MODELS/all-minilm-l6-v2"
//! ```

use burn::tensor::FloatDType;
use burnformer::Error;
use burnformer::backend::DeviceName;
use burnformer::sentence::SentenceEncoder;

fn main() -> Result<(), Error> {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: embed_sentences FOLDER  (see scripts/fetch-models)");
        std::process::exit(2);
    };
    let device = "flex".parse::<DeviceName>()?.open()?;
    let encoder = SentenceEncoder::open(folder, &device, FloatDType::F32)?;
    let sentences = ["A man is playing a guitar.", "Someone makes music.", "The stock market fell."].map(String::from);
    let embeddings = encoder.encode(&sentences)?;
    for (index, sentence) in sentences.iter().enumerate().skip(1) {
        let likeness: f32 = embeddings[0].iter().zip(&embeddings[index]).map(|(a, b)| a * b).sum();
        println!("{likeness:.3}  {:?} and {sentence:?}", sentences[0]);
    }
    Ok(())
}
