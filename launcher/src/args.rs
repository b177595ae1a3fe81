//! Every flag of the launcher. Doc comments are the help texts; each flag is also an environment variable.
//! What the flags mean for the processes is decided in `plan`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{
    ArgAction, ArgMatches, Args as ClapArgs, Command, CommandFactory, FromArgMatches, Parser, Subcommand,
    ValueEnum,
};
use penstock_router::config::RouterOptions;

use crate::supervisor::RestartLimit;
use crate::tgi::{TgiArgs, renamed_variables};

/// The name of [`Task::CheckTgiArgs`].
const CHECK: &str = "check-tgi-args";

/// Serve a large language model over HTTP
///
/// Starts one shard per GPU (or one on the CPU), waits until they are ready, then starts the router. Ctrl-C or
/// SIGTERM lets running requests finish and stops; a second one stops at once.
///
/// What dies while it serves is restarted, and running requests go on.
///
/// Exit codes: 0 stopped as asked; 1 could not start; 2 wrong usage, or the port is taken; 3 stopped as asked, but
/// running requests were cut short; 4 gave up, because shards or router had to be restarted too often.
#[derive(Debug, Clone, Parser)]
#[command(name = "launcher", version, args_override_self = true)]
pub struct Args {
    /// What to do instead of serving
    #[command(subcommand)]
    pub task: Option<Task>,

    /// What is served
    #[command(flatten, next_help_heading = "Model")]
    pub model: ModelArgs,

    /// How it is computed
    #[command(flatten, next_help_heading = "Shards")]
    pub shards: ShardArgs,

    /// How it is reached
    #[command(flatten, next_help_heading = "Server and limits")]
    pub router: RouterOptions,

    /// How the processes are run
    #[command(flatten, next_help_heading = "Process")]
    pub process: ProcessArgs,

    /// What is accepted for the sake of old manifests
    #[command(flatten, next_help_heading = "Flags of text-generation-inference without a counterpart")]
    pub tgi: TgiArgs,
}

/// What is served.
#[derive(Debug, Clone, ClapArgs)]
pub struct ModelArgs {
    /// Local folder or Hugging Face Hub id of the model [default: the small demo model that comes with Penstock]
    #[arg(long, env)]
    pub model_id: Option<String>,

    /// Where it comes from
    #[command(flatten)]
    pub hub: HubArgs,

    /// Type of weights and activations [default: the model's own]
    #[arg(long, env)]
    pub dtype: Option<Dtype>,

    /// Type of the KV cache; `auto` is that of the weights, the others are 8-bit floats: half the memory, less precision
    #[arg(long, env, default_value = "auto")]
    pub kv_cache_dtype: KvCacheDtype,

    /// Where the weights come from; `dummy` fills the model with noise and reads none, for measuring
    #[arg(long, env, default_value = "safetensors")]
    pub load_format: LoadFormat,

    /// Whose modelling code computes; `auto` takes Penstock's own where it knows the family, else that of transformers
    #[arg(long, env, default_value = "auto")]
    pub model_impl: ModelImpl,

    /// How requests sample that do not say how; `auto` as the model's generation_config.json has it, `none` as the API
    /// documents. What ends a sequence is read from there in any case
    #[arg(long, env, default_value = "auto")]
    pub generation_config: GenerationConfig,
}

/// Where a model of the hub comes from and goes to.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct HubArgs {
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, env, requires = "model_id")]
    pub revision: Option<String>,

    /// Folder that models of the hub are kept in [default: the hub client's own, ~/.cache/huggingface/hub]
    #[arg(long, env)]
    pub huggingface_hub_cache: Option<PathBuf>,
}

/// What to do instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Task {
    /// Fetch a model ahead of time and print the folder it is in
    ///
    /// What was fetched before is kept, and a connection that breaks is taken up where it broke. HF_TOKEN opens gated
    /// models, HF_HOME says where models are kept, HF_ENDPOINT where the hub is.
    ///
    /// Exit codes: 0 it is there; 1 it cannot be had.
    Download(DownloadArgs),

    /// Say what becomes of each argument of a text-generation-launcher command line
    ///
    /// The environment variables of text-generation-inference that are set are looked at, too. Nothing is started, and
    /// neither the model nor the machine is looked at.
    ///
    /// Exit codes: 0 this command line would be accepted; 2 something in it is refused or unknown.
    CheckTgiArgs(CheckArgs),
}

