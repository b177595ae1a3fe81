//! The routes as clients see them, over fake shards: bodies, headers, statuses.

mod errors;
mod fields;
mod native;
mod native_token_fields;
mod openai;
mod openapi;
mod server;
mod token_fields;
