//! The flags about what the shards are like.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use super::awake_limit::AwakeLimit;
use super::on_request::OnRequest;
use super::state::{Condition, SleepLevel};
use crate::base::boolean::boolean;

/// The flags about sleep, and about weights that take the place of others.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConditionOptions {
    /// A request that comes while the model sleeps wakes it; else it is refused until `POST /wake_up`
    #[arg(long, env, num_args = 0..=1, default_value_t = true, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub wake_on_request: bool,

    /// What needs the model waits while it sleeps until the admin socket says to wake it
    #[arg(long, hide = true, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub wake_when_told: bool,

    /// How deep the model sleeps from the start on [default: it is awake]
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=2))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asleep_at_start: Option<u32>,

    /// Bytes that the model may take awake beyond what it takes asleep, and how deep it sleeps, as LEVEL:BYTES
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_awake_bytes: Option<AwakeLimit>,

    /// Everyone may send the model to sleep, wake it and replace its weights, where the server has no API keys; where it
    /// has some, a key needs model=change in --api-key-file
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub allow_model_changes: bool,

    /// Folder below which weights are that may take the place of the model's at run time [default: none may]
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_root: Option<PathBuf>,

    /// Host of a trainer that shards may be told to connect to for weights, as clients write it; several by commas, or given
    /// again [default: none]
    #[arg(long, env, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trainer_host: Vec<String>,

    /// Seconds that shards wait for the other ranks of a trainer's group, and for each tensor
    #[arg(long, env, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub trainer_timeout: u64,
}

impl ConditionOptions {
    /// The effect of a request that comes while the model sleeps.
    pub fn on_request(&self) -> OnRequest {
        match (self.wake_when_told, self.wake_on_request) {
            (true, _) => OnRequest::Waits,
            (false, true) => OnRequest::Wakes,
            (false, false) => OnRequest::IsRefused,
        }
    }

    /// The condition that the shards are to have from the start on.
    pub fn first(&self) -> Condition {
        Condition { asleep: self.asleep_at_start.and_then(SleepLevel::of_number), weights: None }
    }
}