/// What to check.
#[derive(Debug, Clone, ClapArgs)]
pub struct CheckArgs {
    /// Write one JSON object instead of lines
    #[arg(long)]
    pub json: bool,

    /// Arguments as text-generation-launcher takes them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub line: Vec<String>,
}

/// What to fetch.
#[derive(Debug, Clone, ClapArgs)]
pub struct DownloadArgs {
    /// Hugging Face Hub id of the model
    pub model_id: String,

    /// Where it comes from
    #[command(flatten)]
    pub hub: HubArgs,
}

/// How it is computed.
#[derive(Debug, Clone, ClapArgs)]
pub struct ShardArgs {
    /// Shards that the model is split over (tensor parallel) [default: every visible GPU; 1 on the CPU]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub num_shard: Option<u32>,

    /// `true` splits the model over every visible GPU, `false` uses one
    #[arg(long, env, num_args = 0..=1, default_missing_value = "true")]
    pub sharded: Option<bool>,

    /// Where the shards compute; `auto` takes the GPUs if there are any
    #[arg(long, env, default_value = "auto")]
    pub device: Device,

    /// Most sequences that run at once [default: 128]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_batch_size: Option<u32>,

    /// Who computes attention; `auto` takes Penstock's own for the device
    #[arg(long, env, default_value = "auto")]
    pub attention_backend: AttentionBackend,

    /// A request's tokens do not depend on what shares its batch, to the last bit; slower
    #[arg(long, env)]
    pub batch_invariant: bool,

    /// Numbers of rows that decode steps are captured for, as in 1,2,4,8; `0` for none
    /// [default: up to --max-batch-size on a GPU, up to 32 on a CPU]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(0..=4096), value_delimiter = ',', value_name = "SIZES")]
    pub cuda_graphs: Option<Vec<u32>>,

    /// Share of a GPU's memory that weights, KV cache and steps may take together [default: 0.9]
    #[arg(long, env, value_parser = fraction)]
    pub cuda_memory_fraction: Option<f32>,

    /// For tests: whatever KV cache was not written for a sequence is made NaN before it computes; slow
    #[arg(long, hide = true)]
    pub poison_cache: bool,
}

/// How the processes are run.
#[derive(Debug, Clone, ClapArgs)]
pub struct ProcessArgs {
    /// Seconds that the shards may take to load the model
    // A 70B model from a slow network disk takes a quarter of an hour; a server that hangs should not hang for ever.
    #[arg(long, env, default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    pub startup_timeout: u64,

    /// Seconds that running requests may take to finish after SIGTERM or Ctrl-C
    #[arg(long, short, env, default_value_t = 90)]
    pub graceful_termination_timeout: u64,

    /// Restarts of the shards, and of the router, within --restart-window; one more ends the server
    #[arg(long, env, default_value_t = 10)]
    pub max_restarts: u32,

    /// Seconds in which restarts are counted
    #[arg(long, env, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub restart_window: u64,

    /// FAULT HOOK, for tests only: what a shard is to do wrong, see server/penstock_server/rpc/faults.py
    #[arg(long, hide = true)]
    pub fault: Vec<String>,

    /// Print what is known of the machine and the installation, and exit
    #[arg(long = "env", short = 'e')]
    pub print_environment: bool,

    /// Print docs/flags.md, and exit
    #[arg(long, hide = true, action = ArgAction::SetTrue)]
    pub markdown_help: bool,

    /// Print docs/openapi.json, and exit
    #[arg(long, hide = true, action = ArgAction::SetTrue)]
    pub openapi: bool,
}

/// Type of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Dtype {
    /// 32 bits
    Float32,
    /// 16 bits, more precision, less range
    Float16,
    /// 16 bits, more range, less precision
    Bfloat16,
}

/// Type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// That of the weights
    Auto,
    /// 8 bits, 4 of exponent and 3 of mantissa
    Fp8,
    /// The same
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    /// The same, under TGI's name
    #[value(name = "fp8_e4m3fn")]
    Fp8E4m3fn,
}

/// Who computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttentionBackend {
    /// Penstock's own for the device
    Auto,
    /// Penstock's kernels for a GPU
    Triton,
    /// Penstock's C for the CPU
    Native,
    /// Plain PyTorch, slow
    Reference,
    /// FlashInfer, which must be installed
    Flashinfer,
    /// Prompts by FlashAttention, as PyTorch has it; all else by Penstock's kernels
    Varlen,
}

