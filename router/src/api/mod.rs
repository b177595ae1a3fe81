//! The routes: a folder for each dialect of clients, what they share, and the table that says which route is where.

pub mod about;
pub mod anthropic;
pub mod assistant;
pub mod clouds;
pub mod logprobs;
pub mod object_schema;
pub mod openai;
pub mod openapi;
pub mod pages;
pub mod response_headers;
pub mod responses;
pub mod route_doc;
pub mod service;
mod shared_fields;
pub mod table;
pub mod tgi;
pub mod tokenize;
