//! Where subscribers connect: a TCP port or a Unix socket, and at most so many of them at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::debug;

use super::endpoint::Endpoint;
use super::options::BlockEventOptions;
use crate::base::private_socket::PrivateSocket;

/// Connections at a time; each takes a task and a file.
const MAX_CONNECTIONS: usize = 64;
/// Pause after the system had no connection to give, as when there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Both sockets, bound.
#[derive(Debug)]
pub struct Listeners {
    pub(super) events: Listener,
    pub(super) replay: Option<Listener>,
}

/// A bound socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(PrivateSocket),
}

/// A connection of either.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listeners {
    /// Binds the endpoints of the flags, if there are any. The error names the flag.
    pub async fn bind(options: &BlockEventOptions) -> Result<Option<Self>, BindError> {
        let Some(endpoint) = &options.kv_events_endpoint else { return Ok(None) };
        let events = Listener::bind("--kv-events-endpoint", endpoint).await?;
        let replay = match &options.kv_events_replay_endpoint {
            Some(endpoint) => Some(Listener::bind("--kv-events-replay-endpoint", endpoint).await?),
            None => None,
        };
        Ok(Some(Self { events, replay }))
    }
}

/// An endpoint that cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {flag} {endpoint}: {error}")]
pub struct BindError {
    flag: &'static str,
    endpoint: Endpoint,
    error: io::Error,
}

impl Listener {
    async fn bind(flag: &'static str, endpoint: &Endpoint) -> Result<Self, BindError> {
        let bound = match endpoint {
            Endpoint::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Endpoint::Ipc(path) => PrivateSocket::bind(path).map(Self::Unix),
        };
        bound.map_err(|error| BindError { flag, endpoint: endpoint.clone(), error })
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(socket) => Box::new(socket.listener.accept().await?.0),
        })
    }

    /// Has each connection served by a task of its own. Never returns.
    pub async fn serve<F: Future<Output = io::Result<()>> + Send + 'static>(
        self,
        connected: impl Fn(Box<dyn Stream>) -> F,
    ) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            let stream = match self.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    debug!(%error, "no connection of a subscriber");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let serving = connected(stream);
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = serving.await {
                    debug!(%error, "a subscriber of block events is gone");
                }
            });
        }
    }
}
