//! A router on a port of its own, for tests of connections.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::net::SocketAddr;
use std::time::Duration;

use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::http::server::{HttpServer, bind};
use tokio::net::TcpSocket;
use tokio_rustls::TlsAcceptor;

use super::server::Server;

/// How long a test waits for an event that must happen, also on a busy machine. It is shorter than the default timeouts
/// of a connection, so that only a timeout set by the test can have ended it. Exact times are tested with paused time.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A port that refuses connections, and that the system assigns to no other socket while this one is kept. A process
/// that binds the address explicitly may listen there.
pub fn reserve() -> (TcpSocket, SocketAddr) {
    let holder = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = holder.local_addr().unwrap();
    (holder, address)
}

pub fn serve(server: &Server, limits: ConnectionLimits) -> SocketAddr {
    serve_with(server, limits, None)
}

pub fn serve_with(server: &Server, limits: ConnectionLimits, tls: Option<TlsAcceptor>) -> SocketAddr {
    let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(64).unwrap();
    let address = listener.local_addr().unwrap();
    let http = HttpServer::new(server.service(), limits, server.state.inference.shutdown.clone());
    tokio::spawn(http.with_tls(tls).serve(listener));
    address
}
