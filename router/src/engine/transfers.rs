//! The copies of blocks between replicas that are under way, which the engine loop waits for beside the steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use penstock_scheduler::{BlockId, TransferId};
use tokio::time::Instant;

use super::block_transfer::{BlockFetcher, FetchFailure, GroupSource};

/// The numbers of two replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub from: usize,
    pub to: usize,
}

/// A copy that is to be made.
pub(super) struct Begun {
    pub id: TransferId,
    pub way: Way,
    pub pairs: Vec<(BlockId, BlockId)>,
    pub source: GroupSource,
    pub fetcher: Arc<dyn BlockFetcher>,
}

/// A copy that is answered.
pub(super) struct Transferred {
    pub id: TransferId,
    pub way: Way,
    pub num_blocks: usize,
    pub took: Duration,
    /// Bytes that came.
    pub result: Result<u64, FetchFailure>,
}

/// The copies.
#[derive(Default)]
pub(super) struct Transfers {
    under_way: FuturesUnordered<BoxFuture<'static, Transferred>>,
    ways: BTreeMap<TransferId, Way>,
}

impl Transfers {
    /// Begins with one. Where nothing is to be copied it is done at once.
    pub fn begin(&mut self, begun: Begun) {
        self.ways.insert(begun.id, begun.way);
        self.under_way.push(Box::pin(transfer(begun)));
    }

    /// The next one that is answered. Cancel safe.
    pub async fn next(&mut self) -> Transferred {
        match self.under_way.next().await {
            Some(done) => {
                self.ways.remove(&done.id);
                done
            }
            None => std::future::pending().await,
        }
    }

    /// Forgets the transfers to a replica that has lost its shards: nobody knows when they will be answered. Returns
    /// them, each with the number of the replica that it comes from.
    pub fn lost(&mut self, to: usize) -> Vec<(TransferId, usize)> {
        let ways = self.ways.iter().filter(|(_, way)| way.to == to);
        let lost = ways.map(|(id, way)| (*id, way.from)).collect();
        self.ways.retain(|_, way| way.to != to);
        lost
    }
}

async fn transfer(begun: Begun) -> Transferred {
    let Begun { id, way, pairs, source, fetcher } = begun;
    let (started, num_blocks) = (Instant::now(), pairs.len());
    let result = if pairs.is_empty() { Ok(0) } else { fetcher.fetch(source, pairs).await };
    Transferred { id, way, num_blocks, took: started.elapsed(), result }
}
