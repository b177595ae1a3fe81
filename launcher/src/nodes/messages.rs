//! What nodes say to each other. Each message is a line of JSON; shards read and write those of the store, too
//! (`network/rendezvous.py`).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::alike::Alike;
use crate::plan::{CacheSize, StartOptions};
use crate::supervisor::{Ending, Exit};

/// What whoever connected wants, once it has proved that it may.
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
    /// What has to be equal on all.
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
    /// Why not.
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

/// What goes over a link, either way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame<T> {
    /// The other side lives.
    Beat,
    /// It has something to say.
    Message(T),
}

/// What a shard asks of the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreRequest {
    /// Keep a value.
    Set {
        /// Its key.
        key: String,
        /// Opaque here.
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
        /// Opaque here.
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
    /// What was asked for.
    Value(Option<String>),
    /// Why there is none.
    Refused(String),
}
