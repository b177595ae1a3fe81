//! Where one of the shards is that are supervised with this router: on this machine, or on another that holds the model
//! together with it.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::replica_access::ReplicaAccess;
use super::shard_socket::ShardSocket;

const TCP: &str = "tcp:";
const FILE: &str = "file:";

/// The socket of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardAddress {
    /// A Unix socket, written as its path.
    Unix(PathBuf),
    /// A TCP address, written as `tcp:HOST:PORT`.
    Tcp(String),
    /// A file that says HOST:PORT, as long as the file is there; written as `file:PATH`.
    Recorded(PathBuf),
}

impl ShardAddress {
    /// The socket; one on TCP asks for this.
    pub fn socket(&self, access: &ReplicaAccess) -> ShardSocket {
        match self {
            Self::Unix(path) => ShardSocket::Unix(path.clone()),
            Self::Tcp(address) => ShardSocket::Tcp { address: address.clone(), access: access.clone() },
            Self::Recorded(file) => ShardSocket::Recorded { file: file.clone(), access: access.clone() },
        }
    }
}

impl FromStr for ShardAddress {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text.strip_prefix(TCP), text.strip_prefix(FILE)) {
            (Some(address), _) => Self::Tcp(address.to_owned()),
            (None, Some(file)) => Self::Recorded(file.into()),
            (None, None) => Self::Unix(text.into()),
        })
    }
}

impl fmt::Display for ShardAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{TCP}{address}"),
            Self::Recorded(file) => write!(f, "{FILE}{}", file.display()),
        }
    }
}

impl Serialize for ShardAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ShardAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_on_this_machine_or_on_another() {
        for (text, address) in [
            ("/run/0.sock", ShardAddress::Unix("/run/0.sock".into())),
            ("tcp:10.0.0.2:29502", ShardAddress::Tcp("10.0.0.2:29502".to_owned())),
            ("file:/run/1.address", ShardAddress::Recorded("/run/1.address".into())),
        ] {
            let parsed = text.parse::<ShardAddress>().unwrap();
            assert_eq!((parsed.to_string().as_str(), &parsed), (text, &address));
            assert_eq!(parsed.socket(&ReplicaAccess::default()).to_string(), text);
        }
    }
}
