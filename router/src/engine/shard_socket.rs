//! Where a shard is reached, and the secret that it asks for.

use std::fmt;
use std::path::PathBuf;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::replica_secret::ReplicaSecret;

/// The name of the secret in the metadata of a call.
const SECRET: &str = "penstock-secret";

/// The socket of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardSocket {
    /// A Unix socket: who may open it may call.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// Host and port.
        address: String,
        /// What every call has to bring, if the shard asks for it.
        secret: Option<ReplicaSecret>,
    },
}

impl ShardSocket {
    /// Adds to each call what the shard asks for.
    pub(super) fn credentials(&self) -> Credentials {
        match self {
            Self::Unix(_) => Credentials(None),
            Self::Tcp { secret, .. } => Credentials(secret.as_ref().map(ReplicaSecret::metadata)),
        }
    }
}

impl fmt::Display for ShardSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { address, .. } => write!(f, "tcp:{address}"),
        }
    }
}

/// What calls to a shard bring.
#[derive(Clone)]
pub(super) struct Credentials(Option<MetadataValue<Ascii>>);

impl Interceptor for Credentials {
    fn call(&mut self, mut call: Request<()>) -> Result<Request<()>, Status> {
        if let Some(secret) = &self.0 {
            call.metadata_mut().insert(SECRET, secret.clone());
        }
        Ok(call)
    }
}
