//! Blocks of the cache that the shards of one replica fetch from those of another. Each fetches from the shard of its own
//! rank; the router tells it where that is, and holds the blocks on both sides until it has answered.

use async_trait::async_trait;
use penstock_scheduler::BlockId;

/// Where the blocks of one shard are fetched from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSource {
    /// `unix:PATH` or `tcp:ADDRESS:PORT`.
    pub address: String,
    /// The secret that a shard must send to fetch from it.
    pub secret: Vec<u8>,
}

/// Where the blocks of a replica are fetched from that were computed in one of its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSource {
    /// The stream.
    pub epoch: u64,
    /// The source of the blocks of each rank.
    pub ranks: Vec<BlockSource>,
}

/// Why blocks did not come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchFailure {
    /// The shards say why, and write to them no more.
    Refused(String),
    /// A shard that was to fetch did not answer, and may still write to them.
    Unanswered(String),
}

/// Has the shards of a replica fetch blocks.
#[async_trait]
pub trait BlockFetcher: Send + Sync {
    /// Returns how many bytes came when all ranks have all blocks, each pair being the block there and the block here. Waits for
    /// all of them, in whatever way they end.
    async fn fetch(&self, source: GroupSource, pairs: Vec<(BlockId, BlockId)>) -> Result<u64, FetchFailure>;
}
