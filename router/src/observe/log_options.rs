//! The flags of log lines.

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use super::log_level::LogLevel;
use crate::base::boolean::boolean;

/// How log lines are written, and which.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LogOptions {
    /// Write logs as one JSON object a line
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub json_output: bool,

    /// Log lines of all processes: off, error, warn, info, debug or trace; other levels for single parts may follow, as in
    /// info,penstock_router=debug [default: RUST_LOG, or info]
    #[arg(long, env, value_name = "LEVEL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
}
