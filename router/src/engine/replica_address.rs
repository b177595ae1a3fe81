//! Where the shards of a replica are that somebody else starts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const UNIX: &str = "unix:";

/// The Unix sockets of one replica's shards, rank 0 first; as a text, `unix:PATH` with further ranks behind colons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaAddress(pub Vec<PathBuf>);

impl FromStr for ReplicaAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(paths) = text.strip_prefix(UNIX) else {
            return Err(format!(
                "`{text}` is no unix:PATH; shards are reached through Unix sockets only, because their wire has no secret"
            ));
        };
        if paths.split(':').any(str::is_empty) {
            return Err(format!("`{text}` has an empty path"));
        }
        Ok(Self(paths.split(':').map(PathBuf::from).collect()))
    }
}

impl fmt::Display for ReplicaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<_> = self.0.iter().map(|path| path.display().to_string()).collect();
        write!(f, "{UNIX}{}", paths.join(":"))
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

    #[test]
    fn ranks_are_separated_by_colons() {
        for (text, paths) in [("unix:/a.sock", vec!["/a.sock"]), ("unix:/a/0:/a/1", vec!["/a/0", "/a/1"])] {
            let address: ReplicaAddress = text.parse().unwrap();
            assert_eq!(address.0, paths.iter().map(PathBuf::from).collect::<Vec<_>>());
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        for text in ["", "unix:", "unix:/a:", "tcp:10.0.0.1:80", "/a.sock"] {
            let refused = text.parse::<ReplicaAddress>().unwrap_err();
            assert!(refused.contains(&format!("`{text}`")), "{refused}");
        }
    }
}
