//! The port that is served. The launcher holds it and lends it to one router after the other, so that it stays the
//! same, and clients that come between two routers wait instead of being refused.

use std::io::Error;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use penstock_router::config::RouterOptions;
use penstock_router::http::server;
use thiserror::Error as ThisError;
use tokio::net::TcpSocket;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The address is in use, or not one of this machine.
#[derive(Debug, ThisError)]
#[error("cannot listen on {hostname}:{port}: {reason}; {flag} and --hostname choose another address")]
pub struct PortTaken {
    flag: &'static str,
    hostname: String,
    port: u16,
    reason: Error,
}

/// A port: reserved while the model loads, then listened on, then given up.
pub enum Port {
    /// Nobody is let in yet, and nobody else can have it.
    Reserved(TcpSocket),
    /// Connections come in, whether there is a router or not.
    Listening(TcpListener),
    /// Connections are refused once the last router is gone.
    Closed,
}

impl Port {
    /// Says at once what would else be found out after the model is loaded.
    pub fn reserve(options: &RouterOptions) -> Result<Self, PortTaken> {
        reserve("--port", &options.hostname, options.port).map(Self::Reserved)
    }

    /// The listening socket as a router's stdin, which is how a process inherits one without unsafe code.
    pub fn lend(&mut self) -> std::io::Result<Stdio> {
        let listener = match std::mem::replace(self, Self::Closed) {
            Self::Reserved(socket) => socket.listen(BACKLOG)?.into_std()?,
            Self::Listening(listener) => listener,
            Self::Closed => return Err(Error::other("the port is given up")),
        };
        let lent = OwnedFd::from(listener.try_clone()?);
        *self = Self::Listening(listener);
        Ok(lent.into())
    }
}

/// The port of the gRPC API, if it is served. Each router listens there itself; holding the socket, which never listens,
/// keeps others away.
pub fn reserve_grpc(options: &RouterOptions) -> Result<Option<TcpSocket>, PortTaken> {
    options.grpc_port.map(|port| reserve("--grpc-port", &options.hostname, port)).transpose()
}

fn reserve(flag: &'static str, hostname: &str, port: u16) -> Result<TcpSocket, PortTaken> {
    bind(hostname, port).map_err(|reason| PortTaken { flag, hostname: hostname.to_owned(), port, reason })
}

/// The first of the name's addresses that can be had.
fn bind(hostname: &str, port: u16) -> std::io::Result<TcpSocket> {
    let mut last = Error::other("the name has no address");
    for address in (hostname, port).to_socket_addrs()? {
        match server::bind(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
