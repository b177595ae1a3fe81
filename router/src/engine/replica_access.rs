//! The secret and the encryption that shards on TCP require of a router.

use thiserror::Error;

use super::mutual_tls::{MutualTls, MutualTlsError};
use super::replica_secret::{ReplicaSecret, ReplicaSecretError};

/// The requirements of shards on TCP; by default none.
#[derive(Debug, Clone, Default)]
pub struct ReplicaAccess {
    /// The secret that every call must bring; `None` if none is required.
    pub secret: Option<ReplicaSecret>,
    /// How connections are encrypted.
    pub tls: Option<MutualTls>,
}

/// Why there is no such thing in the files.
#[derive(Debug, Error)]
pub enum ReplicaAccessError {
    /// There is no secret where one is to be.
    #[error(transparent)]
    Secret(#[from] ReplicaSecretError),
    /// Certificates or a key are of no use.
    #[error(transparent)]
    Tls(#[from] MutualTlsError),
}
