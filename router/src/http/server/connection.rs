//! One connection from its handshake to its end: HTTP/1.1, or HTTP/2 if TLS agreed on it.

use std::error::Error as StdError;
use std::pin::Pin;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::in_flight::{Counted, InFlight};
use super::timed_stream::{TimedStream, Timeouts};
use super::tls::H2;
use crate::base::shutdown::Shutdown;
use crate::http::server::limits::ConnectionLimits;

/// Bytes of answers that are put together before the system takes them; the smallest that hyper allows is 8 KiB.
const WRITE_BUFFER_BYTES: usize = 32 << 10;
/// Requests under way on one connection of HTTP/2.
const MAX_STREAMS: u32 = 128;

/// What a connection is served with.
pub struct Connection {
    pub service: Counted,
    pub in_flight: InFlight,
    pub limits: ConnectionLimits,
    pub shutdown: Shutdown,
    /// Whether it may have a second request, and is asked to end when the server drains.
    pub keep_alive: bool,
}

type Ended = Result<(), Box<dyn StdError + Send + Sync>>;

impl Connection {
    /// Serves it to its end; its place is taken until then, handshake included.
    pub async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>, _place: OwnedSemaphorePermit) {
        let ended = match tls {
            Some(tls) => self.run_encrypted(stream, &tls).await,
            None => self.run_http1(stream).await,
        };
        if let Err(error) = ended {
            debug!(error, "a connection ended early");
        }
    }

    async fn run_encrypted(self, stream: TcpStream, tls: &TlsAcceptor) -> Ended {
        let stream = timeout(Duration::from_secs(self.limits.header_timeout), tls.accept(stream)).await??;
        match stream.get_ref().1.alpn_protocol() {
            Some(H2) => self.run_http2(stream).await,
            _ => self.run_http1(stream).await,
        }
    }

    async fn run_http1<S: AsyncRead + AsyncWrite + Unpin + Send>(self, stream: S) -> Ended {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).keep_alive(self.keep_alive);
        // Our stream has this timeout, and another one for those that are idle.
        builder.header_read_timeout(None);
        builder.max_header_size(self.limits.max_header_bytes);
        builder.max_buf_size(self.limits.max_header_bytes.max(WRITE_BUFFER_BYTES));
        let stream = self.timed(stream, self.limits.header_timeout);
        let connection = builder.serve_connection(stream, TowerToHyperService::new(self.service.clone()));
        self.drive(connection, http1::Connection::graceful_shutdown).await
    }

    async fn run_http2<S: AsyncRead + AsyncWrite + Unpin + Send>(self, stream: S) -> Ended {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
        builder.max_header_list_size(u32::try_from(self.limits.max_header_bytes).unwrap_or(u32::MAX));
        builder.max_send_buf_size(WRITE_BUFFER_BYTES);
        // Frames that belong to no request come at any time.
        let stream = self.timed(stream, self.limits.idle_timeout);
        let connection = builder.serve_connection(stream, TowerToHyperService::new(self.service.clone()));
        self.drive(connection, http2::Connection::graceful_shutdown).await
    }

    fn timed<S>(&self, stream: S, headers: u64) -> TokioIo<TimedStream<S>> {
        let timeouts = Timeouts {
            idle: Duration::from_secs(self.limits.idle_timeout),
            headers: Duration::from_secs(headers),
            write: Duration::from_secs(self.limits.write_timeout),
        };
        TokioIo::new(TimedStream::new(stream, timeouts, self.in_flight.clone()))
    }

    /// To its end, which a server that drains asks for.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        connection: C,
        shut_down: fn(Pin<&mut C>),
    ) -> Ended {
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = self.draining() => {
                shut_down(connection.as_mut());
                connection.await
            }
        };
        Ok(ended?)
    }

    /// Waits until those who keep their connection have to give it up.
    async fn draining(&self) {
        match self.keep_alive {
            true => self.shutdown.draining().await,
            false => std::future::pending().await,
        }
    }
}
