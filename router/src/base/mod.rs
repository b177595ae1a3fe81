//! Code for every floor: errors, dialects, callers and their rate limits, shutdown, live state. Nothing here knows HTTP
//! handlers, the engine or text.

pub mod boolean;
pub(crate) mod caller;
pub(crate) mod counted;
pub(crate) mod dialect;
pub(crate) mod error;
pub(crate) mod folder_below;
pub(crate) mod json_depth;
pub mod launcher_line;
pub mod launcher_tie;
pub mod listen_address;
pub(crate) mod live_state;
pub(crate) mod pem;
pub mod private_socket;
pub(crate) mod rate_limit;
pub(crate) mod request_id;
pub(crate) mod role;
pub mod shutdown;
pub(crate) mod socket_path;
pub(crate) mod text_or_list;
pub(crate) mod unix_time;
