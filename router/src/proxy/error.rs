//! Why the proxy could not start, or stopped.

use std::path::PathBuf;

use metrics_exporter_prometheus::BuildError;
use thiserror::Error as ThisError;

use super::url::UpstreamUrl;
use crate::base::pem::PemFileError;
use crate::http::auth::ApiKeyError;
use crate::http::server::tls::TlsError;

/// Why the proxy could not start, or stopped.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum ProxyError {
    #[error("--upstream {0} is given twice")]
    Twice(UpstreamUrl),
    #[error("--upstream {0} has no name, but others have: each needs that of its model, as in NAME=URL")]
    Unnamed(UpstreamUrl),
    #[error("`{0}` is the name of two models: name each model, and each adapter, once")]
    NameOfTwo(String),
    #[error("cannot read --models-file {}: {reason}", path.display())]
    ModelsFile { path: PathBuf, reason: String },
    #[error(transparent)]
    ApiKeys(#[from] ApiKeyError),
    #[error(transparent)]
    Ca(#[from] PemFileError),
    #[error("TLS to upstreams cannot be set up: {0}")]
    UpstreamTls(#[from] tokio_rustls::rustls::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] BuildError),
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
}
