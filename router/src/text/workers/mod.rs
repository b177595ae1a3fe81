//! A few threads for work that would block the event loop, behind a bounded queue. A job whose client has disconnected
//! is skipped, one that panics fails alone, and one that takes too long is given up: nothing can stop its thread, so
//! another thread takes its place.

mod attempt;
mod config;
mod pool;
mod threads;

pub use config::{NoResult, WorkersConfig};
pub use pool::Workers;
