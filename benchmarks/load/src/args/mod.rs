//! The command line of `penstock-bench`: every flag with its help text. `load` and `run` say what flags amount to together.

mod load;
mod run;
#[cfg(test)]
mod tests;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use self::values::{at_least_one, positive, ratio, share};
use crate::api::Api;
use crate::duration;
use crate::slo::Limits;
use crate::workload::Spread;

/// Measures servers that stream tokens: how fast, how many at once, at what cost.
#[derive(Debug, Parser)]
#[command(name = "penstock-bench", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `penstock-bench` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure one server under one load
    Run(RunArgs),
    /// Find the highest request rate that a server sustains within the limits. Each rate is measured for --duration,
    /// 30s unless --duration or --num-requests is given
    Sweep(SweepArgs),
    /// Put the results of earlier runs side by side
    Report(ReportArgs),
}

/// Flags of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Whom to measure.
    #[command(flatten)]
    pub target: TargetArgs,
    /// When to send.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What to send.
    #[command(flatten)]
    pub input: InputArgs,
    /// How the server samples.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// What to report.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `sweep`: those of `run`, whose rate it chooses itself.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// Everything that stays the same from rate to rate.
    #[command(flatten)]
    pub run: RunArgs,
    /// Rate to start the search from, requests per second
    #[arg(long, default_value_t = 1.0, value_parser = positive, allow_negative_numbers = true, help_heading = "Sweep")]
    pub from: f64,
    /// Highest rate to try, requests per second
    #[arg(long, default_value_t = 1024.0, value_parser = positive, allow_negative_numbers = true, help_heading = "Sweep")]
    pub to: f64,
    /// Stop the search when the answer is known this closely, as a share of the rate
    #[arg(long, default_value_t = 0.1, value_parser = share, allow_negative_numbers = true, help_heading = "Sweep")]
    pub precision: f64,
    /// Share of requests that must meet the limits for a rate to count as sustained
    #[arg(long, default_value_t = 0.95, value_parser = share, allow_negative_numbers = true, help_heading = "Sweep")]
    pub attainment: f64,
    /// Measure exactly these rates instead of searching
    #[arg(long, value_delimiter = ',', value_parser = positive, allow_negative_numbers = true, conflicts_with_all = ["from", "to", "precision"],
        help_heading = "Sweep")]
    pub rates: Vec<f64>,
}

/// Flags of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Results written by --output
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// Write a self-contained page with plots
    #[arg(long)]
    pub html: Option<PathBuf>,
}

/// Whom to measure.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct TargetArgs {
    /// The server, up to and without the path of the API
    #[arg(long, default_value = "http://127.0.0.1:3000", env = "PENSTOCK_BENCH_URL")]
    pub url: String,
    /// Streaming API to speak
    #[arg(long, value_enum, default_value_t = Api::Chat)]
    pub api: Api,
    /// Path of the API, where the server has it elsewhere
    #[arg(long)]
    pub path: Option<String>,
    /// Model name to send; by default the first one that /v1/models lists
    #[arg(long)]
    pub model: Option<String>,
    /// LoRA adapters that requests ask for, by the names that the server has for them, instead of the model
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub adapters: Vec<String>,
    /// How often each of --adapters is asked for [default: uniform]
    #[arg(long, value_enum, requires = "adapters")]
    pub adapter_spread: Option<Spread>,
    /// Sent as `Authorization: Bearer`; never written to results
    #[arg(long, env = "PENSTOCK_BENCH_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Further header, `Name: value`; may be given again
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Longest time that one request may take
    #[arg(long, default_value = "10m", value_parser = duration::parse)]
    pub timeout: Duration,
    /// Longest time to wait for a connection
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub connect_timeout: Duration,
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalKind {
    /// Keep --concurrency requests running: a new one starts when one ends
    Closed,
    /// --rate with equal gaps
    Constant,
    /// --rate with independent arrivals
    Poisson,
    /// --rate in bursts of --burstiness
    Gamma,
    /// From --rate to --ramp-to, evenly over the run
    Ramp,
    /// At the times that the dataset says
    Trace,
}

impl ArrivalKind {
    /// The name that flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Constant => "constant",
            Self::Poisson => "poisson",
            Self::Gamma => "gamma",
            Self::Ramp => "ramp",
            Self::Trace => "trace",
        }
    }
}

