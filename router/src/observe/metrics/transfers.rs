//! Copies of blocks from one replica to another.

use metrics::{Counter, Histogram};

use super::names::Names;
use crate::observe::observer::TransferSummary;

pub(super) struct TransferMetrics {
    copied: Counter,
    failed: Counter,
    blocks: Counter,
    bytes: Counter,
    duration: Histogram,
}

impl TransferMetrics {
    pub(super) fn register(names: &Names<'_>) -> Self {
        let transfers = |result| {
            let help = "Requests that went on with other shards, by what became of their blocks";
            names.labelled_counter("tgi_block_transfers", help, ("result", result))
        };
        Self {
            copied: transfers("copied"),
            failed: transfers("failed"),
            blocks: names.counter("tgi_block_transfer_blocks", "KV blocks copied from other shards"),
            bytes: names.counter("tgi_block_transfer_bytes", "Bytes of these blocks, on all shards"),
            duration: names.histogram("tgi_block_transfer_duration", "Until the blocks were there, seconds"),
        }
    }

    pub(super) fn record(&self, transfer: &TransferSummary) {
        if !transfer.is_copied {
            return self.failed.increment(1);
        }
        self.copied.increment(1);
        self.blocks.increment(transfer.num_blocks as u64);
        self.bytes.increment(transfer.num_bytes);
        self.duration.record(transfer.took);
    }
}
