//! Gauges of each replica, where there are several: the same numbers as those without the label, which are their sums.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::Gauge;
use metrics_exporter_prometheus::PrometheusRecorder;

use super::names::Names;
use crate::observe::observer::{Levels, ReplicaLevels};

/// The gauges of one replica.
struct Gauges {
    ready: Gauge,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Gauge,
    kv_blocks_cached: Gauge,
}

/// The gauges of all replicas by number, made as they come. A number that has become free is given out again, so there are
/// no more labels than there were replicas at a time.
pub(super) struct ReplicaMetrics {
    recorder: Arc<PrometheusRecorder>,
    all: Mutex<BTreeMap<usize, Gauges>>,
}

impl ReplicaMetrics {
    pub fn new(recorder: Arc<PrometheusRecorder>) -> Self {
        Self { recorder, all: Mutex::default() }
    }

    /// Sets all gauges, those of replicas that are gone to nothing. One that was always alone has none: its numbers are those
    /// of the server.
    pub fn set(&self, replicas: &[ReplicaLevels]) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if replicas.len() < 2 && all.is_empty() {
            return;
        }
        for levels in replicas {
            let gauges = all.entry(levels.replica).or_insert_with(|| self.register(levels.replica));
            gauges.set(levels);
        }
        let is_gone = |number: &usize| replicas.iter().all(|levels| levels.replica != *number);
        all.iter()
            .filter(|(number, _)| is_gone(number))
            .for_each(|(_, it)| it.set(&ReplicaLevels::default()));
    }

    fn register(&self, replica: usize) -> Gauges {
        let names = Names(&self.recorder);
        let gauge = |name, help| names.named_gauge(name, help, &[("replica", &replica.to_string())]);
        Gauges {
            ready: gauge("tgi_replica_ready", "1 while the shards of the replica answer, else 0"),
            running: gauge("tgi_replica_requests_running", "Requests in the batch of the replica"),
            waiting: gauge("tgi_replica_requests_waiting", "Requests that wait for the replica"),
            kv_usage: gauge("tgi_replica_kv_cache_usage", "Part of its KV blocks that requests hold, 0 to 1"),
            kv_blocks_cached: gauge(
                "tgi_replica_kv_cache_blocks_cached",
                "KV blocks of the replica that only the cache holds",
            ),
        }
    }
}

impl Gauges {
    fn set(&self, ReplicaLevels { is_ready, levels: Levels { load, .. }, .. }: &ReplicaLevels) {
        self.ready.set(f64::from(u8::from(*is_ready)));
        self.running.set(load.running as f64);
        self.waiting.set(load.waiting as f64);
        self.kv_usage.set(load.used_blocks as f64 / load.num_blocks.max(1) as f64);
        self.kv_blocks_cached.set(load.cached_blocks as f64);
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::{Load, Totals};

    use super::super::Metrics;
    use super::super::handle::tests::value;
    use super::*;
    use crate::observe::observer::Observer;

    fn replica(number: usize, is_ready: bool, running: usize) -> ReplicaLevels {
        let load = Load { running, used_blocks: 3, num_blocks: 6, ..Load::default() };
        let totals = Totals { preemptions: 4, ..Totals::default() };
        ReplicaLevels { replica: number, is_ready, levels: Levels { load, totals } }
    }

    #[test]
    fn several_replicas_have_gauges_of_their_own_and_one_has_none() {
        let mut metrics = Metrics::new(100, 200).unwrap();
        metrics.on_levels(&[replica(0, true, 2)]);
        assert!(!metrics.render().contains("replica"), "one");
        metrics.on_levels(&[replica(0, false, 0), replica(1, true, 5)]);
        assert_eq!(value(&metrics, "tgi_replica_ready{replica=\"0\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_replica_requests_running{replica=\"1\"}"), 5.0);
        assert_eq!(value(&metrics, "tgi_replica_kv_cache_usage{replica=\"1\"}"), 0.5);
        assert_eq!(value(&metrics, "tgi_requests_running"), 5.0, "the sum");
        assert_eq!(value(&metrics, "tgi_kv_cache_blocks"), 12.0);
        assert_eq!(value(&metrics, "tgi_engine_ready"), 1.0, "one is enough");
        metrics.on_levels(&[replica(0, false, 0), replica(1, false, 0)]);
        assert_eq!(value(&metrics, "tgi_engine_ready"), 0.0);
    }
    #[test]
    fn a_replica_that_is_removed_leaves_no_levels_and_what_it_counted() {
        let mut metrics = Metrics::new(100, 200).unwrap();
        metrics.on_levels(&[replica(0, true, 1), replica(1, true, 5)]);
        assert_eq!(value(&metrics, "tgi_preemptions"), 8.0);
        metrics.on_departed(replica(1, true, 0).levels.totals, &[1]);
        metrics.on_levels(&[replica(0, true, 1)]);
        assert_eq!(value(&metrics, "tgi_replica_ready{replica=\"1\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_replica_requests_running{replica=\"1\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_replica_ready{replica=\"0\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_preemptions"), 8.0, "a counter never falls");
        metrics.on_levels(&[replica(0, true, 1), replica(1, true, 2)]);
        assert_eq!(value(&metrics, "tgi_replica_requests_running{replica=\"1\"}"), 2.0, "its number, again");
    }
}
