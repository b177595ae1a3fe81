//! The port that is served. The launcher owns the socket and passes it to each router that it starts, so that the port
//! stays the same, and clients that connect while no router runs wait instead of being refused.

use std::io::Error;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use penstock_router::config::RouterOptions;
use penstock_router::http::server;
use thiserror::Error as ThisError;
use tokio::net::TcpSocket;

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The address is in use, or does not belong to this machine.
#[derive(Debug, ThisError)]
#[error("cannot listen on {hostname}:{port}: {reason}; {flag} and --hostname choose another address")]
pub struct PortTaken {
    flag: &'static str,
    hostname: String,
    port: u16,
    reason: Error,
}

/// The states of the port, in order.
pub enum Port {
    /// While the model loads: bound, so that no other process can bind it, but connections are refused.
    Reserved(TcpSocket),
    /// Connections are queued, whether a router runs or not.
    Listening(TcpListener),
    /// No longer held by the launcher: connections are refused once the last router has ended.
    Closed,
}

impl Port {
    /// Binds the port before the model is loaded, so that a port in use is reported at once.
    pub fn reserve(options: &RouterOptions) -> Result<Self, PortTaken> {
        reserve("--port", &options.hostname, options.port).map(Self::Reserved)
    }

    /// Returns the listening socket as a router's stdin: in this way a process inherits it without unsafe code. Fails if
    /// the port is closed.
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

/// Binds the port of the gRPC API, if that is served. Each router listens there itself; the returned socket never
/// listens, and keeps other processes from binding the port while it is held.
pub fn reserve_grpc(options: &RouterOptions) -> Result<Option<TcpSocket>, PortTaken> {
    options.grpc_port.map(|port| reserve("--grpc-port", &options.hostname, port)).transpose()
}

fn reserve(flag: &'static str, hostname: &str, port: u16) -> Result<TcpSocket, PortTaken> {
    bind(hostname, port).map_err(|reason| PortTaken { flag, hostname: hostname.to_owned(), port, reason })
}

/// Binds the first of the host's addresses that is free.
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
