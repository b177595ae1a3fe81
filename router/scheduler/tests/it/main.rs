//! Tests of the scheduler's public interface, in one binary: by example, and by simulation.
#![allow(missing_docs, reason = "tests")]

mod adapters;
mod beside;
mod cache_events;
mod drafts;
mod fake_shard;
mod leaving;
mod pace;
mod pass_on;
mod replica;
mod scenario;
mod scheduler;
mod simulation;
mod snapshots;
mod stages;
mod turns;
mod weights;
mod windows;
mod world;
