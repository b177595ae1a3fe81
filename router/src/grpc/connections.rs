//! Accepts connections within the limits of the HTTP server: their number, the time of a handshake, and the time for
//! which a write may make no progress.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{Stream, unfold};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::http::server::TimedStream;
use crate::http::server::limits::ConnectionLimits;

/// Pause after an error like "too many open files", because the next attempt would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket that gRPC is served on.
pub struct GrpcListener {
    /// A socket that the caller has bound.
    pub listener: TcpListener,
    /// If set, all connections are encrypted.
    pub tls: Option<TlsAcceptor>,
}

/// The bytes of a connection, encrypted or not.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// The address of the client of a connection, which every call carries.
#[derive(Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// A connection, and its permit out of the limit on connections.
pub struct Connection {
    stream: TimedStream<Box<dyn ByteStream>>,
    client: ClientAddress,
    _permit: OwnedSemaphorePermit,
}

struct Accepting {
    listener: GrpcListener,
    permits: Arc<Semaphore>,
    /// Handshakes in progress; one that fails returns `None`.
    handshakes: JoinSet<Option<Connection>>,
    handshake_timeout: Duration,
    write_timeout: Duration,
}

/// All connections. Beyond the limit a connection is closed at once, and its client sees UNAVAILABLE.
pub fn connections(
    listener: GrpcListener,
    limits: &ConnectionLimits,
) -> impl Stream<Item = io::Result<Connection>> + use<> {
    let accepting = Accepting {
        listener,
        permits: Arc::new(Semaphore::new(limits.max_connections as usize)),
        handshakes: JoinSet::new(),
        handshake_timeout: Duration::from_secs(limits.header_timeout),
        write_timeout: Duration::from_secs(limits.write_timeout),
    };
    unfold(accepting, |mut accepting| async {
        let connection = accepting.next().await;
        Some((Ok(connection), accepting))
    })
}

impl Accepting {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.listener.accept() => match accepted {
                    Ok((stream, client)) => {
                        if let Some(connection) = self.admit(stream, client) { return connection }
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(finished) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = finished { return connection }
                }
            }
        }
    }

    /// Returns the connection if it needs no TLS handshake; else starts the handshake.
    fn admit(&mut self, stream: TcpStream, client: SocketAddr) -> Option<Connection> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            debug!("too many connections");
            return None;
        };
        // Each token is sent at once, without waiting for the next. A socket on which this fails still works.
        let _ = stream.set_nodelay(true);
        let write_timeout = self.write_timeout;
        let Some(tls) = &self.listener.tls else {
            return Some(Connection::new(Box::new(stream), client, permit, write_timeout));
        };
        let handshake = timeout(self.handshake_timeout, tls.accept(stream));
        self.handshakes.spawn(async move {
            let stream =
                handshake.await.ok()?.inspect_err(|error| debug!(%error, "a handshake failed")).ok()?;
            Some(Connection::new(Box::new(stream), client, permit, write_timeout))
        });
        None
    }
}

impl Connection {
    fn new(
        stream: Box<dyn ByteStream>,
        client: SocketAddr,
        permit: OwnedSemaphorePermit,
        write_timeout: Duration,
    ) -> Self {
        let stream = TimedStream::for_writes(stream, write_timeout);
        Self { stream, client: ClientAddress(client.ip()), _permit: permit }
    }
}

impl Connected for Connection {
    type ConnectInfo = ClientAddress;

    fn connect_info(&self) -> ClientAddress {
        self.client
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
