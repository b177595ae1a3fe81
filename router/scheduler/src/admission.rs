//! Gives a waiting sequence a slot and blocks, with what the cache has of it.

use crate::block_table::BlockTable;
use crate::draft::PlanDraft;
use crate::memory::{CachedPrefix, Shared};
use crate::plan::{BlockId, SnapshotId};
use crate::request::RequestId;
use crate::row::Row;
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// Why a waiting request is not admitted in this step.
#[derive(Debug)]
pub enum NotYet {
    /// It waits for blocks that another is about to publish, or for its own last outcome.
    Soon,
    /// There is no memory for it.
    NoBlocks,
    /// There is no slot, for it or any other.
    NoSlot,
}

/// The blocks and the state that a sequence begins with.
struct Beginning {
    table: BlockTable,
    /// Positions that are in its blocks.
    computed: u32,
    /// The positions among them that were cached when it arrived.
    before: u32,
    /// The state behind them.
    snapshot: Option<SnapshotId>,
    shared: Shared,
}

/// A block that can be copied instead of computed: the last of the same prompt, without the prompt's last token.
struct LastBlock {
    /// The running sequence that holds it.
    owner: RequestId,
    block: BlockId,
}

impl Scheduler {
    /// Gives a sequence a slot and blocks for all its known tokens, or for as many as it may hold at a time.
    pub(crate) fn admit(&mut self, id: RequestId, draft: &mut PlanDraft) -> Result<(), NotYet> {
        let Some(sequence) = self.sequences.waiting(id) else { return Err(NotYet::Soon) };
        if !self.slots.has_free() {
            return Err(NotYet::NoSlot);
        }
        // A token in flight from before its preemption is still to come: without it, it would be sampled twice.
        if sequence.is_in_flight() {
            return Err(NotYet::Soon);
        }
        let prefix = self.memory.cached_prefix(sequence).ok_or(NotYet::Soon)?;
        if self.awaits_snapshot(&prefix) {
            return Err(NotYet::Soon);
        }
        let Some(sequence) = self.sequences.waiting(id) else { return Err(NotYet::Soon) };
        let last = self.last_block(sequence, &prefix)?;
        let computed = if last.is_some() { sequence.len() - 1 } else { prefix.len };
        let growth = self.expected_growth(sequence);
        let (before, snapshot, shared) = (prefix.len_before, prefix.snapshot, prefix.shared);
        let table = self.memory.claim(sequence, prefix, computed, growth).ok_or(NotYet::NoBlocks)?;
        self.copy_last_block(last, &table, draft);
        self.start(id, Beginning { table, computed, before, snapshot, shared }, draft)
    }

    /// Whether a sequence waits until a running one, from which it diverges further on, has had its state kept there.
    fn awaits_snapshot(&mut self, prefix: &CachedPrefix) -> bool {
        let Shared { len, owner } = prefix.shared;
        let Some(owner) = owner.and_then(|id| self.sequences.running_mut(id)) else { return false };
        if !self.memory.has_states() || !owner.row_mut().add_point(len) {
            return false;
        }
        self.memory.promise_snapshot(owner.sequence(), len);
        true
    }

    /// The last block of the prompt, if a running sequence with the same prompt has it.
    fn last_block(&self, sequence: &Sequence, prefix: &CachedPrefix) -> Result<Option<LastBlock>, NotYet> {
        let wanted = sequence.len() - 1;
        // Blocks have no state of their last position.
        let may_copy = !self.memory.has_states()
            && prefix.is_whole
            && sequence.num_generated() == 0
            && wanted > prefix.len;
        let owner = if may_copy { self.memory.owner_of_prompt(sequence) } else { None };
        let owner = owner.and_then(|id| self.sequences.running(id));
        let Some(owner) = owner.filter(|owner| owner.sequence().has_prompt_of(sequence)) else {
            return Ok(None);
        };
        if owner.row().confirmed() < wanted {
            return Err(NotYet::Soon);
        }
        let (table, index) = (owner.row().table(), prefix.blocks.len());
        let is_held = index >= table.num_behind();
        Ok(is_held.then(|| LastBlock { owner: owner.id(), block: table.blocks()[index] }))
    }

    /// Copies a last block to the first new one of `table`. The owner must keep it until the step is answered.
    fn copy_last_block(&mut self, last: Option<LastBlock>, table: &BlockTable, draft: &mut PlanDraft) {
        let new = table.blocks().get(table.num_published());
        let Some((LastBlock { owner, block }, to)) = last.zip(new) else { return };
        draft.copy(block, *to);
        if let Some(owner) = self.sequences.running_mut(owner) {
            owner.row_mut().touch(draft.step());
        }
    }

    /// A sequence runs from now on.
    fn start(&mut self, id: RequestId, beginning: Beginning, draft: &mut PlanDraft) -> Result<(), NotYet> {
        let Beginning { table, computed, before, snapshot, shared } = beginning;
        let Some(sequence) = self.sequences.get_mut(id) else { return Err(NotYet::Soon) };
        let slot = self.slots.take().ok_or(NotYet::NoSlot)?;
        draft.admit(sequence.admission(slot, table.blocks(), snapshot, &self.config.eos_token_ids));
        self.backlog.remove(sequence);
        self.memory.promise(sequence, &table);
        self.adapters.enter(sequence.adapter(), self.now);
        self.backlog.charge(sequence.tenant(), u64::from(sequence.len() - computed));
        self.totals.admitted_tokens += u64::from(sequence.len());
        self.totals.cached_tokens += u64::from(computed);
        if let Some(event) = sequence.admit(computed, before, self.now) {
            draft.add_event(id, event);
        }
        let mut row = Row::new(slot, table, computed, sequence.len(), draft.step() - 1);
        if self.memory.has_states() {
            for point in self.memory.snapshot_points(sequence, computed, shared) {
                row.add_point(point);
                self.memory.promise_snapshot(sequence, point);
            }
        }
        self.sequences.start(id, row);
        Ok(())
    }

    /// Blocks that the running sequences and this one will probably want before one of them ends. Nothing if it
    /// would run alone: then it has to run.
    pub(crate) fn expected_growth(&self, candidate: &Sequence) -> usize {
        if self.sequences.num_running() == 0 {
            return 0;
        }
        let running: usize = self.sequences.all_running().map(|running| self.growth_of(running)).sum();
        running + self.growth_from(candidate, self.memory.num_held(candidate.len()))
    }

    fn growth_of(&self, running: &Running) -> usize {
        let (sequence, table) = (running.sequence(), running.row().table());
        if table.num_reserved() > 0 {
            return 0;
        }
        let is_prefilling = running.is_prefilling();
        let held = if is_prefilling { table.held().len() } else { self.memory.num_held(sequence.len()) };
        self.growth_from(sequence, held)
    }

    fn growth_from(&self, sequence: &Sequence, num_held: usize) -> usize {
        let expected = self.output_lengths.expected_len(sequence, self.memory.block_size());
        self.memory.num_held(expected).saturating_sub(num_held)
    }
}
