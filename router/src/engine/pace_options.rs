//! The settings of how prompts and the tokens of streams share a step.

use std::time::Duration;

use clap::{Args, ValueEnum};
use penstock_scheduler::SchedulerConfig;
use serde::{Deserialize, Serialize};

/// How long steps may take.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PaceOptions {
    /// Milliseconds that a step may take while tokens are being generated; prompts are computed in chunks that fit
    /// [default: twice what the step would take without them, and up to 100 where more prompts wait than streams run]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_itl_ms: Option<u32>,

    /// What counts more where many prompts come while few streams run
    #[arg(long, env, value_enum, default_value = "latency")]
    pub prefer: Preference,
}

/// What counts more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// Even gaps between the tokens of streams
    Latency,
    /// The prompts: streams may pause for them, once in 200 tokens and for 2 s at most
    Throughput,
}

impl PaceOptions {
    /// The settings of the scheduler with these.
    pub fn apply(&self, config: SchedulerConfig) -> SchedulerConfig {
        SchedulerConfig {
            target_itl: self.target_itl_ms.map(|ms| Duration::from_millis(ms.into())),
            pauses_streams: self.prefer == Preference::Throughput,
            ..config
        }
    }
}
