//! Has the shards of a group become what is wanted of them: every rank, beside the stream of plans, which is closed.

use std::time::Duration;

use futures::future::join_all;

use super::EngineError;
use super::client::{ChangeFailure, Connection, Description};
use super::condition::{Condition, SleepLevel};
use super::shard_socket::ShardSocket;

/// How long a rank may take to fall asleep: on a GPU it copies its weights. To wake up takes as long as to load them.
const SLEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Whether all of them sleep as deep as is wanted, or are awake.
pub(super) fn is_as_wanted(descriptions: &[Description], wanted: &Condition) -> bool {
    descriptions.iter().all(|it| it.sleep_level == wanted.sleep_level())
}

/// Brings every rank there, all at a time: to wake up, they compute a step together.
pub(super) async fn bring(sockets: &[ShardSocket], wanted: &Condition) -> Result<(), EngineError> {
    let changes = sockets.iter().map(|socket| change(socket, wanted.asleep));
    let failures = join_all(changes).await.into_iter().enumerate();
    let errors = failures.filter_map(|(rank, changed)| Some(changed.err()?.at_rank(rank)));
    // A refusal says more than that another rank is gone.
    let (refused, lost): (Vec<_>, Vec<_>) =
        errors.partition(|error| matches!(error, EngineError::Refused { .. }));
    refused.into_iter().chain(lost).next().map_or(Ok(()), Err)
}

async fn change(socket: &ShardSocket, asleep: Option<SleepLevel>) -> Result<(), ChangeFailure> {
    let connection = Connection::open(socket).await.map_err(ChangeFailure::Unreachable)?;
    let Some(level) = asleep else { return connection.wake_up().await };
    let late = |_| ChangeFailure::Unreachable("it does not fall asleep".to_owned());
    tokio::time::timeout(SLEEP_DEADLINE, connection.sleep(level.number())).await.map_err(late)?
}

impl ChangeFailure {
    fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Refused(reason) => EngineError::Refused { rank, reason },
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
        }
    }
}
