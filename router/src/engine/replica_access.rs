//! What shards on TCP ask of a router.

use thiserror::Error;

use super::mutual_tls::{MutualTls, MutualTlsError};
use super::replica_secret::{ReplicaSecret, ReplicaSecretError};

/// What they ask for; by default nothing.
#[derive(Debug, Clone, Default)]
pub struct ReplicaAccess {
    /// What every call brings.
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
