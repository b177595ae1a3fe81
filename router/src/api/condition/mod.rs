//! The condition of the model while the server runs: vLLM's `/sleep`, `/wake_up` and `/is_sleeping`, and the change of
//! its weights.

pub mod handler;
mod query;
pub mod tensors;
pub mod trainer;
pub mod update;

use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::condition::Condition;

/// What the model is like.
#[derive(Debug, Serialize, ToSchema)]
pub struct SleepState {
    /// Whether it sleeps.
    pub is_sleeping: bool,
    /// 0 if it is awake, 1 if its cache is dropped, 2 if its weights are, too.
    pub sleep_level: u32,
}

impl From<&Condition> for SleepState {
    fn from(condition: &Condition) -> Self {
        Self { is_sleeping: condition.asleep.is_some(), sleep_level: condition.sleep_level() }
    }
}
