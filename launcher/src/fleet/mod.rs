//! Several models in one server: for each of them a launcher of its own, which has its shards and its router on a Unix
//! socket in the private folder of this run, and in front of them a proxy, which has the port. The launcher of several
//! starts, watches and ends them as a launcher of one model does with shards and router.
//!
//! ```text
//! clients ──► proxy ──► router of chat  ──► its shards      each row is started by a launcher of its own,
//!                  └──► router of embed ──► its shards      and dies with it
//! ```

mod admin;
mod command_lines;
mod devices;
mod error;
mod launch;
mod names;
mod roster;
#[cfg(test)]
mod tests;

pub use error::FleetError;
pub use launch::launch;
pub use roster::{Change, Fleet, Request};
