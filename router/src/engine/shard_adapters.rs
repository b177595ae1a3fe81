//! Has the shards load and unload adapters: every rank of every replica, beside the stream of plans.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;

use super::adapters::{AdapterLoader, LoadFailure, LoadedAdapter, Source, UnloadFailure};
use super::client::Connection;
use super::groups::{Group, Groups};

/// How long every rank may take to unload an adapter, which is to free memory.
const UNLOAD_DEADLINE: Duration = Duration::from_secs(10);

/// The groups of all replicas: what one of them holds, all hold that are connected.
pub struct ReplicaAdapters(pub(super) Groups);

impl ReplicaAdapters {
    fn connected(&self) -> Vec<Arc<Group>> {
        self.0.all().into_iter().filter(|group| group.is_up()).collect()
    }
}

#[async_trait]
impl AdapterLoader for ReplicaAdapters {
    async fn load(&self, source: &Source) -> Result<LoadedAdapter, LoadFailure> {
        // Nothing is undone: a replica may have held it before, for requests that wait.
        agreed(&join_all(self.connected().iter().map(|group| group.load(source))).await)
    }

    async fn unload(&self, id: &str) -> Result<(), UnloadFailure> {
        worst(join_all(self.connected().iter().map(|group| group.unload(id))).await)
    }
}

#[async_trait]
impl AdapterLoader for Group {
    async fn load(&self, source: &Source) -> Result<LoadedAdapter, LoadFailure> {
        let loads = self.sockets.iter().map(|socket| async move {
            let connection = Connection::open(socket).await.map_err(LoadFailure::Unreachable)?;
            connection.load_adapter(source).await
        });
        let answers = join_all(loads).await;
        let agreed = agreed(&answers);
        // Where a rank cannot be reached, nothing is undone: it is asked again, and the others may have held it before.
        if let Err(LoadFailure::Refused(_)) = agreed {
            // A rank that has it alone holds memory for nothing.
            for loaded in answers.iter().flatten() {
                let _ = self.unload(&loaded.id).await;
            }
        }
        agreed
    }

    async fn unload(&self, id: &str) -> Result<(), UnloadFailure> {
        let unloads = self.sockets.iter().map(|socket| async move {
            let connection = Connection::open(socket).await.map_err(UnloadFailure::Unreachable)?;
            let unload = connection.unload_adapter(id);
            let late = |_| UnloadFailure::Unreachable("it does not unload an adapter".to_owned());
            tokio::time::timeout(UNLOAD_DEADLINE, unload).await.map_err(late)?
        });
        worst(join_all(unloads).await)
    }
}

/// One that is in use counts first, then any other failure.
fn worst(answers: Vec<Result<(), UnloadFailure>>) -> Result<(), UnloadFailure> {
    let in_use = answers.iter().find(|answer| **answer == Err(UnloadFailure::InUse)).cloned();
    in_use.or_else(|| answers.into_iter().find(Result::is_err)).unwrap_or(Ok(()))
}

/// The common answer of all ranks, or of all replicas; a refusal counts before a rank that cannot be reached.
fn agreed(answers: &[Result<LoadedAdapter, LoadFailure>]) -> Result<LoadedAdapter, LoadFailure> {
    let failures = || answers.iter().filter_map(|answer| answer.as_ref().err());
    let refused = failures().find(|failure| matches!(failure, LoadFailure::Refused(_)));
    if let Some(failure) = refused.or_else(|| failures().next()) {
        return Err(failure.clone());
    }
    let mut loaded = answers.iter().flatten();
    let Some(first) = loaded.next() else {
        return Err(LoadFailure::Unreachable("there are no shards".to_owned()));
    };
    if loaded.all(|other| other == first) {
        Ok(first.clone())
    } else {
        Err(LoadFailure::Refused("the ranks do not read the same content".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(id: &str) -> Result<LoadedAdapter, LoadFailure> {
        Ok(LoadedAdapter { id: id.into(), vocab_size: 8, invocation: Arc::default() })
    }

    #[test]
    fn ranks_must_read_the_same_content() {
        assert_eq!(agreed(&[loaded("a"), loaded("a")]), loaded("a"));
        let differ = agreed(&[loaded("a"), loaded("b")]);
        assert!(matches!(differ, Err(LoadFailure::Refused(reason)) if reason.contains("same content")));
    }

    #[test]
    fn a_refusal_of_any_rank_counts_first() {
        let (lost, bad) = (LoadFailure::Unreachable("x".into()), LoadFailure::Refused("y".into()));
        assert_eq!(agreed(&[Err(lost.clone()), loaded("a"), Err(bad.clone())]), Err(bad));
        assert_eq!(agreed(&[loaded("a"), Err(lost.clone())]), Err(lost));
    }
}
