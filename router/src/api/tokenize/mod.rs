//! The routes between text and tokens: TGI's, vLLM's and llama.cpp's.

pub mod handler;
mod request;
mod response;

pub use request::{DetokenizeRequest, TokenizeChat, TokenizePrompt};
pub use response::{ChatTokens, DetokenizeResponse, RenderedPrompt, SimpleToken, TokenList};
