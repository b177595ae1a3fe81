//! Every flag of the launcher. Doc comments are the help texts; each flag is also an environment variable.
//! The module `plan` decides what the flags mean for the processes.

mod choices;
mod executor;
mod model;
mod models;
mod nodes;
mod parse;
mod process;
mod rope;
mod shards;
mod stand_ins;
mod task;
mod tokenizer;

use clap::Parser;
use penstock_router::config::RouterOptions;
use penstock_router::engine::speculation::Speculation;
use penstock_router::observe::log_level::LogLevel;
use tracing::level_filters::LevelFilter;

pub use choices::{Device, LoadFormat, Role, name_of};
pub use executor::ExecutorArgs;
pub use model::{HubArgs, ModelArgs};
pub use models::{ModelSpec, ModelsArgs};
pub use nodes::NodeArgs;
pub use parse::{is_boolean, without_variables};
pub use process::{ForkChoice, ProcessArgs};
pub use shards::ShardArgs;
pub use task::{CheckArgs, DownloadArgs, Task};

use crate::layout::Layout;
use crate::tgi::TgiArgs;

/// Serve a large language model over HTTP
///
/// Starts one shard per GPU (or one on the CPU), waits until they are ready, then starts the router. Ctrl-C or
/// SIGTERM lets running requests finish and stops; a second one stops at once.
///
/// What dies while it serves is restarted, and running requests go on.
///
/// Exit codes: 0 stopped as asked; 1 could not start; 2 what a flag asks for cannot be had, or the port is taken; 3
/// stopped as asked, but running requests were aborted; 4 gave up, because shards or router had to be restarted too often.
#[derive(Debug, Clone, Parser)]
#[command(name = "launcher", version, args_override_self = true)]
pub struct Args {
    /// What to do instead of serving
    #[command(subcommand)]
    pub task: Option<Task>,

    /// What is served
    #[command(flatten, next_help_heading = "Model")]
    pub model: ModelArgs,

    /// Several models in one server
    #[command(flatten, next_help_heading = "Several models")]
    pub models: ModelsArgs,

    /// How it is computed
    #[command(flatten, next_help_heading = "Shards")]
    pub shards: ShardArgs,

    /// On which machines it is computed
    #[command(flatten, next_help_heading = "Nodes")]
    pub nodes: NodeArgs,

    /// Who finds these machines
    #[command(flatten, next_help_heading = "Nodes")]
    pub executor: ExecutorArgs,

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

impl Args {
    /// The model that drafts, if any tokens are drafted.
    pub fn draft_model(&self) -> Option<&str> {
        let is_used = self.router.speculation.max_drafts() > 0;
        self.model.draft_model.as_deref().filter(|_| is_used)
    }

    /// The heads that draft, if any tokens are drafted, and they lie in the folder of the model.
    pub fn heads(&self) -> Option<&'static str> {
        let speculation = &self.router.speculation;
        let heads = speculation.speculation.and_then(Speculation::heads);
        heads.filter(|_| speculation.max_drafts() > 0 && self.model.draft_model.is_none())
    }

    /// Where the replicas are.
    pub fn layout(&self) -> Layout {
        let (num_replicas, num_nodes) = (self.shards.num_replicas, self.nodes.num_with_shards());
        // Ray finds room for each replica by itself.
        let least = if self.executor.is_ray() { num_replicas } else { 1 };
        Layout { num_replicas, num_nodes: num_nodes.max(least) }
    }

    /// The level of the launcher's own lines.
    pub fn launcher_log_level(&self) -> LevelFilter {
        self.log_level().of("launcher")
    }

    /// The level of the shards' lines.
    pub fn shard_log_level(&self) -> LevelFilter {
        self.log_level().of("penstock_server")
    }

    fn log_level(&self) -> LogLevel {
        self.router.log.log_level.clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::choices::Dtype;
    use super::*;

    fn parse(line: &str) -> Args {
        Args::try_parse_from(line.split_whitespace()).expect("valid flags")
    }

    #[test]
    fn every_flag_has_its_environment_variable() {
        let command = Args::command();
        let without = ["print_environment", "model"];
        let flags = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && !without.contains(&arg.get_id().as_str()));
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
        assert_eq!(args.router.listen.port, 80);
        assert_eq!(args.model.dtype, Some(Dtype::Bfloat16));
        assert_eq!(args.process.grace(), Duration::from_secs(5));
    }

    #[test]
    fn every_boolean_flag_takes_the_usual_spellings() {
        let command = Args::command();
        let flags = command.get_arguments().filter(|arg| arg.get_env().is_some());
        let flags: Vec<_> = flags.filter(|arg| is_boolean(arg)).collect();
        assert!(flags.len() >= 5, "--sharded, --json-output and others");
        for flag in flags {
            let name = flag.get_long().expect("a long name");
            for value in ["0", "1", "true", "TRUE", "False", "yes", "no", "on", "OFF"] {
                let parsed = Args::try_parse_from(["launcher", &format!("--{name}={value}")]);
                assert!(parsed.is_ok(), "--{name}={value}");
            }
            let refused =
                Args::try_parse_from(["launcher", &format!("--{name}=maybe")]).expect_err("refused");
            assert!(refused.to_string().contains("expected true or false"), "{refused}");
            assert!(Args::try_parse_from(["launcher", &format!("--{name}")]).is_ok(), "--{name}");
        }
        assert!(!parse("launcher --prefix-caching off").router.prefix_caching);
        assert!(parse("launcher --batch-invariant").shards.batch_invariant);
    }

    #[test]
    fn the_last_of_a_repeated_flag_wins() {
        assert_eq!(parse("launcher --port 1 --port 2").router.listen.port, 2);
    }

    #[test]
    fn a_revision_needs_a_model() {
        assert!(Args::try_parse_from(["launcher", "--revision", "main"]).is_err());
    }
}
