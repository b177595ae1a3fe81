//! The routes. Handlers extract, call one thing, and convert; [`table`] says where each is and who may use it.

pub mod chat;
pub mod completions;
pub mod docs;
pub mod generate;
pub mod health;
pub mod info;
pub mod invocations;
pub mod messages;
pub mod metrics;
pub mod models;
pub mod responses;
pub mod stats;
pub mod table;
pub mod tokenize;
pub mod ui;
pub mod vertex;
