//! The routes. Handlers extract, call one thing, and convert.

pub mod chat;
pub mod completions;
pub mod generate;
pub mod health;
pub mod info;
pub mod metrics;
pub mod models;
pub mod tokenize;
