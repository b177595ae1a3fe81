//! Settings of the access log.

use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::base::boolean::boolean;

/// The format of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLogFormat {
    /// There are no lines.
    #[default]
    Off,
    /// Fields as `name=value`, separated by spaces.
    Text,
    /// One JSON object.
    Json,
}

/// Settings of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AccessLogOptions {
    /// Write a line for each request to stdout: who, route, tokens, times, outcome; never text of a prompt or a reply
    #[arg(long, env, value_enum, default_value_t)]
    pub access_log: AccessLogFormat,

    /// Write the addresses of clients into the access log
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub access_log_addresses: bool,
}
