//! The command line of `penstock-bench`: every flag with its help text, and the checks across flags.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::api::{Api, Sampling};
use crate::arrival::Arrival;
use crate::duration;
use crate::error::Error;
use crate::slo::Limits;
use crate::workload::{Source, WorkloadConfig};

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

/// Shape of `gamma` where no flag says it: clearly in bursts.
const DEFAULT_BURSTINESS: f64 = 0.5;
/// Requests sent where no flag says how many or how long.
const DEFAULT_NUM_REQUESTS: usize = 100;
/// Different sessions prepared for a run that only a duration ends; they come again if it needs more.
const DEFAULT_PREPARED: usize = 1000;

impl LoadArgs {
    /// The kind of arrivals that the flags amount to.
    pub fn kind(&self) -> ArrivalKind {
        let by_rate = if self.rate.is_some() { ArrivalKind::Poisson } else { ArrivalKind::Closed };
        self.arrival.unwrap_or(by_rate)
    }

    /// How many requests at most.
    pub fn max_requests(&self) -> Option<usize> {
        let has_no_end = self.duration.is_none() && self.kind() != ArrivalKind::Trace;
        self.num_requests.or(has_no_end.then_some(DEFAULT_NUM_REQUESTS))
    }

    /// The shape of the schedule; `None` for a closed loop or a trace.
    pub fn shape(&self) -> Result<Option<Arrival>, Error> {
        let rate = || {
            let missing = format!("needs --rate, requests per second, for {}", self.kind().name());
            self.rate.ok_or_else(|| Error::flag("--arrival", self.kind().name(), missing))
        };
        Ok(match self.kind() {
            ArrivalKind::Closed | ArrivalKind::Trace => None,
            ArrivalKind::Constant => Some(Arrival::Constant { rate: rate()? }),
            ArrivalKind::Poisson => Some(Arrival::Gamma { rate: rate()?, shape: 1.0 }),
            ArrivalKind::Gamma => {
                Some(Arrival::Gamma { rate: rate()?, shape: self.burstiness.unwrap_or(DEFAULT_BURSTINESS) })
            }
            ArrivalKind::Ramp => Some(Arrival::Ramp { from: rate()?, to: self.ramp_end()? }),
        })
    }

    fn ramp_end(&self) -> Result<f64, Error> {
        self.ramp_to.ok_or_else(|| Error::flag("--arrival", "ramp", "needs --ramp-to, the rate at the end"))
    }

    /// How many different sessions to prepare.
    fn num_prepared(&self) -> usize {
        match (self.max_requests(), self.duration, self.rate) {
            (Some(count), _, _) => count,
            (None, Some(span), Some(rate)) => {
                let mean =
                    (rate + self.ramp_to.filter(|_| self.kind() == ArrivalKind::Ramp).unwrap_or(rate)) / 2.0;
                ((mean * span.as_secs_f64() * 1.2).ceil() as usize).clamp(1, 100 * DEFAULT_PREPARED)
            }
            _ if self.kind() == ArrivalKind::Trace => usize::MAX,
            _ => DEFAULT_PREPARED,
        }
    }
}

impl RunArgs {
    /// Checks what clap cannot: flags that need or exclude one another.
    pub fn check(&self) -> Result<(), Error> {
        self.load.shape()?;
        self.source()?;
        self.check_trace()?;
        self.check_unused()?;
        self.sampling("")?;
        if self.output.count_tokens == CountTokens::Tokenizer && self.input.tokenizer.is_none() {
            return Err(Error::flag(
                "--count-tokens",
                "tokenizer",
                "needs --tokenizer, a folder or `server`",
            ));
        }
        Ok(())
    }

    /// Flags that the others leave without any effect are mistakes; they are refused rather than ignored.
    fn check_unused(&self) -> Result<(), Error> {
        let unused = self.unused_load_flags().into_iter().chain(self.unused_input_flags());
        let first =
            unused.into_iter().find_map(|(flag, value, problem)| Some(Error::flag(flag, value?, problem)));
        first.map_or(Ok(()), Err)
    }

