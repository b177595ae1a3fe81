//! The condition of shards: how deep they sleep, and their weights.

use std::iter::Sum;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::weights::Weights;

/// How deep shards sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SleepLevel {
    /// The cache is gone. The weights are kept in the memory of the machine.
    WeightsKept,
    /// The weights are gone, too: they are read from the files again.
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

/// The condition of shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// How deep they sleep; `None` if they are awake.
    pub asleep: Option<SleepLevel>,
    /// The weights that they compute with when they are awake; `None`: those that they were started with.
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

    /// The label of these weights for shards.
    pub fn weights_label(&self) -> String {
        self.weights.as_ref().map(Weights::label).unwrap_or_default()
    }
}

/// Bytes that shards have in the memory of their devices while they are awake, beyond those that they have while they sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AwakeBytes {
    /// While they sleep at level 1.
    pub level_1: u64,
    /// While they sleep at level 2.
    pub level_2: u64,
}

impl AwakeBytes {
    /// The memory that it takes to wake up from this level.
    pub fn beyond(self, level: u32) -> u64 {
        if level <= SleepLevel::WeightsKept.number() { self.level_1 } else { self.level_2 }
    }

    /// The sum over `count` shards that are alike.
    pub fn times(self, count: u64) -> Self {
        Self { level_1: self.level_1 * count, level_2: self.level_2 * count }
    }
}

impl Sum for AwakeBytes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            level_1: sum.level_1 + one.level_1,
            level_2: sum.level_2 + one.level_2,
        })
    }
}

/// The condition of a model, as its admin socket tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCondition {
    /// How deep it is to sleep; 0 if it is to be awake.
    pub sleep_level: u32,
    /// Whether it is on its way there.
    pub is_changing: bool,
    /// Whether something waits for it to be told to wake up.
    pub is_needed: bool,
    /// The memory that it takes to wake up, over all shards of all replicas.
    pub awake_bytes: AwakeBytes,
}
