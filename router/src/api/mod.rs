//! The routes: a folder for each dialect of clients, what the dialects share, and the table of all routes.

pub(crate) mod about;
mod adapters;
mod anthropic;
mod assistant;
pub(crate) mod clouds;
mod condition;
mod field_limits;
mod known_fields;
mod kserve;
mod llamacpp;
mod logprobs;
mod message;
mod object_schema;
mod ollama;
mod openai;
pub mod openapi;
mod pages;
mod respond;
mod response_headers;
mod responses;
mod route_doc;
pub mod service;
mod shared_fields;
pub(crate) mod stream_error;
pub mod table;
mod tgi;
mod tokenize;
