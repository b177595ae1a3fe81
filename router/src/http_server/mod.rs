//! The accept loop: connections in, each with limits of its own on number, header bytes, time and what is buffered for a
//! reader that does not read. What a request may hold is bounded elsewhere.
//!
//! While it drains, connections that are there finish their request and close; new ones get one answer, which tells
//! them that the server is going (or how it is), until the last old one is done.

mod timed_stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::config::ConnectionLimits;
use crate::shutdown::Shutdown;
pub(crate) use timed_stream::TimedStream;

/// Bytes that the system buffers for a client; its default grows to megabytes for one that does not read.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// Bytes of answers that are put together before the system takes them; the smallest that hyper allows is 8 KiB.
const WRITE_BUFFER_BYTES: usize = 32 << 10;
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

/// A service on its connections.
pub struct HttpServer {
    service: Router,
    limits: ConnectionLimits,
    shutdown: Shutdown,
    places: Arc<Semaphore>,
}

impl HttpServer {
    /// Nothing happens before [`HttpServer::serve`].
    pub fn new(service: Router, limits: ConnectionLimits, shutdown: Shutdown) -> Self {
        let places = Arc::new(Semaphore::new(limits.max_connections as usize));
        Self { service, limits, shutdown, places }
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
        let connection = self.connection(stream, place, !is_late);
        if is_late {
            tokio::spawn(connection);
        } else {
            connections.spawn(connection);
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        keep_alive: bool,
    ) -> impl Future<Output = ()> + Send + use<> {
        let write_timeout = Duration::from_secs(self.limits.write_timeout);
        let io = TokioIo::new(TimedStream::new(stream, write_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(keep_alive)
            .header_read_timeout(Duration::from_secs(self.limits.header_timeout))
            .max_header_size(self.limits.max_header_bytes)
            .max_buf_size(self.limits.max_header_bytes.max(WRITE_BUFFER_BYTES))
            .serve_connection(io, TowerToHyperService::new(self.service.clone()));
        let shutdown = self.shutdown.clone();
        async move {
            let _place = place;
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = draining(&shutdown, keep_alive) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                debug!(%error, "a connection ended early");
            }
        }
    }
}

/// Waits until those who keep their connection have to give it up.
async fn draining(shutdown: &Shutdown, keep_alive: bool) {
    match keep_alive {
        true => shutdown.draining().await,
        false => std::future::pending().await,
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
