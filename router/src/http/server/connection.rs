//! Serves one connection from its handshake to its end: HTTP/1.1, or HTTP/2 if the TLS handshake chose it.

use std::error::Error as StdError;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::debug;

use super::in_flight::{CountingService, InFlight};
use super::timed_stream::{TimedStream, Timeouts};
use super::tls::H2;
use crate::base::shutdown::Shutdown;
use crate::http::server::limits::ConnectionLimits;

/// Bytes of responses that are buffered before they are written; the least that hyper allows is 8 KiB.
const WRITE_BUFFER_BYTES: usize = 32 << 10;
/// Most requests at once on one connection of HTTP/2.
const MAX_STREAMS: u32 = 128;

/// Everything that is needed to serve a connection.
pub struct Connection {
    pub service: CountingService,
    pub in_flight: InFlight,
    pub limits: ConnectionLimits,
    pub shutdown: Shutdown,
    /// The shutdown waits until this is dropped. `None` if the connection opened while the server drained.
    pub awaited: Option<TaskTrackerToken>,
}

type ServeResult = Result<(), Box<dyn StdError + Send + Sync>>;

impl Connection {
    /// Serves the connection until it ends. It holds its permit until then, also during the handshake.
    pub async fn run<S>(self, stream: S, tls: Option<TlsAcceptor>, _permit: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let ended = match tls {
            Some(tls) => self.run_encrypted(stream, &tls).await,
            None => self.run_http1(stream).await,
        };
        if let Err(error) = ended {
            debug!(error, "a connection ended early");
        }
    }

    async fn run_encrypted<S>(self, stream: S, tls: &TlsAcceptor) -> ServeResult
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = timeout(Duration::from_secs(self.limits.header_timeout), tls.accept(stream)).await??;
        match stream.get_ref().1.alpn_protocol() {
            Some(H2) => self.run_http2(stream).await,
            _ => self.run_http1(stream).await,
        }
    }

    /// A WebSocket leaves the connection of HTTP behind, and still is this connection.
    async fn run_http1<S>(mut self, stream: S) -> ServeResult
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let served = self.serve_http1(stream).await;
        self.in_flight.ended().await;
        served
    }

    /// When the server drains, a request in flight is finished. A connection without one stays open, because a request
    /// may be on its way that must not be lost, but the shutdown no longer waits for it. Responses while the server
    /// drains close their connection.
    async fn serve_http1<S>(&mut self, stream: S) -> ServeResult
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new());
        // The timed stream has this timeout, and another one for idle connections.
        builder.header_read_timeout(None);
        builder.max_header_size(self.limits.max_header_bytes);
        builder.max_buf_size(self.limits.max_header_bytes.max(WRITE_BUFFER_BYTES));
        let stream = self.timed(stream, self.limits.header_timeout);
        let connection = builder.serve_connection(stream, TowerToHyperService::new(self.service.clone()));
        let connection = connection.with_upgrades();
        tokio::pin!(connection);
        tokio::select! {
            // First the connection: a request whose bytes are there is in flight before the drain is noticed.
            biased;
            ended = &mut connection => return Ok(ended?),
            () = self.shutdown.draining() => {}
        }
        if self.in_flight.has_work() {
            connection.as_mut().graceful_shutdown();
        } else {
            self.awaited = None;
        }
        Ok(connection.await?)
    }

    /// When the server drains, the client is told to open no further streams; those that it has opened are finished.
    async fn run_http2<S: AsyncRead + AsyncWrite + Unpin + Send>(self, stream: S) -> ServeResult {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
        builder.max_header_list_size(u32::try_from(self.limits.max_header_bytes).unwrap_or(u32::MAX));
        builder.max_send_buf_size(WRITE_BUFFER_BYTES);
        // Frames that belong to no request may come at any time, so the timeout for headers cannot be used.
        let stream = self.timed(stream, self.limits.idle_timeout);
        let connection = builder.serve_connection(stream, TowerToHyperService::new(self.service.clone()));
        tokio::pin!(connection);
        if self.awaited.is_some() {
            tokio::select! {
                ended = &mut connection => return Ok(ended?),
                () = self.shutdown.draining() => connection.as_mut().graceful_shutdown(),
            }
        }
        Ok(connection.await?)
    }

    fn timed<S>(&self, stream: S, header_timeout: u64) -> TokioIo<TimedStream<S>> {
        let timeouts = Timeouts {
            idle: Duration::from_secs(self.limits.idle_timeout),
            headers: Duration::from_secs(header_timeout),
            write: Duration::from_secs(self.limits.write_timeout),
        };
        TokioIo::new(TimedStream::new(stream, timeouts, self.in_flight.clone()))
    }
}
