//! `burnformer verify`

use std::path::PathBuf;

use burnformer::Error;
use burnformer::verification::{Golden, verify};
use clap::Args;

use crate::arguments::Compute;
use crate::model_argument::ModelArgument;
use crate::{Outcome, output};

/// Compare a checkpoint's outputs with stored ones.
#[derive(Args)]
#[command(after_help = "\
The golden file holds `input_ids` and, where they are needed, `attention_mask` and `token_type_ids`, or `pixel_values`, \
and what the model is to give for them: `logits`, `last_hidden_state`, `pooler_output`, `start_logits` and \
`end_logits`, whichever are there. Outputs at padded positions \
are not compared. The tolerance is on the largest difference over the largest expected value.

Exit code 1 where an output lies outside.

Examples:
  burnformer verify path/to/checkpoint --golden path/to/golden.safetensors
  burnformer verify path/to/checkpoint --golden golden.safetensors --backend wgpu --tolerance 1e-5 --json")]
pub struct Arguments {
    /// Checkpoint folder or GGUF file.
    model: String,
    /// Inputs and expected outputs.
    #[arg(long, value_name = "FILE")]
    golden: PathBuf,
    /// Largest difference allowed, as a share of the largest expected value.
    #[arg(long, value_name = "SHARE", default_value_t = 1e-4)]
    tolerance: f64,
    #[command(flatten)]
    compute: Compute,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, golden, tolerance, compute } = arguments;
    if !tolerance.is_finite() || tolerance < 0.0 {
        return Err(Error::Input(format!("the tolerance must be a number of at least 0, got {tolerance}")));
    }
    let argument = ModelArgument::resolve(&model)?;
    if argument.folder().is_none() {
        return Err(Error::Input(format!("`{model}` has no weights to verify; name a checkpoint folder")));
    }
    let golden = Golden::open(&golden)?;
    let target = compute.open()?;
    argument.check_call(golden.dims(argument.config()), &target)?;
    let result = verify(&argument.build(&target, 0)?, &golden, tolerance)?;

    if compute.show.json {
        output::print_json(&result)?;
    } else {
        let rows: Vec<[String; 4]> = result
            .outputs
            .iter()
            .map(|output| {
                let agreement = format!("{:.2} %", 100.0 * output.argmax_agreement);
                [output.name.clone(), format!("{:.2e}", output.max_abs), format!("{:.2e}", output.max_rel), agreement]
            })
            .collect();
        let verdict = if result.ok { "holds" } else { "DOES NOT HOLD" };
        let table = output::table(["output", "largest difference", "share of largest", "argmax agrees"], &rows);
        output::print(&format!("{table}\ntolerance {tolerance:e} {verdict} on {}", target.name))?;
    }
    Ok(Outcome::of_check(result.ok))
}
