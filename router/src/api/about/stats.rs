//! `/stats`: the present state of the server as one small JSON object, for the page's plots and for scripts that do not
//! parse Prometheus' format. Field names are stable; fields are only added. docs/page.md lists them with their units.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use penstock_scheduler::StepTimings;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::generation::EngineStatus;
use crate::http::state::AppState;
use crate::observe::metrics::Snapshot;
use crate::observe::observer::{Levels, ReplicaLevels, StepSummary};

/// The state and the counters of the server.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Stats {
    /// The name of the served model.
    pub model_id: String,
    /// The version of the router.
    pub version: &'static str,
    /// Seconds since the router started.
    pub uptime_s: f64,
    /// Whether requests are computed now.
    pub status: Status,
    /// The reason in plain text; null if the status is `ready`.
    pub status_reason: Option<&'static str>,
    /// Number of times that the shards were restarted since this router started.
    pub restarts: u64,
    /// The counters and levels.
    #[serde(flatten)]
    pub counts: Counts,
    /// The same levels of each replica of the model, in order; one for a server without replicas.
    pub replicas: Vec<ReplicaStats>,
}

/// The levels of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct ReplicaStats {
    /// Its number.
    pub replica: usize,
    /// Whether its shards answer steps.
    pub ready: bool,
    /// Requests in its queue.
    pub waiting: usize,
    /// Requests in its batch.
    pub running: usize,
    /// KV blocks that its running requests hold.
    pub kv_blocks_used: usize,
    /// KV blocks that only its prefix cache holds.
    pub kv_blocks_cached: usize,
    /// All its KV blocks.
    pub kv_blocks_total: usize,
}

/// Whether requests are computed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Requests are computed.
    Ready,
    /// The server shuts down: it finishes accepted requests and refuses new ones.
    Stopping,
    /// The model sleeps. A request wakes it, unless --wake-on-request says otherwise.
    Asleep,
    /// The model falls asleep, wakes up or gets other weights. Requests wait.
    Changing,
    /// The shards restart. Requests wait until they are back.
    Restarting,
    /// The shards are lost, and the router ends.
    Lost,
}

/// The counters and levels of the server. `…_total` only grows while the router runs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Counts {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests with a slot in the batch.
    pub running: usize,
    /// KV blocks that running requests hold.
    pub kv_blocks_used: usize,
    /// KV blocks that only the prefix cache holds: they are freed when requests need them.
    pub kv_blocks_cached: usize,
    /// All KV blocks.
    pub kv_blocks_total: usize,
    /// Token positions in one KV block.
    pub kv_block_tokens: u32,
    /// Tokens sampled, for all requests together.
    pub tokens_generated_total: u64,
    /// Tokens of requests that were admitted to the batch.
    pub tokens_prompt_total: u64,
    /// Those of `tokens_prompt_total` that were found in the prefix cache.
    pub prefix_cache_hit_tokens_total: u64,
    /// Number of times that a running request was preempted to free its memory.
    pub preemptions_total: u64,
    /// Times that tokens were drafted for a sequence in a step.
    pub drafts_total: u64,
    /// Tokens drafted.
    pub drafted_tokens_total: u64,
    /// Those of `drafted_tokens_total` that were chosen.
    pub accepted_tokens_total: u64,
    /// Requests that have ended, by outcome: `success`, or the reason of the failure.
    pub requests_total: BTreeMap<&'static str, u64>,
    /// Steps answered by the shards.
    pub steps_total: u64,
    /// The newest step; null before the first.
    pub last_step: Option<LastStep>,
}

/// The parts of the newest step, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct LastStep {
    /// Tokens that the step sampled.
    pub sampled_tokens: usize,
    /// Time to apply the plan.
    pub upload_ms: f64,
    /// Time of the model's forward pass.
    pub forward_ms: f64,
    /// Time to sample tokens.
    pub sample_ms: f64,
    /// Time to read the sampled tokens.
    pub download_ms: f64,
}

/// `GET /stats`
pub async fn stats(State(app): State<AppState>) -> Json<Stats> {
    Json(snapshot(&app))
}

/// The present state and counters.
pub(crate) fn snapshot(app: &AppState) -> Stats {
    let (facts, snapshot) = (app.inference.engine.facts(), app.inference.metrics.snapshot());
    let (status, status_reason) =
        status(app.inference.shutdown.is_draining(), &app.inference.engine.status());
    Stats {
        model_id: app.inference.model.id.clone(),
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: app.inference.metrics.uptime().as_secs_f64(),
        status,
        status_reason,
        restarts: snapshot.restarts,
        counts: counts(&snapshot, facts.num_blocks as usize, facts.block_size),
        replicas: snapshot.replicas.iter().map(ReplicaStats::from).collect(),
    }
}

/// The status and its reason for clients. The error of a lost shard may have addresses in it, so it is only logged.
fn status(is_draining: bool, engine: &EngineStatus) -> (Status, Option<&'static str>) {
    match engine {
        _ if is_draining => (Status::Stopping, Some("the server is shutting down")),
        EngineStatus::Ready => (Status::Ready, None),
        EngineStatus::Asleep => (Status::Asleep, Some("the model sleeps")),
        EngineStatus::Changing => {
            (Status::Changing, Some("the model falls asleep, wakes up or gets other weights"))
        }
        EngineStatus::Restarting(_) => (Status::Restarting, Some("the model shards are restarting")),
        EngineStatus::Lost(_) => (Status::Lost, Some("the model shards stopped answering")),
    }
}