/// When to send.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// How requests arrive; by default `poisson` if --rate is given, else `closed`
    #[arg(long, value_enum)]
    pub arrival: Option<ArrivalKind>,
    /// Requests kept running by `closed` [default: 1]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    pub concurrency: Option<usize>,
    /// Requests (or conversations) per second
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Shape of `gamma`: 1 is Poisson, smaller comes in bursts, larger evens out [default: 0.5]
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub burstiness: Option<f64>,
    /// Rate at the end of `ramp`
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub ramp_to: Option<f64>,
    /// Play `trace` this many times as fast
    #[arg(long, default_value_t = 1.0, value_parser = positive, allow_negative_numbers = true)]
    pub trace_speed: f64,
    /// Hold arrivals back while this many requests are running; the wait shows as lateness
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    pub max_concurrency: Option<usize>,
    /// Stop after this many requests (or conversations) [default: 100, or the whole of a trace]
    #[arg(long, short = 'n', value_parser = at_least_one, allow_negative_numbers = true)]
    pub num_requests: Option<usize>,
    /// Stop sending after this time; running requests are waited for
    #[arg(long, value_parser = duration::parse)]
    pub duration: Option<Duration>,
    /// Requests sent before the measurement; the first also checks that the server answers in a stream
    #[arg(long, default_value_t = 1)]
    pub warmup: usize,
    /// Measure this many times, each with the next seed
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub repeats: usize,
    /// Seed of lengths, texts and arrivals
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub threads: usize,
}

/// Where requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputKind {
    /// Made text of --input-len tokens
    Random,
    /// The --prompt, every time
    Prompt,
    /// ShareGPT-format JSON
    Sharegpt,
    /// JSON lines: strings, or objects with `prompt` or `messages`
    Jsonl,
    /// Mooncake-format trace
    Mooncake,
    /// Azure-format trace
    Azure,
}

impl InputKind {
    /// The name that flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Prompt => "prompt",
            Self::Sharegpt => "sharegpt",
            Self::Jsonl => "jsonl",
            Self::Mooncake => "mooncake",
            Self::Azure => "azure",
        }
    }
}

/// What to send.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Input")]
pub struct InputArgs {
    /// Where requests come from; by default `prompt` if --prompt is given, else `random`
    #[arg(long, value_enum)]
    pub input: Option<InputKind>,
    /// File of `sharegpt`, `jsonl`, `mooncake` or `azure`
    #[arg(long)]
    pub dataset: Option<PathBuf>,
    /// The text of `prompt`
    #[arg(long)]
    pub prompt: Option<String>,
    /// Mean tokens of a `random` prompt
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Mean tokens to generate [default: what the dataset says, else 128]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub output_len: Option<u32>,
    /// Draw `random` lengths from mean · (1 ± ratio)
    #[arg(long, default_value_t = 0.0, value_parser = ratio, allow_negative_numbers = true)]
    pub range_ratio: f64,
    /// Tokens in front of each `random` prompt that many share
    #[arg(long, default_value_t = 0)]
    pub prefix_len: u32,
    /// How many different shared prefixes there are
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prefixes: u32,
    /// Requests of one conversation, each carrying the answers before it
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub turns: usize,
    /// Pause between an answer and the next turn
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub think_time: Duration,
    /// How tokens are counted: a folder with tokenizer.json, or `server` to ask its /tokenize. Without it a made
    /// word is taken for a token
    #[arg(long, value_name = "FOLDER|server")]
    pub tokenizer: Option<String>,
}

/// How the server samples.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Generate to the full length, whatever the model says
    #[arg(long)]
    pub ignore_eos: bool,
    /// Softmax temperature; 0 is greedy
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Nucleus bound
    #[arg(long)]
    pub top_p: Option<f64>,
    /// Number of candidates
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Seed of the server's sampling
    #[arg(long)]
    pub sampling_seed: Option<u64>,
    /// JSON object whose fields are added to each request, or replace what is there
    #[arg(long, value_name = "JSON")]
    pub extra_body: Option<String>,
}

/// Whose count of tokens is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountTokens {
    /// The server's usage where it reports it, else the --tokenizer, else pieces of the stream
    Auto,
    /// The --tokenizer, applied to the generated text
    Tokenizer,
    /// Pieces of the stream
    Pieces,
}

/// What to report.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Results")]
pub struct OutputArgs {
    /// Limits that a request must meet to count as good, such as `ttft:500ms,tpot:50ms,e2e:10s`
    #[arg(long, value_parser = Limits::parse)]
    pub slo: Option<Limits>,
    /// What the server costs an hour, in any currency
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub price_per_hour: Option<f64>,
    /// Whose count of tokens is believed
    #[arg(long, value_enum, default_value_t = CountTokens::Auto)]
    pub count_tokens: CountTokens,
    /// Write everything measured as JSON
    #[arg(long, short)]
    pub output: Option<PathBuf>,
    /// Write a self-contained page with plots
    #[arg(long)]
    pub html: Option<PathBuf>,
    /// What reports call this run [default: the server and the load]
    #[arg(long)]
    pub label: Option<String>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}
