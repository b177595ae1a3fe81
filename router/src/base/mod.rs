//! What every floor may use: errors, who speaks and how, who calls, shutdown. Nothing here knows HTTP handlers, the engine or text.

pub mod caller;
pub mod counted;
pub mod dialect;
pub mod error;
pub mod json_depth;
pub mod rate_limit;
pub mod shutdown;
pub mod text_or_list;
pub mod unix_time;
