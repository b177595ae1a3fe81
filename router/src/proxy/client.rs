//! The HTTP client of the proxy: HTTP/1.1 over connections that are kept and used again.

use std::time::Duration;

use axum::body::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connect::Connector;

/// Shorter than the 75 seconds for which our servers keep a connection, so that none is used that they are about to close.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends requests whose body is known. Cheap to clone.
pub type HttpClient = Client<Connector, Full<Bytes>>;

/// A client that opens connections with this connector.
pub fn client(connector: Connector) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// An error with its causes, on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