    fn unused_load_flags(&self) -> [Unused; 4] {
        let (load, arrival) = (&self.load, self.load.kind());
        let by_rate = !matches!(arrival, ArrivalKind::Closed | ArrivalKind::Trace);
        let (is_closed, is_gamma, is_ramp) =
            (arrival == ArrivalKind::Closed, arrival == ArrivalKind::Gamma, arrival == ArrivalKind::Ramp);
        let problem = |instead: &str| format!("has no effect with --arrival {}; {instead}", arrival.name());
        [
            ("--rate", given(load.rate, by_rate), problem("use --concurrency or --trace-speed")),
            ("--concurrency", given(load.concurrency, is_closed), problem("use --max-concurrency")),
            ("--burstiness", given(load.burstiness, is_gamma), problem("it needs gamma")),
            ("--ramp-to", given(load.ramp_to, is_ramp), problem("it needs ramp")),
        ]
    }

    fn unused_input_flags(&self) -> [Unused; 4] {
        let (input, kind) = (&self.input, self.input_kind());
        let (is_random, is_prompt) = (kind == InputKind::Random, kind == InputKind::Prompt);
        let ratio = Some(input.range_ratio).filter(|ratio| *ratio > 0.0);
        let prefix = Some(input.prefix_len).filter(|len| *len > 0);
        let dataset = input.dataset.as_ref().map(|path| path.display());
        let problem =
            |instead: &str| format!("has no effect with --input {}; it needs {instead}", kind.name());
        [
            ("--range-ratio", given(ratio, is_random), problem("random")),
            ("--prefix-len", given(prefix, is_random), problem("random")),
            ("--prompt", given(input.prompt.as_ref(), is_prompt), problem("prompt")),
            (
                "--dataset",
                given(dataset, !is_random && !is_prompt),
                problem("sharegpt, jsonl, mooncake or azure"),
            ),
        ]
    }

    fn check_trace(&self) -> Result<(), Error> {
        let has_times =
            matches!(self.input_kind(), InputKind::Mooncake | InputKind::Azure | InputKind::Jsonl);
        if self.load.kind() == ArrivalKind::Trace && !has_times {
            let problem =
                format!("--input {} has no times; use mooncake, azure or jsonl", self.input_kind().name());
            return Err(Error::flag("--arrival", "trace", problem));
        }
        Ok(())
    }

    /// The kind of input that the flags amount to.
    pub fn input_kind(&self) -> InputKind {
        let by_prompt = if self.input.prompt.is_some() { InputKind::Prompt } else { InputKind::Random };
        self.input.input.unwrap_or(by_prompt)
    }

    /// What to prepare for one repeat.
    pub fn workload(&self, repeat: usize) -> Result<WorkloadConfig, Error> {
        let input = &self.input;
        Ok(WorkloadConfig {
            source: self.source()?,
            num_sessions: self.load.num_prepared(),
            input_len: input.input_len,
            output_len: input.output_len,
            range_ratio: input.range_ratio,
            prefix_len: input.prefix_len,
            num_prefixes: input.num_prefixes,
            turns: input.turns,
            seed: self.load.seed.wrapping_add(repeat as u64),
        })
    }

    fn source(&self) -> Result<Source, Error> {
        let kind = self.input_kind();
        let file = || {
            let file = self.input.dataset.clone();
            file.ok_or_else(|| Error::flag("--input", kind.name(), "needs --dataset, the file to read"))
        };
        Ok(match kind {
            InputKind::Random => Source::Random,
            InputKind::Prompt => Source::Prompt(self.prompt_text()?),
            InputKind::Sharegpt => Source::ShareGpt(file()?),
            InputKind::Jsonl => Source::Jsonl(file()?),
            InputKind::Mooncake => Source::Mooncake(file()?),
            InputKind::Azure => Source::Azure(file()?),
        })
    }

    fn prompt_text(&self) -> Result<String, Error> {
        self.input
            .prompt
            .clone()
            .ok_or_else(|| Error::flag("--input", "prompt", "needs --prompt, the text to send"))
    }

    /// What every request asks for.
    pub fn sampling(&self, model: &str) -> Result<Sampling, Error> {
        let args = &self.sampling;
        let extra = args.extra_body.as_deref().map(parse_object).transpose()?.unwrap_or_default();
        Ok(Sampling {
            model: model.to_owned(),
            ignore_eos: args.ignore_eos,
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            seed: args.sampling_seed,
            extra,
        })
    }
}

