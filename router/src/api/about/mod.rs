//! What the server tells of itself.

pub mod health;
pub mod info;
pub mod metrics;
pub mod models;
pub mod stats;
