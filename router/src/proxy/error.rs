//! Why the proxy could not start, or stopped.

use std::path::PathBuf;

use metrics_exporter_prometheus::BuildError;
use thiserror::Error as ThisError;

use super::url::UpstreamUrl;
use crate::http::server::tls::TlsError;

/// Why the proxy could not start, or stopped.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum ProxyError {
    #[error("--upstream {0} is given twice")]
    Twice(UpstreamUrl),
    #[error("cannot read --upstream-ca {}: {reason}", path.display())]
    UnreadableCa { path: PathBuf, reason: String },
    #[error("TLS to upstreams cannot be set up: {0}")]
    UpstreamTls(#[from] tokio_rustls::rustls::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] BuildError),
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
}
