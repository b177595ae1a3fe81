//! What shards are like.

use serde::{Deserialize, Serialize};

use super::weights::Weights;

/// How deep shards sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SleepLevel {
    /// Without a cache. Weights wait in the memory of the machine.
    WeightsKept,
    /// Without weights, too: they are read from the files again.
    WeightsDropped,
}

impl SleepLevel {
    /// The level with this number, as vLLM has them.
    pub fn of_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::WeightsKept),
            2 => Some(Self::WeightsDropped),
            _ => None,
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::WeightsKept => 1,
            Self::WeightsDropped => 2,
        }
    }
}

/// What shards are like.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// How deep they sleep; `None` if they are awake.
    pub asleep: Option<SleepLevel>,
    /// Those that they compute with when they are awake; `None` for those that they were started with.
    #[serde(default)]
    pub weights: Option<Weights>,
}

impl Condition {
    /// 0 if they are awake.
    pub fn sleep_level(&self) -> u32 {
        self.asleep.map_or(0, SleepLevel::number)
    }

    /// How often weights were replaced until these were there.
    pub fn weights_number(&self) -> u64 {
        self.weights.as_ref().map_or(0, |weights| weights.number)
    }

    /// What shards call these weights.
    pub fn weights_label(&self) -> String {
        self.weights.as_ref().map(Weights::label).unwrap_or_default()
    }
}

/// What a model is like, as its admin socket tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCondition {
    /// How deep it is to sleep; 0 if it is to be awake.
    pub sleep_level: u32,
    /// Whether it is on its way there.
    pub is_changing: bool,
    /// Whether something waits for it to be told to wake up.
    pub is_needed: bool,
}
