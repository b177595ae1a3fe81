//! Where the shards of a replica are that somebody else starts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::replica_access::ReplicaAccess;
use super::shard_socket::ShardSocket;
use crate::base::socket_path;

const UNIX: &str = "unix:";
const TCP: &str = "tcp:";

/// The sockets of one replica's shards, rank 0 first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaAddress {
    /// Unix sockets, written as `unix:PATH` with further ranks after colons.
    Unix(Vec<PathBuf>),
    /// TCP addresses, written as `tcp:HOST:PORT` with further ranks after slashes.
    Tcp(Vec<String>),
}

impl ReplicaAddress {
    /// The sockets by rank; those on TCP ask for this.
    pub fn sockets(&self, access: &ReplicaAccess) -> Vec<ShardSocket> {
        let tcp = |address: &String| ShardSocket::Tcp { address: address.clone(), access: access.clone() };
        match self {
            Self::Unix(paths) => paths.iter().cloned().map(ShardSocket::Unix).collect(),
            Self::Tcp(addresses) => addresses.iter().map(tcp).collect(),
        }
    }
}

impl FromStr for ReplicaAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(paths) = text.strip_prefix(UNIX) {
            paths.split(':').try_for_each(socket_path::check).map_err(|why| format!("`{text}`: {why}"))?;
            return Ok(Self::Unix(paths.split(':').map(PathBuf::from).collect()));
        }
        let addresses = text.strip_prefix(TCP).ok_or_else(|| {
            format!(
                "`{text}` is neither unix:PATH nor tcp:HOST:PORT, with further ranks behind colons or slashes"
            )
        })?;
        match addresses.split('/').find(|address| !is_address(address)) {
            Some(wrong) => Err(format!("`{text}`: `{wrong}` is no HOST:PORT")),
            None => Ok(Self::Tcp(addresses.split('/').map(str::to_owned).collect())),
        }
    }
}

/// A name or number, with an IPv6 number in brackets, and a port.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(number) => number.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_plain),
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for ReplicaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(paths) => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                write!(f, "{UNIX}{}", paths.join(":"))
            }
            Self::Tcp(addresses) => write!(f, "{TCP}{}", addresses.join("/")),
        }
    }
}

impl Serialize for ReplicaAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReplicaAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(text: &str) -> Vec<String> {
        let address: ReplicaAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
        address.sockets(&ReplicaAccess::default()).iter().map(ShardSocket::to_string).collect()
    }

    #[test]
    fn ranks_are_separated_by_colons_or_slashes() {
        assert_eq!(sockets("unix:/a.sock"), ["/a.sock"]);
        assert_eq!(sockets("unix:/a/0:/a/1"), ["/a/0", "/a/1"]);
        assert_eq!(sockets("tcp:10.0.0.1:80"), ["tcp:10.0.0.1:80"]);
        assert_eq!(
            sockets("tcp:gpu-1.lan:7000/[fe80::1]:7001"),
            ["tcp:gpu-1.lan:7000", "tcp:[fe80::1]:7001"]
        );
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused_with_the_limit() {
        let path = |len: usize| format!("/{}", "s".repeat(len - 1));
        assert_eq!(sockets(&format!("unix:{}:/b", path(107))), [path(107), "/b".to_owned()]);
        let refused = format!("unix:/a:{}", path(108)).parse::<ReplicaAddress>().unwrap_err();
        assert!(refused.contains("at most 107 bytes") && refused.ends_with("has 108"), "{refused}");
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        let wrong = ["", "unix:", "unix:/a:", "/a.sock", "tcp:", "tcp:a", "tcp::1", "tcp:a:0", "tcp:a:65536"];
        for text in wrong.into_iter().chain(["tcp:a:1/", "tcp:a b:1", "tcp:[x]:1", "tcp:u@a:1", "tcp:a:1/b"])
        {
            let refused = text.parse::<ReplicaAddress>().unwrap_err();
            assert!(refused.contains(&format!("`{text}`")), "{refused}");
        }
    }
}
