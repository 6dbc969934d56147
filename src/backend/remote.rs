//! Devices of another process or machine: connecting to one, and serving one's own. Burn does the work; this file gives
//! it names, a secret and errors that say what to do.
//!
//! The traffic is not encrypted. A token keeps strangers from computing on the device, not from reading along.

use std::net::{SocketAddr, TcpListener};
use std::sync::PoisonError;

use burn::remote::{ConnectError, RemoteHost};
use burn::server::{RemoteServer, ServeError, TokenAuthorizer, WebSocketTransport};
use burn::tensor::Device;

use super::{Backend, DeviceName, OPEN};
use crate::error::Error;

/// The environment variable that holds the token of the servers that ask for one.
pub const TOKEN_VARIABLE: &str = "BURNFORMER_REMOTE_TOKEN";

/// What stands behind `remote:`: the address of a server, and which of its devices.
struct Address<'a> {
    url: &'a str,
    device: u32,
}

impl<'a> Address<'a> {
    /// Reads `ws://host:port` or `ws://host:port#device`.
    fn parse(selector: &'a str) -> Option<Self> {
        let (url, device) = selector.split_once('#').unwrap_or((selector, "0"));
        let (host, port) = url.strip_prefix("ws://")?.trim_end_matches('/').rsplit_once(':')?;
        let is_right = !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0);
        is_right.then_some(Self { url: url.trim_end_matches('/'), device: device.parse().ok()? })
    }
}

/// Connects to the device that `name` describes.
pub(super) fn connect(name: &DeviceName) -> Result<Device, Error> {
    let Some(address) = Address::parse(&name.selector) else {
        let problem =
            "needs the address of a server: remote:ws://HOST:PORT, or remote:ws://HOST:PORT#N for its device N";
        return Err(Error::backend(name, problem));
    };
    let mut host = RemoteHost::websocket(address.url);
    if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
        host = host.with_credential(token);
    }
    let connected = Device::remote_options(&host).device_index(address.device as usize).init();
    connected.map_err(|error| Error::backend(name, advice(&error)))
}

fn advice(error: &ConnectError) -> String {
    match error {
        ConnectError::Unreachable { reason } => {
            format!("is not reached: {reason}; start it with `burnformer serve-device`")
        }
        ConnectError::Unauthorized => format!("asks for another token; set {TOKEN_VARIABLE} to the server's"),
        ConnectError::NoSuchDevice { device_count } => {
            format!("has {device_count} devices, counted from 0; name one of them after `#`")
        }
        ConnectError::IncompatibleProtocol { .. } => format!("{error}; build both with the same version of burnformer"),
        _ => error.to_string(),
    }
}

/// The remote devices that are open. Burn panics when the connection to one of them breaks, so a program that has any can
/// say what a panic most likely comes from.
pub fn open_remote_devices() -> Vec<DeviceName> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let names = open.iter().flat_map(|devices| devices.keys());
    names.filter(|name| name.backend == Backend::Remote).cloned().collect()
}

/// A server that listens and does not answer yet.
pub struct DeviceServer {
    name: DeviceName,
    listener: TcpListener,
    server: RemoteServer,
}

impl DeviceServer {
    /// Takes `address` for the devices called `name`, which become number 0, 1, … of the server. Where there is a
    /// `token`, clients must know it.
    ///
    /// # Errors
    ///
    /// When the address is taken or not this machine's, or the token is empty.
    pub fn bind(
        name: &DeviceName,
        devices: Vec<Device>,
        address: SocketAddr,
        token: Option<&str>,
    ) -> Result<Self, Error> {
        let listener = TcpListener::bind(address)
            .map_err(|error| Error::backend(name, format!("cannot be served on {address}: {error}")))?;
        let mut server = RemoteServer::new(devices);
        if let Some(token) = token {
            let authorizer = TokenAuthorizer::new(token)
                .map_err(|_| Error::Input("the token is empty; give one, or none at all".into()))?;
            server = server.with_authorizer(authorizer);
        }
        Ok(Self { name: name.clone(), listener, server })
    }

    /// Where it listens; the port is the system's choice where port 0 was asked for.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener.local_addr().map_err(|error| Error::backend(&self.name, error.to_string()))
    }

    /// Answers clients until the program is interrupted. Log lines go to stdout.
    ///
    /// # Errors
    ///
    /// When the backend cannot be served, as libtorch and remote devices cannot, or the network fails.
    pub fn serve(self) -> Result<(), Error> {
        self.server.serve(WebSocketTransport::from_listener(self.listener)).map_err(|error| match error {
            ServeError::UnsupportedDevice { .. } => Error::backend(
                &self.name,
                "cannot be served: Burn serves flex, ndarray, wgpu, cuda, rocm and cpu devices",
            ),
            error => Error::backend(&self.name, error.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_server_and_perhaps_a_device() {
        let read = |text| Address::parse(text).map(|address| (address.url.to_owned(), address.device));
        assert_eq!(read("ws://127.0.0.1:3000"), Some(("ws://127.0.0.1:3000".into(), 0)));
        assert_eq!(read("ws://gpu.local:80/#2"), Some(("ws://gpu.local:80".into(), 2)));
        assert_eq!(read("ws://[::1]:3000#1"), Some(("ws://[::1]:3000".into(), 1)));
        let wrong = [
            "",
            "ws://",
            "ws://host",
            "ws://host:",
            "ws://host:0",
            "ws://host:70000",
            "http://host:80",
            "ws://host:80#x",
            "host:80",
        ];
        for text in wrong {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
