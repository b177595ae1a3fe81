//! The Penstock router: takes HTTP, decides what every step of the shards does, and streams tokens back.
//!
//! One direction only: `routes` → `validation` → `generation` → `scheduler` → `engine`. Routes never see protobuf,
//! the engine never sees axum, and the scheduler sees neither clock nor I/O.
//!
//! - [`config`]: everything that can be set, parsed once and passed down
//! - [`error`]: everything that can go wrong for a client
//! - [`tokenizer`], [`control_tokens`], [`detokenizer`], [`stop`]: text to tokens and back
//! - [`generation`]: the handle by which a route starts a generation and reads its events
//! - [`scheduler`]: the pure state machine that owns requests, slots and KV blocks
//! - [`engine_loop`]: the thin task around the scheduler
//! - [`engine`]: the seam to the shards, and the gRPC client behind it

pub mod chat_template;
pub mod config;
pub mod control_tokens;
pub mod detokenizer;
pub mod engine;
pub mod engine_loop;
pub mod error;
pub mod generation;
pub mod metrics;
pub mod python_json;
pub mod scheduler;
pub mod stop;
pub mod tokenizer;
