//! The flags of the budget. They are flags of the launcher, which passes them on.

use std::str::FromStr;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::{Deserialize, Serialize};

use super::gigabytes::Gigabytes;

/// Either of them is a budget.
const LIMITS: &str = "budget_limits";

/// Which of several models are awake at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(group = ArgGroup::new(LIMITS).multiple(true))]
pub struct BudgetOptions {
    /// Models that are awake at once; for one more, the least recently used one that has nothing to do is sent to sleep.
    /// Models may share GPUs then, and of those that share one a single one is awake; on the CPU, its cores and memory are
    /// divided by as many [default: all are awake]
    #[arg(long, env, requires = "model", group = LIMITS, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub max_awake_models: Option<u32>,

    /// GB of memory that models have awake, beyond what they have asleep, all together: for one that does not fit beside
    /// others, as many of the least recently used ones sleep as have to. With --max-awake-models, both hold. GPUs are shared
    /// as there; a CPU is divided by --max-models, or by --max-awake-models if that is given [default: all are awake]
    #[arg(long, env, requires = "model", group = LIMITS)]
    pub max_awake_gb: Option<Gigabytes>,

    /// How deep models sleep for --max-awake-models or --max-awake-gb: 1 keeps weights in the machine's memory, 2 reads them again
    #[arg(long, env, default_value_t = 1, requires = LIMITS, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub sleep_level: u32,

    /// Seconds for which a model stays awake before another may take its place
    // Where two models are used in turn, no more than half of the time goes into waking models that take as long to wake.
    #[arg(long, env, default_value_t = 5, requires = LIMITS, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub min_awake_time: u64,
}

impl BudgetOptions {
    /// Whether there is a budget.
    pub fn is_given(&self) -> bool {
        self.max_awake_models.is_some() || self.max_awake_gb.is_some()
    }

    /// The rules of the budget; `None` if there is no budget.
    pub fn rules(&self) -> Option<Rules> {
        self.is_given().then(|| Rules {
            max_awake: self.max_awake_models.map_or(usize::MAX, |most| most as usize),
            max_bytes: self.max_awake_gb.map(Gigabytes::bytes),
            min_awake: Duration::from_secs(self.min_awake_time),
            sleep_level: self.sleep_level,
        })
    }
}

impl FromStr for BudgetOptions {
    type Err = String;

    /// Reads JSON, as the launcher writes it.
    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// The rules that decide which models are awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Models that are awake at once.
    pub max_awake: usize,
    /// Bytes that they have awake beyond what they have asleep, all together; `None` if they do not count.
    pub max_bytes: Option<u64>,
    /// How long one stays awake before another may take its place.
    pub min_awake: Duration,
    /// How deep the others sleep.
    pub sleep_level: u32,
}
