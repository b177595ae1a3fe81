//! Adapters that come and go while the server runs: vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, and
//! SGLang's without `/v1`.

pub mod handler;
mod request;

pub use request::{LoadAdapterRequest, LoadedAdapters, UnloadAdapterRequest};
