//! The scheduler from outside, in one binary: behaviour by example, and by simulation.
#![allow(missing_docs, reason = "tests")]

mod fake_shard;
mod pace;
mod scheduler;
mod simulation;
mod windows;
mod world;