fn parse_object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::flag("--extra-body", text, format!("not a JSON object: {error}")))
}

/// A flag, its value if it was given in vain, and what to do instead.
type Unused = (&'static str, Option<String>, String);

/// The value of a flag that was given although it is not used.
fn given(value: Option<impl ToString>, is_used: bool) -> Option<String> {
    value.filter(|_| !is_used).map(|value| value.to_string())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "must be a number above 0".into())
}

fn share(text: &str) -> Result<f64, String> {
    positive(text).ok().filter(|number| *number <= 1.0).ok_or_else(|| "must be above 0 and at most 1".into())
}

fn ratio(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "must be from 0 to 1".into())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be a whole number above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run_args(flags: &str) -> Result<RunArgs, String> {
        let words = ["penstock-bench", "run"].into_iter().chain(flags.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Run(args) => args.check().map(|()| args).map_err(|error| error.to_string()),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_rate_alone_means_poisson_and_nothing_means_closed() {
        assert_eq!(run_args("--rate 3").unwrap().load.kind(), ArrivalKind::Poisson);
        assert_eq!(run_args("").unwrap().load.kind(), ArrivalKind::Closed);
        let ramp = run_args("--arrival ramp --rate 1 --ramp-to 9").unwrap().load.shape().unwrap();
        assert_eq!(ramp, Some(Arrival::Ramp { from: 1.0, to: 9.0 }));
    }

    #[test]
    fn a_hundred_requests_unless_a_limit_is_given() {
        assert_eq!(run_args("").unwrap().load.max_requests(), Some(100));
        assert_eq!(run_args("--duration 5s").unwrap().load.max_requests(), None);
        let trace = run_args("--arrival trace --input azure --dataset t.csv").unwrap();
        assert_eq!((trace.load.max_requests(), trace.workload(0).unwrap().num_sessions), (None, usize::MAX));
        assert_eq!(run_args("--duration 5s -n 7").unwrap().load.max_requests(), Some(7));
    }

    #[test]
    fn enough_sessions_are_prepared_for_a_rate_and_a_time() {
        assert_eq!(run_args("--rate 10 --duration 5s").unwrap().workload(0).unwrap().num_sessions, 60);
        assert_eq!(run_args("--duration 5s").unwrap().workload(0).unwrap().num_sessions, DEFAULT_PREPARED);
    }

    #[test]
    fn refusals_name_the_flag_the_value_and_what_is_allowed() {
        let cases = [
            ("--arrival gamma", "--arrival gamma: needs --rate"),
            ("--arrival ramp --rate 2", "needs --ramp-to"),
            ("--arrival trace", "--arrival trace: --input random has no times; use mooncake, azure or jsonl"),
            ("--arrival closed --rate 2", "--rate 2: has no effect with --arrival closed; use --concurrency"),
            ("--input sharegpt", "--input sharegpt: needs --dataset"),
            (
                "--rate 2 --concurrency 8",
                "--concurrency 8: has no effect with --arrival poisson; use --max-concurrency",
            ),
            ("--burstiness 2", "--burstiness 2: has no effect with --arrival closed; it needs gamma"),
            (
                "--dataset x.json",
                "--dataset x.json: has no effect with --input random; it needs sharegpt, jsonl",
            ),
            ("--count-tokens tokenizer", "--count-tokens tokenizer: needs --tokenizer"),
            ("--extra-body [1]", "--extra-body [1]: not a JSON object"),
            (
                "--prompt hi --range-ratio 0.5",
                "--range-ratio 0.5: has no effect with --input prompt; it needs random",
            ),
            ("--rate -1", "must be a number above 0"),
            ("--concurrency 0", "must be a whole number above 0"),
            ("--range-ratio 2", "must be from 0 to 1"),
            ("--slo speed:3", "unknown metric `speed`"),
            ("--timeout soon", "`soon` is not a span of time"),
            ("--api grpc", "[possible values: chat, completions, generate]"),
        ];
        for (flags, expected) in cases {
            let message = run_args(flags).expect_err(flags);
            assert!(message.contains(expected), "{flags}: {message}");
        }
    }
}
