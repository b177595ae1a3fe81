//! Shards are forked by a process that has imported torch, once for all of them: the fork server, in Python
//! (`server/penstock_server/process/fork_server.py`). Where it cannot do that, they are started plainly.

mod connection;
mod messages;
mod own;
mod servers;

pub use connection::{Forked, Outcome, Pipes};
pub use own::Settings as ForkSettings;
pub use servers::ForkServers;
