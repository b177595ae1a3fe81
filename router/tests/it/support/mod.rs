//! Code that the integration tests share.
#![allow(dead_code, reason = "every test binary uses its own part")]

pub mod fake_adapters;
pub mod fake_engine;
#[path = "../../../scheduler/tests/it/fake_shard.rs"]
pub mod fake_shard;
pub mod fake_weights;
pub mod generations;
pub mod identity;
pub mod ignore;
pub mod lines;
pub mod listening;
pub mod server;
pub mod socket_client;
