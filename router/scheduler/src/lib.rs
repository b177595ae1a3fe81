//! Decides what every step computes: a pure, deterministic state machine without clock, I/O or threads.
//!
//! Requests wait in a queue, then run: a running one holds a slot and KV blocks. Every plan computes first one token
//! for each sequence that decodes, then chunks of prompts, under one token budget. Plans are pipelined: the next is
//! made before the last is answered, on the assumption that no sequence ends; what a sequence that did end computed
//! beyond its end is thrown away. docs/scheduling.md has a worked example.
//!
//! From the top down:
//!
//! - [`Scheduler`] (`scheduler`) takes requests in and lets them go; `step` makes plans, `outcome` takes their answers
//!   in, `trial` deals with lost shards and `rest` with those that forget all on purpose; `admission` and `spans` are what they have in common
//! - `beside` is what several schedulers need of each other, where the model has replicas; `placement` says which of them
//!   a request goes to, `hand_over` moves one that waits, `pass_on` one whose prompt is computed, with its blocks, and
//!   `leaving` all of one that is to take nothing new
//! - its parts, each with its own invariants: `backlog`, `sequences`, `memory`, `slots`, `adapters`,
//!   `pipeline`, `suspects`, `transfers`
//! - what parts are made of: `queue`, `running`, `row`, `sequence`, `block_pool`, `prefix_index`, `snapshots`,
//!   `promises`, …
//! - the words of its interface: `request`, `plan`, `event`, `cache_event`, `load`, `config`

mod adapters;
mod admission;
mod backlog;
mod beside;
mod block_pool;
mod block_table;
mod cache_event;
mod config;
mod draft;
mod event;
mod groups;
mod hand_over;
mod keyed_tokens;
mod leaving;
mod load;
mod lru;
mod memory;
mod outcome;
mod output_lengths;
mod pace;
mod pass_on;
mod pipeline;
mod placement;
mod plan;
mod prefix_index;
mod promises;
mod queue;
mod request;
mod rest;
mod row;
mod running;
mod scheduler;
mod sent_plan;
mod sequence;
mod sequences;
mod slots;
mod snapshots;
mod spans;
mod step;
mod step_time;
mod suspects;
mod transfers;
mod trial;
mod window;

pub use backlog::Taken;
pub use beside::Newcomer;
pub use cache_event::{CacheEvent, StoredBlock};
pub use config::{Capacity, SchedulerConfig};
pub use event::{Event, EventKind};
pub use hand_over::even_out;
pub use load::{Load, StepSize, Totals};
pub use memory::TransferId;
pub use pass_on::{arrive, pass_on};
pub use pipeline::Mismatch;
pub use placement::{Offer, Placement, PlacementPolicy};
pub use plan::{
    Admission, BlockId, Outcome, Plan, PromptScores, Sampled, SlotId, SnapshotId, Span, StepTimings,
};
pub use prefix_index::BlockKey;
pub use request::{
    Exclusions, Failure, FinishReason, Grammar, GrammarKind, NewRequest, PromptScore, Refused, RequestId,
    SamplingParams, TopToken,
};
pub use scheduler::Scheduler;
pub use window::Window;
