//! The flags about block events.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::endpoint::Endpoint;
use super::message::BatchForm;
use crate::base::boolean::boolean;

/// The flags. Their names are those of the fields of vLLM's `--kv-events-config`.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BlockEventOptions {
    /// Where it is published which blocks the prefix cache of each replica stores and removes, as vLLM does it over ZMQ:
    /// tcp://127.0.0.1:5557 or ipc://PATH. Subscribers see the tokens of all prompts and replies [default: nowhere]
    #[arg(long, env, value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_endpoint: Option<Endpoint>,

    /// Where subscribers may ask for such messages again that they missed [default: nowhere]
    #[arg(long, env, value_name = "ENDPOINT", requires = "kv_events_endpoint")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_replay_endpoint: Option<Endpoint>,

    /// Let machines that reach these endpoints read all that is published; without it they must be loopback addresses or Unix
    /// sockets
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub kv_events_allow_remote: bool,

    /// Topic of the messages; llm-d wants kv@POD@MODEL
    #[arg(long, env, default_value = "", value_parser = topic)]
    pub kv_events_topic: String,

    /// Messages that may be asked for again; at most 64 MiB of them are kept
    #[arg(long, env, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub kv_events_buffer_steps: u32,

    /// How an event is written: as an array, which all readers take, or as a map, as vLLM does since 0.24
    #[arg(long, env, value_enum, default_value = "array")]
    pub kv_events_format: EventFormat,
}

/// How an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventFormat {
    /// Its kind and its fields, in order
    Array,
    /// Its fields by name
    Map,
}

impl From<EventFormat> for BatchForm {
    fn from(format: EventFormat) -> Self {
        match format {
            EventFormat::Array => Self::Array,
            EventFormat::Map => Self::Map,
        }
    }
}

/// Why block events are not published.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{flag} {endpoint} is open to other machines, which could read the tokens of all prompts and replies: allow that with \
     --kv-events-allow-remote, or use a loopback address or ipc://PATH"
)]
pub struct OpenEndpoint {
    flag: &'static str,
    endpoint: Endpoint,
}

impl BlockEventOptions {
    /// Refuses endpoints that other machines reach, unless they may.
    pub fn check(&self) -> Result<(), OpenEndpoint> {
        let endpoints = [
            ("--kv-events-endpoint", &self.kv_events_endpoint),
            ("--kv-events-replay-endpoint", &self.kv_events_replay_endpoint),
        ];
        let open = endpoints.into_iter().find_map(|(flag, endpoint)| {
            let endpoint = endpoint.clone().filter(|endpoint| !endpoint.is_local())?;
            Some(OpenEndpoint { flag, endpoint })
        });
        open.filter(|_| !self.kv_events_allow_remote).map_or(Ok(()), Err)
    }
}

/// Longest topic: every message begins with it.
const MAX_TOPIC_BYTES: usize = 512;

fn topic(text: &str) -> Result<String, String> {
    match text.len() {
        len if len > MAX_TOPIC_BYTES => {
            Err(format!("it has {len} bytes, and at most {MAX_TOPIC_BYTES} are allowed"))
        }
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        options: BlockEventOptions,
    }

    fn checked(flags: &[&str]) -> Result<(), String> {
        let flags = Flags::try_parse_from([&["x"], flags].concat()).map_err(|error| error.to_string())?;
        flags.options.check().map_err(|error| error.to_string())
    }

    #[test]
    fn other_machines_must_be_allowed_to_read() {
        let open = "tcp://*:5557";
        let here = "tcp://127.0.0.1:5557";
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["--kv-events-endpoint", here]), Ok(()));
        assert!(
            checked(&["--kv-events-endpoint", open])
                .unwrap_err()
                .contains("--kv-events-endpoint tcp://0.0.0.0")
        );
        let replay = ["--kv-events-endpoint", here, "--kv-events-replay-endpoint", open];
        assert!(checked(&replay).unwrap_err().contains("--kv-events-replay-endpoint"));
        assert_eq!(checked(&["--kv-events-endpoint", open, "--kv-events-allow-remote"]), Ok(()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(checked(&["--kv-events-replay-endpoint", "tcp://127.0.0.1:5558"]).is_err());
        assert!(checked(&["--kv-events-topic", &"x".repeat(513)]).unwrap_err().contains("513"));
        assert_eq!(checked(&["--kv-events-topic", &"x".repeat(512)]), Ok(()));
        assert!(checked(&["--kv-events-buffer-steps", "0"]).is_err());
    }
}
