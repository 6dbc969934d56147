//! `burnformer serve-device`

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use burnformer::Error;
use burnformer::backend::{DeviceServer, TOKEN_VARIABLE};
use clap::Args;

use crate::arguments::{Show, default_backend, open_working};
use crate::{Outcome, output};

/// Serve a device to other processes, which use it as `--backend remote:ws://HOST:PORT`.
///
/// The traffic is not encrypted: serve on a network that you trust. Where the environment variable
/// BURNFORMER_REMOTE_TOKEN is set, clients need the same. Runs until it is interrupted (Ctrl+C).
#[derive(Args)]
#[command(after_help = "Examples:
  burnformer serve-device
  burnformer serve-device --backend wgpu --address 0.0.0.0 --port 3000
  burnformer run gpt2 --backend remote:ws://127.0.0.1:3000")]
pub struct Arguments {
    /// The device to serve; libtorch cannot be served [default: flex]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The address of this machine to listen on; 0.0.0.0 for all of them.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// The port to listen on; 0 lets the system choose.
    #[arg(long, default_value_t = 3000)]
    port: u16,
    #[command(flatten)]
    show: Show,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let name = default_backend(arguments.backend.as_deref())?;
    let device = open_working(&name)?;
    let token = std::env::var(TOKEN_VARIABLE).ok();
    let address = SocketAddr::new(arguments.address, arguments.port);
    let server = DeviceServer::bind(&name, vec![device], address, token.as_deref())?;
    let url = format!("ws://{}", server.address()?);
    if arguments.show.json {
        output::print_json(&serde_json::json!({ "backend": name.to_string(), "url": url, "token": token.is_some() }))?;
    }
    arguments.show.note(format!("serving {name}; use it with `--backend remote:{url}`, stop it with Ctrl+C"));
    server.serve()?;
    Ok(Outcome::Done)
}
