//! Has each shard of a replica fetch blocks from the shard of its own rank.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use penstock_scheduler::BlockId;

use super::block_transfer::{BlockFetcher, FetchFailure, GroupSource};
use super::client::{Connection, Fetch};
use super::shard_socket::ShardSocket;

/// The shards of a replica with an open stream.
pub(super) struct GroupFetcher {
    /// The sockets of the shards, by rank.
    pub sockets: Vec<ShardSocket>,
    /// The stream.
    pub epoch: u64,
    /// How long it may take.
    pub timeout: Duration,
}

#[async_trait]
impl BlockFetcher for GroupFetcher {
    async fn fetch(&self, source: GroupSource, pairs: Vec<(BlockId, BlockId)>) -> Result<u64, FetchFailure> {
        if source.ranks.len() != self.sockets.len() {
            let (there, here) = (source.ranks.len(), self.sockets.len());
            return Err(FetchFailure::Refused(format!("there are {there} shards there, and {here} here")));
        }
        let (source_epoch, epoch, timeout) = (source.epoch, self.epoch, self.timeout);
        let fetched = join_all(self.sockets.iter().zip(source.ranks).enumerate().map(
            async |(rank, (socket, source))| {
                let fetch = Fetch { source, source_epoch, epoch, pairs: &pairs, timeout };
                fetch_one(socket, fetch).await.map_err(|failure| at(rank, failure))
            },
        ));
        total(fetched.await)
    }
}

fn at(rank: usize, failure: FetchFailure) -> FetchFailure {
    match failure {
        FetchFailure::Refused(reason) => FetchFailure::Refused(format!("shard {rank}: {reason}")),
        FetchFailure::Unanswered(reason) => FetchFailure::Unanswered(format!("shard {rank}: {reason}")),
    }
}

async fn fetch_one(socket: &ShardSocket, fetch: Fetch<'_>) -> Result<u64, FetchFailure> {
    // It was not asked yet.
    let connection = Connection::open(socket).await.map_err(FetchFailure::Refused)?;
    connection.fetch_blocks(fetch).await
}

/// Bytes of all ranks. That one of them may still write counts most.
fn total(fetched: Vec<Result<u64, FetchFailure>>) -> Result<u64, FetchFailure> {
    let failures = || fetched.iter().filter_map(|fetched| fetched.as_ref().err());
    let worst = failures().find(|failure| matches!(failure, FetchFailure::Unanswered(_)));
    match worst.or_else(|| failures().next()) {
        Some(failure) => Err(failure.clone()),
        None => Ok(fetched.into_iter().flatten().sum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::block_transfer::BlockSource;

    #[test]
    fn that_a_rank_may_still_write_is_told_before_that_another_refused() {
        let refused = || Err(FetchFailure::Refused("r".to_owned()));
        let unanswered = || Err(FetchFailure::Unanswered("u".to_owned()));
        assert_eq!(total(vec![Ok(3), Ok(4)]), Ok(7));
        assert_eq!(total(vec![Ok(3), refused()]), refused());
        assert_eq!(total(vec![refused(), unanswered(), Ok(1)]), unanswered());
    }

    #[tokio::test]
    async fn ranks_are_paired_or_nothing_is_fetched() {
        let fetcher = GroupFetcher { sockets: Vec::new(), epoch: 1, timeout: Duration::from_secs(1) };
        let there = BlockSource { address: "unix:/x".to_owned(), secret: vec![1] };
        let refused = fetcher.fetch(GroupSource { epoch: 1, ranks: vec![there] }, Vec::new()).await;
        let words = "there are 1 shards there, and 0 here".to_owned();
        assert_eq!(refused, Err(FetchFailure::Refused(words)));
    }
}
