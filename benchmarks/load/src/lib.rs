//! `penstock-bench`: measures any server that streams tokens over OpenAI's or TGI's API.
//!
//! The life of a run, and where it lives:
//!
//! ```text
//! args ─► bench ─► workload (what to send: made, read or replayed; tokens counts it)
//!                  arrival  (when to send it: a schedule made before the run)
//!                  driver ─► client ─► http (connections), sse + scan (bytes to events), api (what they mean)
//!                     └─ live ─► progress          one record per request
//!                  summary (slo, stats, vitals) ─► results ─► table, report
//! ```
//!
//! Everything but `bench`, `driver`, `client`, `http` and `progress` is pure and tested against numbers worked out
//! by hand. The clock of a request starts right before its bytes are sent; docs/benchmarking.md defines each figure.

mod api;
mod args;
mod arrival;
mod bench;
mod calendar;
mod client;
mod command;
mod driver;
mod duration;
mod error;
mod http;
mod live;
mod progress;
mod record;
mod report;
mod results;
mod scan;
mod search;
mod slo;
mod sse;
mod stats;
mod summary;
mod table;
mod tokens;
mod vitals;
mod workload;

pub use args::Cli;
pub use command::{main, run};
pub use error::Error;
