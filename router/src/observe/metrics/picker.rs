//! The metrics that the endpoint pickers of Kubernetes' Gateway API and of llm-d scrape, under vLLM's names, which is what
//! they look for. Some labels change with every scrape, so these are written anew each time instead of being registered.

use std::fmt::Write;

use super::handle::Metrics;
use crate::base::unix_time::unix_time;
use crate::observe::observer::Levels;

/// Facts for the picker that the metrics of requests and blocks do not contain.
#[derive(Debug, Clone, Default)]
pub struct Served {
    /// The name of the model for clients.
    pub model: String,
    /// Token positions in a KV block.
    pub block_size: u32,
    /// Different adapters that may run at one time.
    pub max_adapters: u32,
    /// The adapters of running sequences, by name.
    pub running_adapters: Vec<String>,
    /// The adapters of sequences in the queue.
    pub waiting_adapters: Vec<String>,
}

impl Metrics {
    /// All metrics in Prometheus' text format.
    pub fn render_with(&self, served: &Served) -> String {
        let mut text = self.render();
        write_all(&mut text, served, &self.snapshot().levels());
        text
    }
}

fn write_all(text: &mut String, served: &Served, levels: &Levels) {
    let load = &levels.load;
    let model = format!("model_name=\"{}\"", escaped(&served.model));
    let usage = load.used_blocks as f64 / load.num_blocks.max(1) as f64;
    let blocks =
        format!("{model},block_size=\"{}\",num_gpu_blocks=\"{}\"", served.block_size, load.num_blocks);
    let adapters = format!(
        "max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
        served.max_adapters,
        escaped(&served.running_adapters.join(",")),
        escaped(&served.waiting_adapters.join(",")),
    );
    // If there are several lines of one metric, the picker takes the one with the latest time.
    for (name, help, labels, value) in [
        ("num_requests_waiting", "Requests in the queue", &model, load.waiting as f64),
        ("num_requests_running", "Requests in the batch", &model, load.running as f64),
        ("kv_cache_usage_perc", "Part of the KV blocks that requests hold, 0 to 1", &model, usage),
        ("cache_config_info", "The KV cache, in the labels", &blocks, 1.0),
        ("lora_requests_info", "Adapters in the labels; the value is the time", &adapters, unix_time()),
    ] {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} gauge");
        let _ = writeln!(text, "vllm:{name}{{{labels}}} {value}\n");
    }
}

/// A value of a label: names are an operator's or a user's, and may hold anything.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use penstock_scheduler::Load;

    use super::*;
    use crate::observe::observer::{Observer, ReplicaLevels};

    /// Labels and value of each metric of vLLM, read as a scraper reads them.
    fn parsed(text: &str) -> BTreeMap<String, (BTreeMap<String, String>, f64)> {
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("vllm:")?.split_once('{')?;
            let (labels, value) = rest.rsplit_once("} ")?;
            Some((name.to_owned(), (labels_of(labels), value.parse().ok()?)))
        };
        text.lines().filter_map(line).collect()
    }

    fn labels_of(mut text: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        while let Some((name, rest)) = text.split_once("=\"") {
            let mut value = String::new();
            let mut chars = rest.char_indices();
            let end = loop {
                match chars.next().expect("a closing quote") {
                    (_, '\\') => value.push(chars.next().expect("an escaped character").1),
                    (at, '"') => break at,
                    (_, other) => value.push(other),
                }
            };
            labels.insert(name.trim_start_matches(',').to_owned(), value);
            text = &rest[end + 1..];
        }
        labels
    }

    #[test]
    fn a_picker_finds_what_it_looks_for_under_the_names_of_vllm() {
        let mut metrics = Metrics::new(100, 200).unwrap();
        let load = Load { waiting: 3, running: 5, used_blocks: 30, num_blocks: 120, ..Load::default() };
        let levels = Levels { load, ..Levels::default() };
        metrics.on_levels(&[ReplicaLevels { replica: 0, is_ready: true, levels }]);
        let served = Served {
            model: "org/\"odd\\name\"".to_owned(),
            block_size: 16,
            max_adapters: 4,
            running_adapters: vec!["a".to_owned(), "b".to_owned()],
            waiting_adapters: vec!["b".to_owned()],
        };
        let text = metrics.render_with(&served);
        let found = parsed(&text);
        assert_eq!(found.len(), 5);
        assert_eq!(found["num_requests_waiting"].1, 3.0);
        assert_eq!(found["num_requests_running"].1, 5.0);
        assert_eq!(found["kv_cache_usage_perc"].1, 0.25);
        assert_eq!(found["kv_cache_usage_perc"].0["model_name"], served.model);
        let (cache, value) = &found["cache_config_info"];
        assert_eq!((&*cache["block_size"], &*cache["num_gpu_blocks"], *value), ("16", "120", 1.0));
        let (adapters, time) = &found["lora_requests_info"];
        assert_eq!((&*adapters["max_lora"], &*adapters["running_lora_adapters"]), ("4", "a,b"));
        assert_eq!(adapters["waiting_lora_adapters"], "b");
        assert!(*time > 1.7e9, "the time in seconds");
        assert_eq!(text.matches("# TYPE vllm:").count(), 5);
        assert!(text.contains("tgi_requests_running 5"), "beside those of TGI");
    }
}
