//! The proxy over whole servers, with real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod fake_upstream;
mod faults;
mod front;
mod models;
mod passing_on;
