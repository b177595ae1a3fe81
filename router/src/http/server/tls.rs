//! TLS by rustls: loads the server's certificate and key, and offers HTTP/2 and HTTP/1.1.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::{Error as PemError, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error as ThisError;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};

/// The name of HTTP/2 in a TLS handshake (ALPN).
pub const H2: &[u8] = b"h2";

/// The certificate or the key cannot be used.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum TlsError {
    #[error("cannot read {flag} {}: {reason}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, reason: std::io::Error },
    #[error("{flag} {} holds no {what} in PEM format", path.display())]
    Missing { flag: &'static str, path: PathBuf, what: &'static str },
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
        let chain = self.chain()?;
        let key = PrivateKeyDer::from_pem_file(self.key)
            .map_err(|error| explain(error, "--tls-key", self.key, "private key"))?;
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

    fn chain(self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let explained = |error| explain(error, "--tls-cert", self.cert, "certificate");
        let found = CertificateDer::pem_file_iter(self.cert).map_err(explained)?;
        let chain = found.collect::<Result<Vec<_>, _>>().map_err(explained)?;
        if chain.is_empty() { Err(explained(PemError::NoItemsFound)) } else { Ok(chain) }
    }
}

fn explain(error: PemError, flag: &'static str, path: &Path, what: &'static str) -> TlsError {
    match error {
        PemError::Io(reason) => TlsError::Unreadable { flag, path: path.to_owned(), reason },
        _ => TlsError::Missing { flag, path: path.to_owned(), what },
    }
}
