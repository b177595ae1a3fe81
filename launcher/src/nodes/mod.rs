//! Groups of shards on several machines, called nodes. The launcher of node 0 has the supervisor and the router. It tells
//! the launchers of the others which shards to start and to end (`hub`, `roster`), and they tell it what becomes of these
//! (`member`). A node that is silent is lost: its shards count as ended here, and it ends them there.
//!
//! ```text
//!  node 0: supervisor ── orders ──► hub ═══ one TCP connection each ═══► member :node 1
//!                     ◄── events ──     ◄══ beats, both ways ══════════
//!          shards, rank 0 … ── where ranks find each other: `store` ◄── shards, rank S …
//! ```
//!
//! Whoever connects proves that it knows the secret, and so does node 0 (`channel`). It is encrypted only by TLS of both sides.

mod alike;
mod channel;
mod hub;
mod link;
mod member;
mod messages;
mod roster;
mod settings;
mod store;

pub use hub::{Hub, ListenError};
pub use member::Member;
pub use messages::Order;
pub use settings::{NodeSettings, NodesError};
