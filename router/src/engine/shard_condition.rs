//! Has the shards of a group become what is wanted of them: every rank, beside the stream of plans, which is closed.

use std::time::Duration;

use futures::future::join_all;

use super::EngineError;
use super::client::{ChangeFailure, Connection, Description};
use super::condition::Condition;
use super::shard_socket::ShardSocket;

/// How long a rank may take to fall asleep: on a GPU it copies its weights. To wake up takes as long as to load them.
const SLEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Whether all of them sleep as deep as is wanted, or are awake with the weights that are wanted.
pub(super) fn is_as_wanted(descriptions: &[Description], wanted: &Condition) -> bool {
    let have_level = descriptions.iter().all(|it| it.sleep_level == wanted.sleep_level());
    have_level && (wanted.asleep.is_some() || have_weights(descriptions, wanted))
}

fn have_weights(descriptions: &[Description], wanted: &Condition) -> bool {
    let label = wanted.weights_label();
    descriptions.iter().all(|it| it.weights_label == label)
}

/// Brings every rank there, all at a time and all in the same way: they compute a step together. Those that sleep may have
/// other weights until they wake up.
pub(super) async fn bring(
    sockets: &[ShardSocket],
    descriptions: &[Description],
    wanted: &Condition,
) -> Result<(), EngineError> {
    let replaces = !have_weights(descriptions, wanted);
    let changes = sockets.iter().map(|socket| change(socket, wanted, replaces));
    let failures = join_all(changes).await.into_iter().enumerate();
    let errors = failures.filter_map(|(rank, changed)| Some(changed.err()?.at_rank(rank)));
    // A refusal says more than that another rank is gone.
    let (refused, lost): (Vec<_>, Vec<_>) =
        errors.partition(|error| matches!(error, EngineError::Refused { .. }));
    refused.into_iter().chain(lost).next().map_or(Ok(()), Err)
}

async fn change(socket: &ShardSocket, wanted: &Condition, replaces: bool) -> Result<(), ChangeFailure> {
    let connection = Connection::open(socket).await.map_err(ChangeFailure::Unreachable)?;
    let Some(level) = wanted.asleep else {
        let weights = wanted.weights.as_ref();
        return if replaces { connection.replace_weights(weights).await } else { connection.wake_up().await };
    };
    let late = |_| ChangeFailure::Unreachable("it does not fall asleep".to_owned());
    tokio::time::timeout(SLEEP_DEADLINE, connection.sleep(level.number())).await.map_err(late)?
}

impl ChangeFailure {
    pub(super) fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Refused(reason) => EngineError::Refused { rank, reason },
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
        }
    }
}
