//! Asks the shards whether other weights may take the place of theirs: every rank of every replica, beside the stream of plans.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;

use super::client::{ChangeFailure, Connection};
use super::groups::Groups;
use super::shard_socket::ShardSocket;
use super::weights::{CheckFailure, WeightsChecker};

/// How long a rank may take to read config.json, headers and samples of the tensors.
const CHECK_DEADLINE: Duration = Duration::from_secs(60);

/// The groups of all replicas. Those that are not connected, or sleep, are not asked: a shard that comes with other weights
/// than it is to have compares them, too.
pub struct ReplicaWeights(pub(super) Groups);

#[async_trait]
impl WeightsChecker for ReplicaWeights {
    async fn check(&self, folder: &Path) -> Result<String, CheckFailure> {
        let groups = self.0.all();
        let sockets = groups.iter().flat_map(|group| &group.sockets);
        agreed(&join_all(sockets.map(|socket| check(socket, folder))).await)
    }
}

async fn check(socket: &ShardSocket, folder: &Path) -> Result<String, CheckFailure> {
    let connection = Connection::open(socket).await.map_err(CheckFailure::Unreachable)?;
    let late = |_| CheckFailure::TooSlow(CHECK_DEADLINE);
    let checked =
        tokio::time::timeout(CHECK_DEADLINE, connection.check_weights(folder)).await.map_err(late)?;
    checked.map_err(|failure| match failure {
        ChangeFailure::Refused(reason) => CheckFailure::Refused(reason),
        ChangeFailure::Unreachable(reason) => CheckFailure::Unreachable(reason),
    })
}

/// The common answer of those that answer; a refusal counts first. Any other gets the weights later.
fn agreed(answers: &[Result<String, CheckFailure>]) -> Result<String, CheckFailure> {
    let failures = || answers.iter().filter_map(|answer| answer.as_ref().err());
    if let Some(refused) = failures().find(|failure| matches!(failure, CheckFailure::Refused(_))) {
        return Err(refused.clone());
    }
    let mut found = answers.iter().flatten();
    let Some(first) = found.next() else {
        let none = || CheckFailure::Unreachable("there are no shards".to_owned());
        let slow = failures().find(|failure| matches!(failure, CheckFailure::TooSlow(_)));
        return Err(slow.or_else(|| failures().next()).cloned().unwrap_or_else(none));
    };
    if found.all(|other| other == first) {
        Ok(first.clone())
    } else {
        Err(CheckFailure::Refused("the shards do not find the same files there".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_that_answer_must_find_the_same_files() {
        let (found, lost) = (Ok("a".to_owned()), Err(CheckFailure::Unreachable("x".to_owned())));
        let refused = Err(CheckFailure::Refused("y".to_owned()));
        assert_eq!(agreed(&[found.clone(), found.clone()]), found);
        assert_eq!(agreed(&[lost.clone(), found.clone()]), found);
        assert_eq!(agreed(&[lost.clone(), refused.clone(), found.clone()]), refused);
        assert_eq!(agreed(std::slice::from_ref(&lost)), lost);
        let slow = Err(CheckFailure::TooSlow(CHECK_DEADLINE));
        assert_eq!(agreed(&[lost.clone(), slow.clone()]), slow);
        assert_eq!(agreed(&[slow.clone(), found.clone()]), found);
        assert_eq!(agreed(&[slow, refused.clone()]), refused);
        let differ = agreed(&[found, Ok("b".to_owned())]);
        assert!(matches!(differ, Err(CheckFailure::Refused(reason)) if reason.contains("same files")));
        assert!(matches!(agreed(&[]), Err(CheckFailure::Unreachable(_))));
    }
}
