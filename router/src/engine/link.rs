//! The way to one group of shards: up while they answer, down while attempts to reach them go on.

use std::time::Duration;

use futures::future::BoxFuture;
use penstock_scheduler::{Outcome, Plan};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{Engine, EngineError};

/// How often shards that are lost are tried again.
const RETRY: Duration = Duration::from_millis(50);

/// The way to the shards.
pub(super) enum Link {
    /// The shards answer.
    Up(Box<dyn Engine>),
    /// The shards are lost; attempts to reach them continue.
    Down(BoxFuture<'static, Reconnected>),
}

/// The engine, and whether it can be used again.
pub(super) type Reconnected = (Box<dyn Engine>, Result<(), EngineError>);

/// What came over the link.
pub(super) enum Arrival {
    Outcome(Result<Outcome, EngineError>),
    Reconnected(Reconnected),
}

impl Link {
    /// To shards that are not connected yet.
    pub fn down(engine: Box<dyn Engine>) -> Self {
        Self::Down(Box::pin(reconnect(engine)))
    }

    /// To shards that are of no use: nothing will ever come.
    pub fn gone() -> Self {
        Self::Down(Box::pin(std::future::pending()))
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> Arrival {
        match self {
            Self::Up(engine) => Arrival::Outcome(engine.recv().await),
            Self::Down(attempts) => Arrival::Reconnected(attempts.await),
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// Sends a plan; one for shards that are lost is dropped.
    pub fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        match self {
            Self::Up(engine) => engine.send(plan),
            Self::Down(_) => Ok(()),
        }
    }

    /// Up becomes down.
    pub fn go_down(&mut self) {
        *self = match std::mem::replace(self, Self::gone()) {
            Self::Up(engine) => Self::down(engine),
            Self::Down(attempts) => Self::Down(attempts),
        };
    }
}

/// Tries until the shards are back, or are others than they were.
async fn reconnect(mut engine: Box<dyn Engine>) -> Reconnected {
    let mut is_told = false;
    loop {
        match engine.reconnect().await {
            Ok(()) => return (engine, Ok(())),
            Err(error) if error.is_final() => return (engine, Err(error)),
            Err(error @ EngineError::Unauthenticated { .. }) if !is_told => {
                is_told = true;
                warn!(%error, "a replica is left out");
            }
            Err(error) => debug!(%error, "the shards are not back yet"),
        }
        sleep(RETRY).await;
    }
}
