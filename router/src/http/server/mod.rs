//! The accept loop: connections in, each with limits of its own on number, header bytes, time and what is buffered for a
//! reader that does not read. What a request may hold is bounded elsewhere.
//!
//! While it drains, connections that are there finish their request and close; new ones get one answer, which tells
//! them that the server is going (or how it is), until the last old one is done.

mod connection;
mod in_flight;
pub mod limits;
mod timed_stream;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::base::shutdown::Shutdown;
use crate::http::server::limits::ConnectionLimits;
use connection::Connection;
use in_flight::{Counted, InFlight};
pub(crate) use timed_stream::TimedStream;

/// Bytes that the system buffers for a client; its default grows to megabytes for one that does not read.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// After an error like "too many open files" the next attempt would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 108\r\n\r\n\
    {\"error\":\"Model is overloaded: too many connections are open (--max-connections)\",\"error_type\":\"overloaded\"}";

/// A socket bound to an address, with what all accepted connections inherit from it. Not listening yet.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What was served here a minute ago must not be in the way.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    Ok(socket)
}

/// How many connections are open. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenConnections {
    places: Arc<Semaphore>,
    max: usize,
}

impl OpenConnections {
    /// Now.
    pub fn count(&self) -> usize {
        self.max.saturating_sub(self.places.available_permits())
    }

    /// At most.
    pub fn max(&self) -> usize {
        self.max
    }
}

/// A service on its connections.
pub struct HttpServer {
    service: Router,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    tls: Option<TlsAcceptor>,
    places: Arc<Semaphore>,
}

impl HttpServer {
    /// Nothing happens before [`HttpServer::serve`].
    pub fn new(service: Router, limits: ConnectionLimits, shutdown: Shutdown) -> Self {
        let places = Arc::new(Semaphore::new(limits.max_connections as usize));
        Self { service, limits, shutdown, tls: None, places }
    }

    /// To be looked at while it serves.
    pub fn connections(&self) -> OpenConnections {
        OpenConnections { places: Arc::clone(&self.places), max: self.limits.max_connections as usize }
    }

    /// With an acceptor, all connections are encrypted.
    pub fn with_tls(self, tls: Option<TlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until the shutdown is complete.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
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
                Ok((stream, _)) => self.accept(stream, &connections),
                Err(error) => pause(&error).await,
            }
        }
    }

    fn accept(&self, stream: TcpStream, connections: &TaskTracker) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            debug!("too many connections");
            // It fits into an empty buffer, or the client has to do without it.
            let _ = stream.try_write(TOO_MANY);
            return;
        };
        // Tokens are small and must not wait for each other. A socket that cannot be told so still works.
        let _ = stream.set_nodelay(true);
        // One that comes now is told how it is, and is not waited for.
        let is_late = self.shutdown.is_draining();
        let connection = self.connection(!is_late).run(stream, self.tls.clone(), place);
        if is_late {
            tokio::spawn(connection);
        } else {
            connections.spawn(connection);
        }
    }

    fn connection(&self, keep_alive: bool) -> Connection {
        let in_flight = InFlight::default();
        let service = Counted { service: self.service.clone(), in_flight: in_flight.clone() };
        Connection {
            service,
            in_flight,
            limits: self.limits.clone(),
            shutdown: self.shutdown.clone(),
            keep_alive,
        }
    }
}

async fn pause(error: &io::Error) {
    let is_the_clients = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    );
    if !is_the_clients {
        warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
