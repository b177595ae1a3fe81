//! The flags of the proxy.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use penstock_scheduler::PlacementPolicy;

use super::budget::BudgetOptions;
use super::error::ProxyError;
use super::named_upstream::NamedUpstream;
use super::served::{ServedEntry, of_flags, read};
use crate::http::server::limits::ConnectionLimits;
use crate::http::server::options::ListenOptions;
use crate::observe::access_log::AccessLogOptions;
use crate::observe::log_options::LogOptions;

/// All settings of the proxy.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ProxyConfig {
    /// URL of a server that requests are passed on to, such as http://10.0.0.7:3000 or unix:PATH; give it again for several.
    /// Before it may stand the names that requests send for its model, as in NAME,ADAPTER=URL: then a request goes to a server
    /// of the model that it names
    #[arg(long, required_unless_present = "models_file", action = ArgAction::Append, value_name = "[NAMES=]URL")]
    pub upstream: Vec<NamedUpstream>,

    /// File with the models and their upstreams, which is read again whenever it changes
    #[arg(long, hide = true, conflicts_with = "upstream")]
    pub models_file: Option<PathBuf>,

    /// How many of the models of that file are awake at once, as JSON
    #[arg(long, hide = true, requires = "models_file")]
    pub budget: Option<BudgetOptions>,

    /// File of API keys as the servers have it: whoever has none of them is not told which models there are
    #[arg(long, env)]
    pub api_key_file: Option<PathBuf>,

    /// Which upstream a request goes to
    #[arg(long, value_enum, default_value = "prefix")]
    pub upstream_policy: UpstreamPolicy,

    /// Tokens of prompts that each upstream is taken to have in its cache [default: what the upstream says]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub upstream_cache_tokens: Option<u64>,

    /// Seconds between two looks at the health of an upstream
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub upstream_check_interval: u64,

    /// File in PEM format with the certificates of those who sign for https upstreams [default: those of the system]
    #[arg(long)]
    pub upstream_ca: Option<PathBuf>,

    /// Bytes of request bodies that are kept at once, to be sent again if an upstream fails; more are refused with 429
    // About a hundred and thirty of the largest bodies; most have a few kilobytes.
    #[arg(long, default_value_t = 268_435_456)]
    pub max_buffered_bytes: usize,

    /// Where the proxy listens
    #[command(flatten)]
    pub listen: ListenOptions,

    /// What connections may take
    #[command(flatten)]
    pub connections: ConnectionLimits,

    /// The access log
    #[command(flatten)]
    pub access_log: AccessLogOptions,

    /// Log lines
    #[command(flatten)]
    pub log: LogOptions,
}

#[cfg(test)]
impl ProxyConfig {
    /// The defaults, for this upstream.
    pub(super) fn of_upstream(url: &str) -> Self {
        use clap::FromArgMatches;

        let command = Self::augment_args(clap::Command::new("proxy"));
        Self::from_arg_matches(&command.get_matches_from(["proxy", "--upstream", url])).unwrap()
    }
}

impl ProxyConfig {
    /// Refuses upstreams that are given twice, and names that could mean two models.
    pub fn check(&self) -> Result<(), ProxyError> {
        self.served().map(drop)
    }

    /// The models to serve, from the file or from the flags.
    pub fn served(&self) -> Result<Vec<ServedEntry>, ProxyError> {
        self.models_file.as_deref().map_or_else(|| of_flags(&self.upstream), read)
    }
}

/// How requests are divided among upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UpstreamPolicy {
    /// The one that probably has most of the prompt in its cache, or least to do
    Prefix,
    /// Each in turn, to compare with
    RoundRobin,
}

impl From<UpstreamPolicy> for PlacementPolicy {
    fn from(policy: UpstreamPolicy) -> Self {
        match policy {
            UpstreamPolicy::Prefix => Self::LeastWork,
            UpstreamPolicy::RoundRobin => Self::RoundRobin,
        }
    }
}
