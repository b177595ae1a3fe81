//! The accept loop. It bounds the number of connections and, for each, header bytes, times, and the bytes buffered for
//! a client that does not read. The contents of requests are bounded elsewhere.
//!
//! While the server drains, requests in flight are finished. Every connection without one, old or new, is served one more
//! request (for example a health probe, or a refusal) until the last request in flight has ended.

mod connection;
mod in_flight;
pub mod limits;
pub mod listener;
pub mod options;
mod timed_stream;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use crate::base::shutdown::Shutdown;
use crate::http::server::limits::ConnectionLimits;
use connection::Connection;
pub use in_flight::RequestInFlight;
use in_flight::{CountingService, InFlight};
use listener::{Accepted, Listener};
pub(crate) use timed_stream::TimedStream;

/// Bytes that the system buffers for a client; its default grows to megabytes for one that does not read.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// Pause after an error like "too many open files", because the next attempt would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 108\r\n\r\n\
    {\"error\":\"Model is overloaded: too many connections are open (--max-connections)\",\"error_type\":\"overloaded\"}";

/// A socket for an address, with the options that accepted connections inherit. It is not bound yet.
pub fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    Ok(socket)
}

/// Makes such a socket and binds it to the address. It does not listen yet.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = socket(address)?;
    // Connections that ended a minute ago must not block the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Counts open connections. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenConnections {
    permits: Arc<Semaphore>,
    max: usize,
}

impl OpenConnections {
    /// Number of connections that are open now.
    pub fn count(&self) -> usize {
        self.max.saturating_sub(self.permits.available_permits())
    }

    /// Most connections at once (`--max-connections`).
    pub fn max(&self) -> usize {
        self.max
    }
}

/// Serves one axum service on the connections of a listener.
pub struct HttpServer {
    service: Router,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    tls: Option<TlsAcceptor>,
    permits: Arc<Semaphore>,
}

impl HttpServer {
    /// A server without TLS. It accepts nothing before [`HttpServer::serve`].
    pub fn new(service: Router, limits: ConnectionLimits, shutdown: Shutdown) -> Self {
        let permits = Arc::new(Semaphore::new(limits.max_connections as usize));
        Self { service, limits, shutdown, tls: None, permits }
    }

    /// A handle to read the number of connections while the server runs.
    pub fn connections(&self) -> OpenConnections {
        OpenConnections { permits: Arc::clone(&self.permits), max: self.limits.max_connections as usize }
    }

    /// If an acceptor is given, all connections are encrypted.
    pub fn with_tls(self, tls: Option<TlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until the shutdown is complete.
    pub async fn serve(self, listener: impl Into<Listener>) -> io::Result<()> {
        let listener = listener.into();
        let connections = TaskTracker::new();
        let done = async {
            self.shutdown.draining().await;
            connections.close();
            tokio::select! {
                () = connections.wait() => {}
                () = self.shutdown.enforce() => {}
            }
        };
        tokio::pin!(done);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut done => return Ok(()),
            };
            match accepted {
                Ok(accepted) => self.accept(accepted, &connections),
                Err(error) => pause_after(&error).await,
            }
        }
    }

    fn accept(&self, accepted: Accepted, connections: &TaskTracker) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            debug!("too many connections");
            accepted.refuse(TOO_MANY_CONNECTIONS);
            return;
        };
        // The shutdown does not wait for a connection that opens while the server drains.
        let awaited = Some(connections.token()).filter(|_| !self.shutdown.is_draining());
        match accepted {
            Accepted::Tcp(stream, client) => {
                // Each token is sent at once, without waiting for the next. A socket on which this fails still works.
                let _ = stream.set_nodelay(true);
                self.start(self.connection(Some(client), awaited), stream, permit);
            }
            Accepted::Unix(stream) => self.start(self.connection(None, awaited), stream, permit),
        }
    }

    fn start<S>(&self, connection: Connection, stream: S, permit: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(connection.run(stream, self.tls.clone(), permit));
    }

    fn connection(&self, client: Option<SocketAddr>, awaited: Option<TaskTrackerToken>) -> Connection {
        let in_flight = InFlight::default();
        let service = CountingService {
            service: self.service.clone(),
            in_flight: in_flight.clone(),
            client,
            shutdown: self.shutdown.clone(),
        };
        Connection {
            service,
            in_flight,
            limits: self.limits.clone(),
            shutdown: self.shutdown.clone(),
            awaited,
        }
    }
}

/// Waits after an error of the server; an error of one client is ignored.
async fn pause_after(error: &io::Error) {
    let is_of_client = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    );
    if !is_of_client {
        warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
