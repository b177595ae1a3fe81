//! Connections as they come in, with the limits of the HTTP server: their number, handshakes and writes that must get on.

use std::io;
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

/// After an error like "too many open files" the next attempt would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where clients come in.
pub struct Entrance {
    /// Bound by the caller.
    pub listener: TcpListener,
    /// With an acceptor, all connections are encrypted.
    pub tls: Option<TlsAcceptor>,
}

/// Bytes from a client and to it, encrypted or not.
trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Bytes for S {}

/// A connection, with its place among those that there may be.
pub struct Connection {
    stream: TimedStream<Box<dyn Bytes>>,
    _place: OwnedSemaphorePermit,
}

struct Accepting {
    entrance: Entrance,
    places: Arc<Semaphore>,
    /// `None` comes of one that failed.
    handshakes: JoinSet<Option<Connection>>,
    handshake_timeout: Duration,
    write_timeout: Duration,
}

/// All that come. One too many is closed at once, and its client sees UNAVAILABLE.
pub fn connections(
    entrance: Entrance,
    limits: &ConnectionLimits,
) -> impl Stream<Item = io::Result<Connection>> + use<> {
    let accepting = Accepting {
        entrance,
        places: Arc::new(Semaphore::new(limits.max_connections as usize)),
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
                accepted = self.entrance.listener.accept() => match accepted {
                    Ok((stream, _)) => if let Some(connection) = self.admit(stream) { return connection },
                    Err(error) => {
                        warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(shaken) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = shaken { return connection }
                }
            }
        }
    }

    /// The connection, if it needs no handshake first.
    fn admit(&mut self, stream: TcpStream) -> Option<Connection> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            debug!("too many connections");
            return None;
        };
        // Tokens are small and must not wait for each other. A socket that cannot be told so still works.
        let _ = stream.set_nodelay(true);
        let write_timeout = self.write_timeout;
        let Some(tls) = &self.entrance.tls else {
            return Some(Connection::new(Box::new(stream), place, write_timeout));
        };
        let handshake = timeout(self.handshake_timeout, tls.accept(stream));
        self.handshakes.spawn(async move {
            let stream =
                handshake.await.ok()?.inspect_err(|error| debug!(%error, "a handshake failed")).ok()?;
            Some(Connection::new(Box::new(stream), place, write_timeout))
        });
        None
    }
}

impl Connection {
    fn new(stream: Box<dyn Bytes>, place: OwnedSemaphorePermit, write_timeout: Duration) -> Self {
        Self { stream: TimedStream::for_writes(stream, write_timeout), _place: place }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
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
