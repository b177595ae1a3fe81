//! The routes with information about the server: health, limits, models, metrics, load.

pub mod health;
pub mod info;
pub mod metrics;
pub mod models;
pub mod stats;
pub mod version;
