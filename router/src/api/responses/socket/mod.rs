//! `/v1/responses` over a WebSocket: each `response.create` of the client is a request, answered with the events that a
//! stream has, one after the other. The connection knows its last response, so that the next request may continue it.

mod create;
mod errors;
mod memory;
mod session;
pub mod upgrade;
