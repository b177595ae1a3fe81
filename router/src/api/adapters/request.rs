//! The bodies of requests that load and unload adapters, and of the responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};

/// The body of `/v1/load_lora_adapter`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadAdapterRequest {
    /// What requests will call the adapter.
    pub lora_name: String,
    /// Its folder, below `--lora-root`; or, with `--allow-lora-downloads`, its id on the hub, as in org/name@revision.
    pub lora_path: String,
    /// Whether it may replace an adapter of the same name.
    pub load_inplace: Option<bool>,
}

/// The body of `/v1/unload_lora_adapter`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UnloadAdapterRequest {
    /// The name of the adapter.
    pub lora_name: String,
}

/// The response: every adapter, and the hash of its content if it was loaded once.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadedAdapters {
    pub success: bool,
    pub loaded_adapters: BTreeMap<String, Option<String>>,
}

impl HasKnownFields for LoadAdapterRequest {
    const ON: On = On::LoadAdapter;
}

impl HasKnownFields for UnloadAdapterRequest {
    const ON: On = On::UnloadAdapter;
}
