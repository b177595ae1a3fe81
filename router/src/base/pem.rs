//! Files in PEM format that flags name: certificates and private keys.

use std::path::{Path, PathBuf};

use rustls_pki_types::pem::{Error, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error as ThisError;

/// Why a file has nothing of use.
#[derive(Debug, ThisError)]
pub enum PemFileError {
    /// It cannot be read.
    #[error("cannot read {flag} {}: {reason}", path.display())]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// It holds something else.
    #[error("{flag} {} holds no {what} in PEM format", path.display())]
    Missing {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The kind of content that it must hold.
        what: &'static str,
    },
}

/// A file, and the flag that names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PemFile<'a> {
    pub flag: &'static str,
    pub path: &'a Path,
}

impl PemFile<'_> {
    /// All certificates in it, of which there is one at least.
    pub fn certificates(self) -> Result<Vec<CertificateDer<'static>>, PemFileError> {
        let explained = |error| self.explain(error, "certificate");
        let found = CertificateDer::pem_file_iter(self.path).map_err(explained)?;
        let chain = found.collect::<Result<Vec<_>, _>>().map_err(explained)?;
        if chain.is_empty() { Err(explained(Error::NoItemsFound)) } else { Ok(chain) }
    }

    /// The private key in it.
    pub fn private_key(self) -> Result<PrivateKeyDer<'static>, PemFileError> {
        PrivateKeyDer::from_pem_file(self.path).map_err(|error| self.explain(error, "private key"))
    }

    /// The bytes of the file, unchanged.
    pub fn bytes(self) -> Result<Vec<u8>, PemFileError> {
        std::fs::read(self.path).map_err(|reason| self.explain(Error::Io(reason), "text"))
    }

    fn explain(self, error: Error, what: &'static str) -> PemFileError {
        let (flag, path) = (self.flag, self.path.to_owned());
        match error {
            Error::Io(reason) => PemFileError::Unreadable { flag, path, reason },
            _ => PemFileError::Missing { flag, path, what },
        }
    }
}
