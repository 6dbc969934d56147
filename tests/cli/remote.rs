//! Devices of another process: one that serves, one that computes there.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::{PROGRAM, checkpoint, error, floats, json, largest_difference, run, text};

/// A process that serves a device until it is dropped.
pub struct Server {
    process: Child,
    /// `remote:ws://…`
    pub device: String,
}

impl Server {
    pub fn start(backend: &str, token: Option<&str>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["serve-device", "--backend", backend, "--port", "0"]);
        if let Some(token) = token {
            command.env("BURNFORMER_REMOTE_TOKEN", token);
        }
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        let device = line.split('`').nth(1).and_then(|advice| advice.strip_prefix("--backend ")).map(str::to_owned);
        Self { process, device: device.unwrap_or_else(|| panic!("no address in: {line}")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_model_on_a_served_device_gives_the_numbers_of_that_device() {
    let model = checkpoint("llama");
    let logits = |backend: &str| {
        let answer = json(&["logits", text(&model), "--tokens", "1,5,9,4,7", "--chunks", "3,2", "--backend", backend]);
        floats(&answer["data"])
    };
    let here = logits("flex");
    for served in ["flex", "ndarray"] {
        let server = Server::start(served, None);
        // Composed operations there, fused ones here: the bound of a whole model in f32.
        let difference = largest_difference(&logits(&server.device), &here);
        assert!(difference < 1e-5, "{served}: {difference}");
    }
}

#[test]
fn every_part_computes_right_on_a_served_device_gradients_too() {
    let server = Server::start("flex", None);
    let report = run(&["parity", "--backends", &server.device, "--gradients", "--quiet"]);
    assert_eq!(report.code, 0, "{}{}", report.stdout, report.stderr);
    let held = report.stdout.lines().last().expect("a sum");
    let (held, all) = held.split_once(" of ").expect("a sum");
    assert!(all.starts_with(held) && held.parse::<usize>().is_ok_and(|held| held > 100), "{held} of {all}");
}

#[test]
fn a_token_keeps_strangers_out() {
    let server = Server::start("flex", Some("open sesame"));
    let model = checkpoint("llama");
    let arguments = ["logits", text(&model), "--tokens", "1,5", "--backend", &server.device];
    error(&arguments, &["token", "BURNFORMER_REMOTE_TOKEN"]);
    let with = |token| {
        let run = Command::new(PROGRAM).args(arguments).env("BURNFORMER_REMOTE_TOKEN", token).output();
        run.expect("it starts").status.code()
    };
    assert_eq!(with("open sesame"), Some(0));
    assert_eq!(with("open barley"), Some(2));
}

#[test]
fn wrong_addresses_and_devices_are_said_in_one_line() {
    let model = checkpoint("llama");
    let compute = |backend: &str, parts: &[&str]| {
        error(&["logits", text(&model), "--tokens", "1,5", "--backend", backend], parts);
    };
    compute("remote", &["remote:ws://HOST:PORT"]);
    compute("remote:http://127.0.0.1:3000", &["remote:ws://HOST:PORT"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    error(&["serve-device", "--port", &port], &["cannot be served on", &port]);
    drop(taken);
    compute(&format!("remote:ws://127.0.0.1:{port}"), &["is not reached", "serve-device"]);
    let server = Server::start("flex", None);
    compute(&format!("{}#3", server.device), &["has 1 device", "counted from 0"]);
    error(&["serve-device", "--port", "0", "--backend", &server.device, "--quiet"], &["cannot be served"]);
    #[cfg(feature = "libtorch")]
    error(&["serve-device", "--port", "0", "--backend", "libtorch", "--quiet"], &["libtorch", "cannot be served"]);
}

#[test]
fn a_server_that_dies_ends_its_client_with_one_line() {
    let mut server = Server::start("flex", None);
    let mut client = Command::new(PROGRAM);
    client.args(["parity", "--gradients", "--backends", &server.device]);
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(client.stderr.take().expect("it is piped")).lines();
    said.next().expect("it makes progress").expect("it is text");
    server.process.kill().expect("it runs");
    let last = said.map_while(Result::ok).last().expect("it says why");
    assert_eq!(client.wait().expect("it ends").code(), Some(2), "{last}");
    assert!(last.starts_with("burnformer: error: ") && last.contains(&server.device), "{last}");
}
