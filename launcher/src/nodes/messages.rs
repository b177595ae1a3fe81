//! The messages between nodes. Each message is a line of JSON; shards read and write those of the store, too
//! (`network/rendezvous.py`).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::alike::Alike;
use crate::plan::{CacheSize, StartOptions};
use crate::supervisor::{Ending, Exit};

/// The purpose of a connection, sent by a side that has proved that it may connect.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hello {
    /// The launcher of another node: it is given orders.
    Node(Joining),
    /// A shard: it meets the others of this start of a group.
    Rank {
        /// The number of the group.
        group: usize,
        /// The number of the start.
        start: u32,
    },
}

/// A node that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// Its number.
    pub node: u32,
    /// The version of its launcher.
    pub version: String,
    /// How many shards of each group it has.
    pub num_shards: u32,
    /// Groups on all machines.
    pub num_replicas: u32,
    /// The values that must be equal on all nodes.
    pub alike: Alike,
    /// Where its shards listen.
    pub address: Ipv4Addr,
}

/// The answer to [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Go on.
    Welcome(()),
    /// The reason why it may not connect.
    Refused(String),
}

/// A message from node 0 to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start this shard.
    Start {
        /// Its number among all.
        shard: usize,
        /// The options of this start.
        options: StartOptions,
    },
    /// Ask it to end.
    Terminate {
        /// Its number among all.
        shard: usize,
    },
    /// Kill it.
    Kill {
        /// Its number among all.
        shard: usize,
    },
    /// The server has ended, in this way: end, too.
    End(Ending),
}

/// A message from another node to node 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// A shard is ready.
    Ready {
        /// Its number among all.
        shard: usize,
        /// The size of its cache, if it told.
        cache: Option<CacheSize>,
    },
    /// It has ended.
    Exited {
        /// Its number among all.
        shard: usize,
        /// How.
        exit: Exit,
    },
    /// It makes no progress.
    Hung {
        /// Its number among all.
        shard: usize,
        /// Why it is thought so.
        reason: String,
    },
}

/// A message on a link, in either direction.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame<T> {
    /// The other side lives.
    Beat,
    /// It has something to say.
    Message(T),
}

/// A request of a shard to the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreRequest {
    /// Keep a value.
    Set {
        /// Its key.
        key: String,
        /// The value, which the store does not interpret.
        value: String,
    },
    /// The value, if there is one.
    Get {
        /// Its key.
        key: String,
    },
    /// Keep a value if the one before is as expected; the value that is there afterwards.
    Replace {
        /// Its key.
        key: String,
        /// `None`: there is none.
        expected: Option<String>,
        /// The value, which the store does not interpret.
        value: String,
    },
    /// Forget a value, which is the answer.
    Delete {
        /// Its key.
        key: String,
    },
}

/// The answer to a [`StoreRequest`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreAnswer {
    /// The value that was asked for.
    Value(Option<String>),
    /// Why there is none.
    Refused(String),
}
