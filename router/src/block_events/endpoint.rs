//! Where block events are published: an address as ZMQ writes it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::socket_path;

const TCP: &str = "tcp://";
const IPC: &str = "ipc://";

/// A place to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address, written as `tcp://ADDRESS:PORT`; `*` is every address of the machine.
    Tcp(SocketAddr),
    /// A Unix socket, written as `ipc://PATH`.
    Ipc(PathBuf),
}

impl Endpoint {
    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Ipc(_) => true,
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(IPC) {
            socket_path::check(path)?;
            return Ok(Self::Ipc(PathBuf::from(path)));
        }
        let address = text.strip_prefix(TCP).and_then(address);
        address.map(Self::Tcp).ok_or_else(|| {
            format!(
                "`{text}` is neither tcp://ADDRESS:PORT, with a number or * as the address, nor ipc://PATH"
            )
        })
    }
}

/// Numbers only: a name may stand for several addresses, also for those of other machines.
fn address(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = match text.strip_prefix("*:") {
        Some(port) => (IpAddr::from(Ipv4Addr::UNSPECIFIED), port.parse().ok()?).into(),
        None => text.replacen("localhost:", "127.0.0.1:", 1).parse().ok()?,
    };
    Some(address).filter(|address| address.port() > 0)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{TCP}{address}"),
            Self::Ipc(path) => write!(f, "{IPC}{}", path.display()),
        }
    }
}

impl Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, bool) {
        let endpoint: Endpoint = text.parse().unwrap();
        (endpoint.to_string(), endpoint.is_local())
    }

    #[test]
    fn says_whether_other_machines_reach_it() {
        for local in ["tcp://127.0.0.1:5557", "tcp://127.1.2.3:1", "tcp://[::1]:5557", "ipc:///run/a.sock"] {
            assert_eq!(parsed(local), (local.to_owned(), true));
        }
        assert_eq!(parsed("tcp://localhost:5557"), ("tcp://127.0.0.1:5557".to_owned(), true));
        assert_eq!(parsed("tcp://*:5557"), ("tcp://0.0.0.0:5557".to_owned(), false));
        for open in ["tcp://0.0.0.0:1", "tcp://10.0.0.7:1", "tcp://[::]:1", "tcp://[::ffff:10.0.0.7]:1"] {
            assert!(!parsed(open).1, "{open}");
        }
        assert!(parsed("tcp://[::ffff:127.0.0.1]:1").1);
    }

    #[test]
    fn others_are_refused_by_name() {
        let wrong = [
            "",
            "tcp://",
            "tcp://*",
            "tcp://*:x",
            "tcp://*:65536",
            "tcp://*:0",
            "tcp://gpu:1",
            "127.0.0.1:1",
            "inproc://a",
        ];
        for text in wrong {
            assert!(text.parse::<Endpoint>().unwrap_err().contains(&format!("`{text}`")));
        }
        assert!("ipc://".parse::<Endpoint>().unwrap_err().contains("empty"));
        let long = format!("ipc:///{}", "a".repeat(107));
        assert!(long.parse::<Endpoint>().unwrap_err().contains("at most 107 bytes"));
    }
}
