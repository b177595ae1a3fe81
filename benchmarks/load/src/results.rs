//! The file that `--output` writes and `report` reads: settings, figures and one row per request. No secrets.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::args::RunArgs;
use crate::duration::millis;
use crate::error::Error;
use crate::record::RequestRecord;
use crate::stats::{coefficient_of_variation, mean};
use crate::summary::{Figure, Summary};
use crate::workload::Spread;

/// The format's name and version; readers refuse another.
pub const FORMAT: &str = "penstock-bench/1";

/// Everything that one call of `run` or `sweep` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Always [`FORMAT`].
    pub format: String,
    /// Its name in reports.
    pub label: String,
    /// Version of the generator.
    pub version: String,
    /// When it started, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its settings.
    pub setup: Setup,
    /// One entry per repeat, or per rate of a sweep.
    pub runs: Vec<Run>,
    /// Spread over repeats, where there were several.
    #[serde(default)]
    pub variation: Vec<Variation>,
    /// The result of a sweep.
    #[serde(default)]
    pub sweep: Option<SweepFinding>,
}

/// The settings that shape the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    /// The server.
    pub url: String,
    /// Its API.
    pub api: String,
    /// Its model.
    pub model: String,
    /// Adapters that requests were spread over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// How often each of them, where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_spread: Option<Spread>,
    /// Kind of arrivals.
    pub arrival: String,
    /// Requests kept running, for a closed loop.
    pub concurrency: Option<usize>,
    /// Requests per second.
    pub rate: Option<f64>,
    /// Shape of gamma arrivals.
    pub burstiness: Option<f64>,
    /// Rate at the end of a ramp.
    pub ramp_to: Option<f64>,
    /// Most requests.
    pub num_requests: Option<usize>,
    /// How long requests were sent.
    pub duration_s: Option<f64>,
    /// Kind of input.
    pub input: String,
    /// File of the input.
    pub dataset: Option<String>,
    /// Mean tokens of made prompts.
    pub input_len: Option<u32>,
    /// Mean tokens asked for, where a flag said so.
    pub output_len: Option<u32>,
    /// Spread of drawn lengths.
    pub range_ratio: f64,
    /// Tokens of shared prefixes.
    pub prefix_len: u32,
    /// Requests of one conversation.
    pub turns: usize,
    /// Whether answers have their full length.
    pub ignore_eos: bool,
    /// Softmax temperature.
    pub temperature: Option<f64>,
    /// Seed of the first repeat.
    pub seed: u64,
    /// Requests before the measurement.
    pub warmup: usize,
}

/// One measured run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Rate that a sweep chose.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Seed of its lengths, texts and arrivals.
    pub seed: u64,
    /// The figures.
    pub summary: Summary,
    /// One row per request, in the order in which they ended.
    pub requests: Vec<Row>,
}

/// Measurements of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// When it was sent.
    pub start_s: f64,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time per output token.
    pub tpot_ms: Option<f64>,
    /// End-to-end latency.
    pub e2e_ms: f64,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Class of its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One figure over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// Its name.
    pub metric: String,
    /// Mean of the repeats.
    pub mean: f64,
    /// Standard deviation over mean.
    pub coefficient: f64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepFinding {
    /// Highest rate that was sustained, in requests per second; `None` if not even the first was.
    pub sustained_rate: Option<f64>,
    /// Lowest rate that was not.
    pub failed_rate: Option<f64>,
}

impl Results {
    /// Results of runs that just ended.
    pub fn new(args: &RunArgs, model: &str, runs: Vec<Run>) -> Self {
        let setup = Setup::of(args, model);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            format: FORMAT.into(),
            label: args.output.label.clone().unwrap_or_else(|| setup.label()),
            version: env!("CARGO_PKG_VERSION").into(),
            created_unix_s: now.as_secs(),
            setup,
            variation: variation(&runs),
            runs,
            sweep: None,
        }
    }

    /// Reads a file that [`Results::save`] wrote.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
        let refuse = |line, problem| Error::Dataset { path: path.to_owned(), line, problem };
        let results: Self = serde_json::from_str(&text)
            .map_err(|error| refuse(error.line(), format!("no results of --output: {error}")))?;
        if results.format != FORMAT {
            return Err(refuse(1, format!("format `{}` is not {FORMAT}", results.format)));
        }
        Ok(results)
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).expect("numbers and strings always serialise");
        write_file(path, &text)
    }
}

/// Writes a file, naming it if that fails.
pub fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

