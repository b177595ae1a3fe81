//! The flags about adapters.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::base::boolean::boolean;

/// Longest name of an adapter, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// The flags about adapters that the router reads.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AdapterOptions {
    /// LoRA adapters, as in name=folder,other=org/id@revision: a folder or an id on the hub, by which it is called where
    /// there is no name [default: none]
    #[arg(long, env, value_delimiter = ',', action = ArgAction::Append, value_name = "ADAPTERS")]
    pub lora_adapters: Vec<NamedAdapter>,

    /// Adapters that are loaded at a time, in the memory of the machine; others are loaded when they are asked for, in
    /// the place of those used least recently
    // An adapter of rank 16 on all linears of an 8B model has 84 MB.
    #[arg(long, env, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_cpu_loras: u32,

    /// Folder below which adapters may be loaded at run time [default: none may]
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_root: Option<PathBuf>,

    /// Adapters may be loaded at run time by an id of the Hugging Face Hub, too, and are downloaded then
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub allow_lora_downloads: bool,

    /// Everyone may load and unload adapters at run time, where the server has no API keys; where it has some, a key
    /// needs adapters=load in --api-key-file
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub allow_runtime_lora_updating: bool,

    /// Seconds that loading an adapter may take
    #[arg(long, env, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub lora_load_timeout: u64,
}

/// An adapter as a flag names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAdapter {
    /// The name of the adapter in requests.
    pub name: String,
    /// A folder, or an id on the hub with or without `@revision`. The router gets folders only.
    pub source: String,
}

/// An adapter and its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFolder {
    /// The name of the adapter in requests.
    pub name: String,
    /// Where it is.
    pub folder: PathBuf,
}

impl FromStr for NamedAdapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = text.split_once('=').unwrap_or((text, text));
        check_name(name)?;
        if source.is_empty() {
            return Err(format!("`{text}` names no folder"));
        }
        Ok(Self { name: name.to_owned(), source: source.to_owned() })
    }
}

impl fmt::Display for NamedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.source)
    }
}

impl Serialize for NamedAdapter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NamedAdapter {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Refuses names that no request could send or no log line could show.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.trim().is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        let rule = format!("1 to {MAX_NAME_BYTES} bytes, not only spaces, and no control characters");
        return Err(format!("the name of an adapter must have {rule}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_without_a_name_is_called_by_its_source() {
        for (text, name, source) in
            [("a=/x/y", "a", "/x/y"), ("org/id@v1", "org/id@v1", "org/id@v1"), ("b=o/i@r", "b", "o/i@r")]
        {
            let adapter: NamedAdapter = text.parse().unwrap();
            assert_eq!((adapter.name.as_str(), adapter.source.as_str()), (name, source));
        }
        for text in ["", "=x", "a=", " =x", "a\n=x"] {
            assert!(text.parse::<NamedAdapter>().is_err(), "{text:?}");
        }
    }
}
