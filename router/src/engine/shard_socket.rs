//! Where a shard is reached, and the secret that it asks for.

use std::fmt;
use std::path::PathBuf;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::mutual_tls::MutualTls;
use super::replica_access::ReplicaAccess;
use super::replica_secret::ReplicaSecret;

/// The name of the secret in the metadata of a call.
const SECRET: &str = "penstock-secret";

/// The socket of one shard.
#[derive(Debug, Clone)]
pub enum ShardSocket {
    /// A Unix socket: who may open it may call.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// Host and port.
        address: String,
        /// The secret and the encryption that the shard requires.
        access: ReplicaAccess,
    },
    /// A TCP address that is another when the shard comes back on another machine.
    Recorded {
        /// Host and port, as they are now.
        file: PathBuf,
        /// The secret and the encryption that the shard requires.
        access: ReplicaAccess,
    },
}

impl ShardSocket {
    /// Where the shard is now.
    pub(super) fn place(&self) -> std::io::Result<Place> {
        Ok(match self {
            Self::Unix(path) => Place::Unix(path.clone()),
            Self::Tcp { address, .. } => Place::Tcp(address.clone()),
            Self::Recorded { file, .. } => Place::Tcp(std::fs::read_to_string(file)?),
        })
    }

    /// Adds to each call what the shard asks for.
    pub(super) fn credentials(&self) -> Credentials {
        let secret = self.access().and_then(|access| access.secret.as_ref());
        Credentials(secret.map(ReplicaSecret::metadata))
    }

    /// How the connection to it is encrypted, if it is.
    pub(super) fn tls(&self) -> Option<&MutualTls> {
        self.access()?.tls.as_ref()
    }

    fn access(&self) -> Option<&ReplicaAccess> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp { access, .. } | Self::Recorded { access, .. } => Some(access),
        }
    }
}

impl fmt::Display for ShardSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { address, .. } => write!(f, "tcp:{address}"),
            Self::Recorded { file, .. } => write!(f, "file:{}", file.display()),
        }
    }
}

/// Where a shard is at one moment.
pub(super) enum Place {
    /// The path of its socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The secret that calls to a shard bring; `None` if none is required.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_address_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let socket =
            ShardSocket::Recorded { file: folder.path().join("1.address"), access: ReplicaAccess::default() };
        assert!(socket.place().is_err(), "nobody has said yet where it is");
        for address in ["10.0.0.2:29502", "10.0.0.3:29502"] {
            std::fs::write(folder.path().join("1.address"), address).unwrap();
            assert_eq!(socket.place().unwrap().to_string(), format!("tcp:{address}"));
        }
    }
}
