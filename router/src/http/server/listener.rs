//! The socket that a server listens on, and the connections that come in over it.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::base::private_socket::{PrivateSocket, SocketFile};

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP listener.
    Tcp(TcpListener),
    /// A Unix socket, and its file if it is this process that removes it.
    Unix(UnixListener, Option<SocketFile>),
}

/// A connection that came in.
pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<PrivateSocket> for Listener {
    fn from(socket: PrivateSocket) -> Self {
        Self::Unix(socket.listener, Some(socket.file))
    }
}

impl Listener {
    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                listener.accept().await.map(|(stream, client)| Accepted::Tcp(stream, client))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

impl Accepted {
    /// Writes as much as fits into the empty send buffer; the connection closes when this is dropped.
    pub(super) fn refuse(&self, answer: &[u8]) {
        // A client that cannot be told sees that the connection closes.
        let _ = match self {
            Self::Tcp(stream, _) => stream.try_write(answer),
            Self::Unix(stream) => stream.try_write(answer),
        };
    }
}
