//! The Penstock router: takes HTTP, decides what every step of the shards does, and streams tokens back.
//!
//! One direction only: `routes` → `validation` → `generation` → `scheduler` → `engine`. Routes never see protobuf,
//! the engine never sees axum, and the scheduler sees neither clock nor I/O.
//!
//! - [`config`]: everything that can be set, parsed once and passed down
//! - [`app`], [`routes`]: the HTTP service; [`body`] reads what comes in, [`sse`] streams what goes out
//! - [`tgi`], [`openai`], [`logprobs`], [`response_headers`]: the words of the two families of clients
//! - [`error`]: everything that can go wrong for a client
//! - [`validation`]: what a request asks for, checked
//! - [`inference`], [`text_stream`]: from a prompt to running sequences and their text
//! - [`tokenizer`], [`detokenizer`], [`stop`]: text to tokens and back
//! - [`chat`], [`chat_template`], [`control_tokens`], [`python_json`]: conversations to tokens
//! - [`generation`]: the handle by which a route starts a generation and reads its events
//! - [`scheduler`]: the pure state machine that owns requests, slots and KV blocks
//! - [`engine_loop`]: the thin task around the scheduler
//! - [`engine`]: the seam to the shards, and the gRPC client behind it
//! - [`metrics`], [`shutdown`]: what an operator sees, and how serving ends

pub mod app;
pub mod body;
pub mod chat;
pub mod chat_template;
pub mod config;
pub mod control_tokens;
pub mod detokenizer;
pub mod engine;
pub mod engine_loop;
pub mod error;
pub mod generation;
pub mod inference;
pub mod logprobs;
pub mod metrics;
pub mod openai;
pub mod python_json;
pub mod response_headers;
pub mod routes;
pub mod scheduler;
pub mod shutdown;
pub mod sse;
pub mod stop;
pub mod text_stream;
pub mod tgi;
pub mod tokenizer;
pub mod validation;
