//! Connections as they come in, with the limits of the HTTP server: their number, and writes that must get on.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{Stream, unfold};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::config::ConnectionLimits;
use crate::http_server::TimedStream;

/// After an error like "too many open files" the next attempt would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection, with its place among those that there may be.
pub struct Connection {
    stream: TimedStream<TcpStream>,
    _place: OwnedSemaphorePermit,
}

struct Accepting {
    listener: TcpListener,
    places: Arc<Semaphore>,
    write_timeout: Duration,
}

/// All that come. One too many is closed at once, and its client sees UNAVAILABLE.
pub fn connections(
    listener: TcpListener,
    limits: &ConnectionLimits,
) -> impl Stream<Item = io::Result<Connection>> + use<> {
    let accepting = Accepting {
        listener,
        places: Arc::new(Semaphore::new(limits.max_connections as usize)),
        write_timeout: Duration::from_secs(limits.write_timeout),
    };
    unfold(accepting, |accepting| async {
        let connection = accepting.next().await;
        Some((Ok(connection), accepting))
    })
}

impl Accepting {
    async fn next(&self) -> Connection {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match Arc::clone(&self.places).try_acquire_owned() {
                    Ok(place) => return self.connection(stream, place),
                    Err(_) => debug!("too many connections"),
                },
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn connection(&self, stream: TcpStream, place: OwnedSemaphorePermit) -> Connection {
        // Tokens are small and must not wait for each other. A socket that cannot be told so still works.
        let _ = stream.set_nodelay(true);
        Connection { stream: TimedStream::for_writes(stream, self.write_timeout), _place: place }
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
