//! How a shard is asked to fetch blocks from one of another replica.

use std::time::Duration;

use penstock_scheduler::BlockId;
use tonic::Status;

use super::{Connection, is_lost, pb};
use crate::engine::block_transfer::{BlockSource, FetchFailure};

/// The blocks that a shard is to fetch, and their source.
pub(in crate::engine) struct Fetch<'a> {
    pub source: BlockSource,
    /// The streams there and here.
    pub source_epoch: u64,
    pub epoch: u64,
    /// The block there, and the block here.
    pub pairs: &'a [(BlockId, BlockId)],
    /// How long it may take.
    pub timeout: Duration,
}

impl Connection {
    /// Returns how many bytes came. Waits for the answer for as long as the shard lives: until then it may write to the blocks.
    pub async fn fetch_blocks(mut self, fetch: Fetch<'_>) -> Result<u64, FetchFailure> {
        let request = pb::FetchBlocksRequest {
            address: fetch.source.address,
            secret: fetch.source.secret,
            source_epoch: fetch.source_epoch,
            epoch: fetch.epoch,
            source_blocks: fetch.pairs.iter().map(|(there, _)| there.0).collect(),
            blocks: fetch.pairs.iter().map(|(_, here)| here.0).collect(),
            timeout_ms: fetch.timeout.as_millis() as u32,
        };
        let response = self.0.fetch_blocks(request).await.map_err(failure)?;
        Ok(response.into_inner().num_bytes)
    }
}

fn failure(status: Status) -> FetchFailure {
    if is_lost(&status) {
        FetchFailure::Unanswered(status.to_string())
    } else {
        FetchFailure::Refused(status.message().to_owned())
    }
}