impl Setup {
    fn of(args: &RunArgs, model: &str) -> Self {
        let (load, input) = (&args.load, &args.input);
        let arrival = load.kind().name();
        let input_kind = args.input_kind().name();
        Self {
            url: args.target.url.clone(),
            api: args.target.api.name().into(),
            model: model.into(),
            adapters: args.target.adapters.clone(),
            adapter_spread: (!args.target.adapters.is_empty())
                .then_some(args.target.adapter_spread.unwrap_or_default()),
            arrival: arrival.into(),
            concurrency: (arrival == "closed")
                .then_some(load.concurrency.unwrap_or(1))
                .or(load.max_concurrency),
            rate: load.rate,
            burstiness: load.burstiness,
            ramp_to: load.ramp_to,
            num_requests: load.max_requests(),
            duration_s: load.duration.map(|span| span.as_secs_f64()),
            input: input_kind.into(),
            dataset: input.dataset.as_ref().map(|path| path.display().to_string()),
            input_len: (input_kind == "random").then_some(input.input_len),
            output_len: input.output_len,
            range_ratio: input.range_ratio,
            prefix_len: input.prefix_len,
            turns: input.turns,
            ignore_eos: args.sampling.ignore_eos,
            temperature: args.sampling.temperature,
            seed: load.seed,
            warmup: load.warmup,
        }
    }

    fn label(&self) -> String {
        let load = match (self.rate, self.concurrency) {
            (Some(rate), _) => format!("{} {rate}/s", self.arrival),
            (None, Some(concurrency)) => format!("{} ×{concurrency}", self.arrival),
            (None, None) => self.arrival.clone(),
        };
        format!("{} {load}", self.model)
    }
}

impl From<&RequestRecord> for Row {
    fn from(record: &RequestRecord) -> Self {
        Self {
            start_s: record.start.as_secs_f64(),
            ttft_ms: record.first_token.map(millis),
            tpot_ms: record.time_per_token().map(millis),
            e2e_ms: millis(record.end),
            input_tokens: record.input_tokens,
            output_tokens: record.output_tokens,
            error: record.failure.as_ref().map(|failure| failure.class.to_string()),
        }
    }
}

/// The figures whose spread over repeats is reported.
const VARYING: [Figure; 7] = [
    ("requests/s", |summary| summary.throughput.requests_per_s),
    ("output tokens/s", |summary| summary.throughput.output_tokens_per_s),
    ("TTFT mean, ms", |summary| summary.latency_ms.ttft.mean),
    ("TTFT p99, ms", |summary| summary.latency_ms.ttft.p99),
    ("TPOT mean, ms", |summary| summary.latency_ms.tpot.mean),
    ("ITL mean, ms", |summary| summary.latency_ms.itl.mean),
    ("E2E mean, ms", |summary| summary.latency_ms.e2e.mean),
];

fn variation(runs: &[Run]) -> Vec<Variation> {
    let spread = |(metric, pick): &Figure| {
        let values: Vec<f64> = runs.iter().map(|run| pick(&run.summary)).collect();
        let coefficient = coefficient_of_variation(&values)?;
        Some(Variation { metric: (*metric).into(), mean: mean(&values), coefficient })
    };
    VARYING.iter().filter_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(flags: &[&str]) -> RunArgs {
        match Cli::parse_from(["penstock-bench", "run"].iter().chain(flags)).command {
            Command::Run(args) => args,
            other => panic!("parsed as {other:?}"),
        }
    }

    fn run(requests_per_s: f64) -> Run {
        let mut run = Run { requests: vec![Row { e2e_ms: 1.5, ..Row::default() }], ..Run::default() };
        run.summary.throughput.requests_per_s = requests_per_s;
        run
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let results = Results::new(&args(&["--rate", "2"]), "m", vec![run(1.0)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        results.save(file.path()).unwrap();
        assert_eq!(Results::load(file.path()).unwrap(), results);
    }

    #[test]
    fn repeats_give_a_coefficient_of_variation() {
        let results = Results::new(&args(&[]), "m", vec![run(9.0), run(10.0), run(11.0)]);
        let found = &results.variation[0];
        assert_eq!((found.metric.as_str(), found.mean, found.coefficient), ("requests/s", 10.0, 0.1));
    }

    #[test]
    fn the_key_and_the_headers_are_not_written() {
        let args = args(&["--api-key", "very-secret", "--header", "X-Auth: also-secret"]);
        let text = serde_json::to_string(&Results::new(&args, "m", Vec::new())).unwrap();
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn another_format_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = Results { format: "other/2".into(), ..Results::new(&args(&[]), "m", Vec::new()) };
        other.save(file.path()).unwrap();
        assert!(
            Results::load(file.path()).unwrap_err().to_string().contains("`other/2` is not penstock-bench/1")
        );
        std::fs::write(file.path(), "{}").unwrap();
        assert!(Results::load(file.path()).unwrap_err().to_string().contains("no results of --output"));
    }
}
