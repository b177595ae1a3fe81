//! TLS by rustls: loads the server's certificate and key, and offers HTTP/2 and HTTP/1.1.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error as ThisError;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::base::pem::{PemFile, PemFileError};

/// The name of HTTP/2 in a TLS handshake (ALPN).
pub const H2: &[u8] = b"h2";

/// The certificate or the key cannot be used.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum TlsError {
    #[error(transparent)]
    File(#[from] PemFileError),
    #[error("--tls-cert {} and --tls-key {} cannot be used: {reason}", cert.display(), key.display())]
    Unusable { cert: PathBuf, key: PathBuf, reason: rustls::Error },
}

/// Paths of two files in PEM format: the certificate with those that signed it, and its private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsFiles<'a> {
    /// The path of `--tls-cert`.
    pub cert: &'a Path,
    /// The path of `--tls-key`.
    pub key: &'a Path,
}

impl TlsFiles<'_> {
    /// Loads both files into an acceptor for handshakes of TLS 1.2 and 1.3.
    pub fn acceptor(self) -> Result<TlsAcceptor, TlsError> {
        let chain = PemFile { flag: "--tls-cert", path: self.cert }.certificates()?;
        let key = PemFile { flag: "--tls-key", path: self.key }.private_key()?;
        let unusable =
            |reason| TlsError::Unusable { cert: self.cert.to_owned(), key: self.key.to_owned(), reason };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
