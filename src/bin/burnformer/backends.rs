//! `burnformer backends`

use burnformer::Error;
use burnformer::backend::{Backend, DeviceName, device_label};
use clap::Args;
use serde::Serialize;

use crate::arguments::{Show, open_working};
use crate::{Outcome, output};

/// List the backends: what this build holds, and which device each found.
#[derive(Args)]
#[command(after_help = "Examples:\n  burnformer backends\n  burnformer backends --json")]
pub struct Arguments {
    #[command(flatten)]
    show: Show,
}

#[derive(Serialize)]
struct Found {
    name: &'static str,
    /// Compiled in, and a device that computes.
    available: bool,
    device: Option<String>,
    error: Option<String>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let found: Vec<Found> = Backend::ALL.into_iter().map(probe).collect();
    if arguments.show.json {
        output::print_json(&found)?;
        return Ok(Outcome::Done);
    }
    let rows: Vec<[String; 3]> = found
        .into_iter()
        .map(|found| {
            let state = if found.available { "available" } else { "-" };
            [found.name.into(), state.into(), found.device.or(found.error).unwrap_or_default()]
        })
        .collect();
    output::print(&output::table(["backend", "state", "device"], &rows))?;
    Ok(Outcome::Done)
}

fn probe(backend: Backend) -> Found {
    let name = backend.name();
    match open_working(&DeviceName::new(backend)) {
        Ok(device) => Found { name, available: true, device: Some(device_label(&device)), error: None },
        Err(error) => Found { name, available: false, device: None, error: Some(crate::one_line(&error.to_string())) },
    }
}