/// Where the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// The model's folder
    Safetensors,
    /// Nowhere: they are noise
    Dummy,
}

/// Whose modelling code computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelImpl {
    /// Penstock's own where it knows the family, else that of transformers
    Auto,
    /// Penstock's own
    Native,
    /// That of the installed transformers
    Transformers,
}

/// How requests sample that do not say how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfig {
    /// As the model's makers have it
    Auto,
    /// As the API documents
    None,
}

/// Where the shards compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// GPUs if there are any, else the CPU
    Auto,
    /// The CPU
    Cpu,
    /// NVIDIA GPUs
    Cuda,
}

impl Args {
    /// Parses the command line and the environment; the error prints help or what is wrong, and has the exit code.
    pub fn from_command_line() -> Result<Self, clap::Error> {
        let mut line = std::env::args_os();
        let (program, arguments) = (line.next().unwrap_or_default(), line.collect::<Vec<_>>());
        // Of a server with TGI's variables: they are the question, and need not be right.
        if arguments.first().is_some_and(|first| first == CHECK) {
            return Self::from_matches(
                &without_variables().try_get_matches_from([vec![program], arguments].concat())?,
            );
        }
        let renamed = renamed_variables(|name| std::env::var_os(name));
        let matches = Self::command().try_get_matches_from([vec![program], renamed, arguments].concat())?;
        Self::from_matches(&matches)
    }

    fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        args.ignore_machine_name(matches);
        Ok(args)
    }

    /// Shells and containers set `HOSTNAME` to the name of the machine, which is no address to listen on.
    fn ignore_machine_name(&mut self, matches: &ArgMatches) {
        let from_env = matches.value_source("hostname") == Some(ValueSource::EnvVariable);
        if from_env && self.router.hostname.parse::<IpAddr>().is_err() {
            self.router.hostname = default_of("hostname");
        }
    }
}

impl ProcessArgs {
    /// How long the shards may take to load.
    pub fn startup_timeout(&self) -> Duration {
        Duration::from_secs(self.startup_timeout)
    }

    /// How often what dies is restarted.
    pub fn restart_limit(&self) -> RestartLimit {
        RestartLimit { count: self.max_restarts, window: Duration::from_secs(self.restart_window) }
    }

    /// How long running requests may take to finish.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.graceful_termination_timeout)
    }
}

/// A choice as it is written on a command line.
pub fn name_of(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value().expect("no choice is hidden");
    value.get_name().to_owned()
}

fn fraction(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err(format!("{text} is not a number above 0 and at most 1")),
    }
}

/// The launcher's flags, read from a command line only.
pub fn without_variables() -> Command {
    Args::command().mut_args(|arg| arg.env(None::<&'static str>))
}

fn default_of(id: &str) -> String {
    let command = Args::command();
    let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect("declared in RouterOptions");
    arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Args {
        Args::try_parse_from(line.split_whitespace()).expect("valid flags")
    }

    #[test]
    fn every_flag_has_its_environment_variable() {
        let command = Args::command();
        let flags =
            command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "print_environment");
        for arg in flags {
            let expected = arg.get_id().as_str().to_uppercase().replace('-', "_");
            assert_eq!(arg.get_env().map(|env| env.to_string_lossy().into_owned()), Some(expected));
        }
    }

    #[test]
    fn accepts_the_flags_of_tgi() {
        let args = parse("launcher --model-id m --sharded true --num-shard 2 -p 80 --dtype bfloat16 -g 5");
        assert_eq!(args.shards.sharded, Some(true));
        assert_eq!(args.shards.num_shard, Some(2));
        assert_eq!(args.router.port, 80);
        assert_eq!(args.model.dtype, Some(Dtype::Bfloat16));
        assert_eq!(args.process.grace(), Duration::from_secs(5));
    }

    #[test]
    fn the_last_of_a_repeated_flag_wins() {
        assert_eq!(parse("launcher --port 1 --port 2").router.port, 2);
    }

    #[test]
    fn a_revision_needs_a_model() {
        assert!(Args::try_parse_from(["launcher", "--revision", "main"]).is_err());
    }
}
