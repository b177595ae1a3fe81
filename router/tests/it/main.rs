//! All tests of the router except the scheduler's, in one binary, because each further binary links the whole router.

mod auth;
mod chat_templates;
mod connections;
mod dashboard;
mod dispatch;
mod engine_loop;
mod fuzz_requests;
mod generation_defaults;
mod grpc;
mod http_api;
mod kserve;
mod messages;
mod model_names;
mod ollama;
mod overload;
mod responses;
mod shutdown;
mod streaming;
mod support;
mod telemetry;
mod tls;
mod tokenize;
mod unread;
