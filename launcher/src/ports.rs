//! The ports that are served, bound before anything else happens. The launcher owns the HTTP socket and passes it to each
//! router that it starts, so that the port stays the same, and clients that connect while no router runs wait instead of
//! being refused. Routers bind the gRPC port themselves.

use std::io::Error;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;

use penstock_router::base::private_socket::{PrivateSocket, ReservedSocket, SocketFile};
use penstock_router::config::RouterOptions;
use penstock_router::http::server;
use penstock_router::http::server::options::ListenOptions;
use thiserror::Error as ThisError;
use tokio::net::TcpSocket;

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The address is in use, or does not belong to this machine.
#[derive(Debug, ThisError)]
pub enum PortTaken {
    /// An address of TCP.
    #[error("cannot listen on {hostname}:{port}: {reason}; {flag} and --hostname choose another address")]
    Tcp { flag: &'static str, hostname: String, port: u16, reason: Error },
    /// A Unix socket.
    #[error("cannot listen on --uds {}: {reason}", path.display())]
    Unix { path: PathBuf, reason: Error },
}

/// A bound socket, which refuses connections.
enum Reserved {
    Tcp(TcpSocket),
    Unix(ReservedSocket),
}

/// A listening socket, and the file of a Unix socket.
enum Listening {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The states of the HTTP port, in order.
enum Http {
    /// While the model loads: bound, so that no other process can bind it, but connections are refused.
    Reserved(Reserved),
    /// Connections are queued, whether a router runs or not.
    Listening(Listening),
    /// No longer held by the launcher: connections are refused once the last router has ended.
    Closed,
}

/// The ports of one server.
pub struct Ports {
    http: Http,
    /// Never listens. It keeps other processes from binding the port while it is held.
    grpc: Option<TcpSocket>,
}

impl Ports {
    /// Binds the ports, so that a port in use is reported before the model is loaded.
    pub fn reserve(options: &RouterOptions) -> Result<Self, PortTaken> {
        let http = Http::Reserved(Reserved::new(&options.listen)?);
        let grpc = options
            .grpc_port
            .map(|port| reserve("--grpc-port", &options.listen.hostname, port))
            .transpose()?;
        Ok(Self { http, grpc })
    }

    /// The ports of a machine that has no router.
    pub fn none() -> Self {
        Self { http: Http::Closed, grpc: None }
    }

    /// Returns the listening socket as a router's stdin: in this way a process inherits it without unsafe code. Fails if
    /// the ports are closed.
    pub fn share_listener(&mut self) -> std::io::Result<Stdio> {
        let listener = match std::mem::replace(&mut self.http, Http::Closed) {
            Http::Reserved(socket) => socket.listen()?,
            Http::Listening(listener) => listener,
            Http::Closed => return Err(Error::other("the port is closed")),
        };
        self.grpc.as_ref().map(allow_sharing).transpose()?;
        let shared = listener.share()?;
        self.http = Http::Listening(listener);
        Ok(shared.into())
    }

    /// Gives the HTTP port back: no router will be started any more.
    pub fn close(&mut self) {
        self.http = Http::Closed;
    }
}

impl Reserved {
    fn new(options: &ListenOptions) -> Result<Self, PortTaken> {
        let Some(path) = &options.uds else {
            return reserve("--port", &options.hostname, options.port).map(Self::Tcp);
        };
        let socket = ReservedSocket::bind(path);
        socket.map(Self::Unix).map_err(|reason| PortTaken::Unix { path: path.clone(), reason })
    }

    fn listen(self) -> std::io::Result<Listening> {
        match self {
            Self::Tcp(socket) => {
                allow_sharing(&socket)?;
                Ok(Listening::Tcp(socket.listen(BACKLOG)?.into_std()?))
            }
            Self::Unix(socket) => {
                let PrivateSocket { listener, file } = socket.listen()?;
                Ok(Listening::Unix { listener: listener.into_std()?, _file: file })
            }
        }
    }
}

impl Listening {
    /// A copy of the socket's descriptor for another process.
    fn share(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.try_clone().map(OwnedFd::from),
            Self::Unix { listener, .. } => listener.try_clone().map(OwnedFd::from),
        }
    }
}

fn reserve(flag: &'static str, hostname: &str, port: u16) -> Result<TcpSocket, PortTaken> {
    bind(hostname, port).map_err(|reason| PortTaken::Tcp {
        flag,
        hostname: hostname.to_owned(),
        port,
        reason,
    })
}

/// Binds the first of the host's addresses that is free.
fn bind(hostname: &str, port: u16) -> std::io::Result<TcpSocket> {
    let mut last = Error::other("the name has no address");
    for address in (hostname, port).to_socket_addrs()? {
        match bind_alone(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Binds an address so that no other process can bind it. Two sockets that both may reuse addresses can be bound to one
/// port while neither listens, so this option is set only if connections that ended a minute ago block the address, and
/// then taken back.
fn bind_alone(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = server::socket(address)?;
    if socket.bind(address).is_ok() {
        return Ok(socket);
    }
    let socket = server::bind(address)?;
    socket.set_reuseaddr(false)?;
    Ok(socket)
}

/// Lets a router bind the same port, and keeps connections that ended a minute ago from blocking it.
fn allow_sharing(socket: &TcpSocket) -> std::io::Result<()> {
    socket.set_reuseaddr(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reserved_port_cannot_be_reserved_again() {
        let first = bind("127.0.0.1", 0).expect("a free port");
        let port = first.local_addr().expect("bound").port();
        assert!(bind("127.0.0.1", port).is_err());
        assert!(bind("0.0.0.0", port).is_err());
        drop(first);
        bind("127.0.0.1", port).expect("free again");
    }

    #[tokio::test]
    async fn a_router_may_listen_on_a_port_that_is_reserved_for_it() {
        let reserved = bind("127.0.0.1", 0).expect("a free port");
        let address = reserved.local_addr().expect("bound");
        assert!(tokio::net::TcpListener::bind(address).await.is_err());
        allow_sharing(&reserved).expect("an open socket");
        tokio::net::TcpListener::bind(address).await.expect("shared");
    }

    #[tokio::test]
    async fn connections_that_ended_a_minute_ago_do_not_block_a_port() {
        let reserved = bind("127.0.0.1", 0).expect("a free port");
        let address = reserved.local_addr().expect("bound");
        allow_sharing(&reserved).expect("an open socket");
        let listener = reserved.listen(BACKLOG).expect("reserved");
        let client = tokio::net::TcpStream::connect(address).await.expect("listening");
        // The side that closes first keeps the port for a minute.
        drop(listener.accept().await.expect("a connection"));
        client.readable().await.expect("the end");
        drop((client, listener));
        let again = bind("127.0.0.1", address.port()).expect("not blocked");
        assert!(bind("127.0.0.1", address.port()).is_err());
        drop(again);
    }
}
