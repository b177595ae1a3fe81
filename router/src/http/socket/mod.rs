//! WebSockets: who may open one, and a channel of bounded messages whose client is known to be there.

mod channel;
mod rules;

pub use channel::{Channel, Ending};
pub use rules::SocketRules;
