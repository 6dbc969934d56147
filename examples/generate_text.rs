//! A model continues a text and answers a question, word by word.
//!
//! ```sh
//! cargo run --release --example generate_text -- path/to/checkpoint "The capital of France is"
//! ```

use std::io::Write;
use std::ops::ControlFlow;

use burn::tensor::FloatDType;
use burnformer::Error;
use burnformer::backend::DeviceName;
use burnformer::generation::{GenerationOptions, Message, Prompt, Sampling, TextGenerator};
use burnformer::pretrained::Checkpoint;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, text] = arguments.as_slice() else {
        eprintln!("usage: generate_text FOLDER PROMPT");
        std::process::exit(2);
    };
    let checkpoint = Checkpoint::open(folder)?;
    let tokenizer = checkpoint.tokenizer()?.ok_or_else(|| Error::file(folder, "has no tokenizer"))?;
    let device = "flex".parse::<DeviceName>()?.open()?;
    let (model, _) = checkpoint.load(&device, FloatDType::F32)?;

    let generator = TextGenerator::new(&model, &tokenizer)?;
    let sampling = Sampling::default().with_temperature(0.7).with_top_p(0.9);
    let options = GenerationOptions::new(40).with_sampling(sampling).with_stop_ids(tokenizer.stop_ids.clone());
    let mut prompts = vec![Prompt::from(text.as_str())];
    if tokenizer.chat_template.is_some() {
        prompts.push(Prompt::Chat(vec![Message::user(text)]));
    }
    for prompt in prompts {
        let encoded = generator.encode(&prompt)?;
        let generated = generator.generate(&[encoded], &options, &mut |_, piece| {
            print!("{piece}");
            match std::io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        let output = &generated.outputs[0];
        println!("\n({} tokens, {:?})\n", output.tokens.len(), output.stop_reason);
    }
    Ok(())
}