fn counts(snapshot: &Snapshot, num_blocks: usize, block_size: u32) -> Counts {
    let Levels { mut load, totals } = snapshot.levels();
    if snapshot.replicas.is_empty() {
        load.num_blocks = num_blocks;
    }
    Counts {
        waiting: load.waiting,
        running: load.running,
        kv_blocks_used: load.used_blocks,
        kv_blocks_cached: load.cached_blocks,
        kv_blocks_total: load.num_blocks,
        kv_block_tokens: block_size,
        tokens_generated_total: snapshot.sampled_tokens,
        tokens_prompt_total: totals.admitted_tokens,
        prefix_cache_hit_tokens_total: totals.cached_tokens,
        preemptions_total: totals.preemptions,
        drafts_total: totals.drafts,
        drafted_tokens_total: totals.drafted_tokens,
        accepted_tokens_total: totals.accepted_tokens,
        requests_total: [("success", snapshot.successes)].into_iter().chain(snapshot.failures()).collect(),
        steps_total: snapshot.steps,
        last_step: snapshot.last_step.as_ref().map(LastStep::from),
    }
}

impl From<&ReplicaLevels> for ReplicaStats {
    fn from(ReplicaLevels { replica, is_ready, levels: Levels { load, .. } }: &ReplicaLevels) -> Self {
        Self {
            replica: *replica,
            ready: *is_ready,
            waiting: load.waiting,
            running: load.running,
            kv_blocks_used: load.used_blocks,
            kv_blocks_cached: load.cached_blocks,
            kv_blocks_total: load.num_blocks,
        }
    }
}

impl From<&StepSummary> for LastStep {
    fn from(step: &StepSummary) -> Self {
        let StepTimings { upload_us, forward_us, sample_us, download_us } = step.timings;
        let ms = |us: u32| f64::from(us) / 1000.0;
        Self {
            sampled_tokens: step.num_sampled,
            upload_ms: ms(upload_us),
            forward_ms: ms(forward_us),
            sample_ms: ms(sample_us),
            download_ms: ms(download_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::{Load, StepSize, Totals};
    use serde_json::json;

    use super::*;
    use crate::observe::metrics::{Metrics, RequestGuard};
    use crate::observe::observer::Observer;

    #[test]
    fn a_server_without_requests_is_idle() {
        let counts = counts(&Snapshot::default(), 100, 16);
        assert_eq!((counts.running, counts.kv_blocks_used, counts.kv_blocks_total), (0, 0, 100));
        assert_eq!(counts.last_step, None);
        assert_eq!(counts.requests_total["success"], 0);
        assert_eq!(counts.requests_total["overloaded"], 0);
    }

    #[test]
    fn names_and_units_are_those_that_the_page_reads() {
        let mut metrics = Metrics::new(100, 200).unwrap();
        RequestGuard::begin(&metrics).succeed();
        let levels = Levels {
            load: Load {
                waiting: 2,
                running: 3,
                used_blocks: 7,
                cached_blocks: 5,
                num_blocks: 100,
                block_tokens: 16,
            },
            totals: Totals {
                preemptions: 1,
                admitted_tokens: 40,
                cached_tokens: 32,
                drafts: 4,
                drafted_tokens: 15,
                accepted_tokens: 9,
                ..Totals::default()
            },
        };
        metrics.on_levels(&[ReplicaLevels { replica: 0, is_ready: true, levels }]);
        metrics.on_step(&StepSummary {
            size: StepSize { sequences: 3, positions: 3 },
            num_sampled: 3,
            timings: StepTimings { upload_us: 250, forward_us: 12_500, sample_us: 1_000, download_us: 5 },
        });
        let value = serde_json::to_value(counts(&metrics.snapshot(), 100, 16)).unwrap();
        let expected = json!({
            "waiting": 2, "running": 3, "kv_blocks_used": 7, "kv_blocks_cached": 5, "kv_blocks_total": 100, "kv_block_tokens": 16,
            "tokens_generated_total": 3, "tokens_prompt_total": 40, "prefix_cache_hit_tokens_total": 32,
            "preemptions_total": 1, "drafts_total": 4, "drafted_tokens_total": 15, "accepted_tokens_total": 9,
            "steps_total": 1,
            "last_step": {
                "sampled_tokens": 3, "upload_ms": 0.25, "forward_ms": 12.5, "sample_ms": 1.0, "download_ms": 0.005,
            },
        });
        for (name, expected) in expected.as_object().unwrap() {
            assert_eq!(&value[name], expected, "{name}");
        }
        assert_eq!(value["requests_total"]["success"], 1);
    }

    #[test]
    fn the_status_has_no_address() {
        let lost = EngineStatus::Lost("unix:/tmp/private/shard-0.sock: gone".to_owned());
        assert_eq!(status(false, &lost), (Status::Lost, Some("the model shards stopped answering")));
        let restarting = EngineStatus::Restarting("unix:/tmp/private/shard-0.sock: gone".to_owned());
        assert_eq!(status(false, &restarting), (Status::Restarting, Some("the model shards are restarting")));
        assert_eq!(status(true, &EngineStatus::Ready).0, Status::Stopping);
        assert_eq!(status(false, &EngineStatus::Ready), (Status::Ready, None));
        assert_eq!(status(false, &EngineStatus::Asleep).0, Status::Asleep);
    }
}
