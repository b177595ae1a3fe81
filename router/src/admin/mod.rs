//! The admin socket: replicas are listed, added, drained and removed over it, and the model sent to sleep and woken, as JSON
//! over HTTP. Whoever may open the socket may do so; only its owner may.

pub(crate) mod condition;
mod error;
mod limit;
pub mod record;
mod routes;
mod server;
mod state;

pub use limit::{IllegalLimit, Limit};
pub use routes::service;
pub use server::serve;
pub use state::{Admin, OnRemoved};
