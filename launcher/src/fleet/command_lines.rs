//! Makes the command lines of the launcher of each model, and of the proxy in front of them. Pure functions.

use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory, FromArgMatches};
use penstock_router::proxy::budget::BudgetOptions;

use super::error::FleetError;
use super::names;
use crate::args::{Args, ModelSpec};
use crate::argv;
use crate::hardware::Hardware;
use crate::plan::{EachStart, ProcessSpec, Readiness, num_gpus};
use crate::words;

/// Flags of the whole server. The launcher of a model does not get them, and no model has its own.
const OF_SERVER: [&str; 18] = [
    "model",
    "max-models",
    "max-awake-models",
    "max-awake-gb",
    "sleep-level",
    "min-awake-time",
    "model-id",
    "served-model-name",
    "hostname",
    "port",
    "uds",
    "tls-cert",
    "tls-key",
    "api-key",
    "api-key-file",
    "admin-socket",
    "access-log",
    "access-log-addresses",
];
/// Flags that have the same value for all models.
const ALIKE: [&str; 5] =
    ["accept-any-model", "json-output", "log-level", "graceful-termination-timeout", "idle-timeout"];
/// Longer than the 30 seconds for which the proxy keeps a connection that nobody uses.
const IDLE_TIMEOUT_S: u32 = 75;

/// The part that all command lines share.
#[derive(Debug, Clone)]
pub struct Common {
    /// The words of the launcher of several, without the program.
    pub words: Vec<String>,
    pub launcher: PathBuf,
    pub router: PathBuf,
    pub run_dir: PathBuf,
    /// A file of API keys, if there are any.
    pub keys: Option<PathBuf>,
    pub parent_pipe_fd: i32,
    /// The socket of the fork server of all, if there is one.
    pub fork_server: Option<PathBuf>,
    /// Models that share the machine at once.
    pub machine_share: u32,
    /// Which models are awake, if not all are.
    pub budget: Option<BudgetOptions>,
}

/// A model whose command line is known to be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Its name, and those of its adapters.
    pub names: Vec<String>,
    pub num_gpus: u32,
    words: Vec<String>,
}

impl Common {
    /// Where the server of the model with this number listens.
    pub fn socket(&self, number: usize) -> PathBuf {
        self.run_dir.join(format!("model-{number}.sock"))
    }

    /// The socket by which it is sent to sleep and woken, if there is a budget.
    pub fn admin_socket(&self, number: usize) -> PathBuf {
        self.run_dir.join(format!("model-{number}.admin"))
    }

    /// The file that tells the proxy which models there are.
    pub fn models_file(&self) -> PathBuf {
        self.run_dir.join("models.json")
    }

    /// Parses what the launcher of this model would be given.
    pub fn check(&self, spec: &ModelSpec, hardware: &Hardware) -> Result<Checked, FleetError> {
        let name = &spec.name;
        let is_common = |flag: &str| OF_SERVER.contains(&flag) || ALIKE.contains(&flag);
        if let Some((flag, _)) = spec.flags.iter().find(|(flag, _)| is_common(flag)) {
            return Err(FleetError::OfServer { name: name.clone(), flag: flag.clone() });
        }
        let own = spec.flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
        let model = [format!("--model-id={}", spec.model), format!("--served-model-name={name}")];
        let words: Vec<_> =
            words::without(&OF_SERVER, &self.words).into_iter().chain(own).chain(model).collect();
        let args = parse(&words).map_err(|reason| FleetError::Flags { name: name.clone(), reason })?;
        if self.budget.is_some() && !args.router.condition.wake_on_request {
            return Err(FleetError::NeverWoken { name: name.clone() });
        }
        let num_gpus =
            num_gpus(&args, hardware).map_err(|reason| FleetError::Plan { name: name.clone(), reason })?;
        Ok(Checked { names: names::of(name, &args), num_gpus, words })
    }

    /// The launcher of a model, on these GPUs. `is_awake`: it does not sleep from the start on.
    pub fn model(&self, number: usize, checked: &Checked, gpus: &[String], is_awake: bool) -> ProcessSpec {
        let keys = self.keys.iter().map(|path| format!("--api-key-file={}", path.display()));
        let forced = [
            format!("--uds={}", self.socket(number).display()),
            format!("--parent-pipe-fd={}", self.parent_pipe_fd),
            format!("--machine-share={}", self.machine_share),
            format!("--idle-timeout={IDLE_TIMEOUT_S}"),
            "--supervised".to_owned(),
        ];
        let rest = self.budget.iter().flat_map(|budget| self.flags_of_rest(number, budget, is_awake));
        let fork_server = self.fork_server.iter().map(|path| format!("--fork-server={}", path.display()));
        let variables = variables_of_server().map(|name| (name, None));
        let gpus = Some(gpus.join(",")).filter(|gpus| !gpus.is_empty());
        let gpus = gpus.map(|gpus| ("CUDA_VISIBLE_DEVICES".to_owned(), Some(gpus)));
        ProcessSpec {
            name: checked.names.first().cloned().unwrap_or_default(),
            program: self.launcher.clone(),
            args: checked
                .words
                .iter()
                .cloned()
                .chain(forced)
                .chain(fork_server)
                .chain(keys)
                .chain(rest)
                .collect(),
            environment: variables.chain(gpus).collect(),
            each_start: EachStart::Alike,
            readiness: Readiness::StdoutHeartbeat,
        }
    }

    /// The flags of a model that the budget wakes; a request alone does not wake it.
    fn flags_of_rest(&self, number: usize, budget: &BudgetOptions, is_awake: bool) -> Vec<String> {
        let asleep = (!is_awake).then(|| format!("--asleep-at-start={}", budget.sleep_level));
        let socket = format!("--admin-socket={}", self.admin_socket(number).display());
        let limit = budget
            .max_awake_gb
            .map(|most| format!("--max-awake-bytes={}:{}", budget.sleep_level, most.bytes()));
        [socket, "--wake-when-told".to_owned()].into_iter().chain(asleep).chain(limit).collect()
    }

    /// The proxy.
    pub fn proxy(&self, args: &Args) -> ProcessSpec {
        let router = &args.router;
        let mut words = [
            argv::render(&router.listen),
            argv::render(&router.connections),
            argv::render(&router.access_log),
            argv::render(&router.log),
        ]
        .concat();
        words.extend(self.keys.iter().map(|path| format!("--api-key-file={}", path.display())));
        let budget = self.budget.as_ref().and_then(|budget| serde_json::to_string(budget).ok());
        words.extend(budget.map(|budget| format!("--budget={budget}")));
        words.extend([
            format!("--models-file={}", self.models_file().display()),
            format!("--graceful-termination-timeout={}", args.process.graceful_termination_timeout),
            format!("--parent-pipe-fd={}", self.parent_pipe_fd),
            format!("--run-dir={}", self.run_dir.display()),
            "--listen-stdin".to_owned(),
        ]);
        ProcessSpec {
            name: "proxy".to_owned(),
            program: self.router.clone(),
            args: words,
            environment: Vec::new(),
            each_start: EachStart::Alike,
            readiness: Readiness::StdoutHeartbeat,
        }
    }
}

/// Variables that the launcher of a model does not have.
pub fn variables_of_server() -> impl Iterator<Item = String> {
    OF_SERVER.iter().map(|flag| flag.to_uppercase().replace('-', "_"))
}

/// Refuses flags that cannot mean several models at once.
pub fn check_common(args: &Args) -> Result<(), FleetError> {
    let router = &args.router;
    let of_each = "give each model its own, as in --model NAME=MODEL,FLAG=VALUE";
    let refused = [
        ("grpc-port", router.grpc_port.is_some(), "the gRPC API serves one model"),
        (
            "served-model-name",
            !router.names.served_model_name.is_empty(),
            "the name of a model stands before its `=`",
        ),
        ("nnodes", args.nodes.are_several(), "several models are on one machine"),
        ("executor", args.executor.is_ray(), "several models are on one machine"),
        ("accept-any-model", router.names.accept_any_model, "requests are for the model that they name"),
        ("lora-adapters", !router.adapters.lora_adapters.is_empty(), of_each),
        ("replica", !router.replicas.replica.is_empty(), of_each),
        ("kv-events-endpoint", router.block_events.kv_events_endpoint.is_some(), of_each),
        ("kv-events-replay-endpoint", router.block_events.kv_events_replay_endpoint.is_some(), of_each),
        ("sharded", args.shards.sharded == Some(true), "--num-shard says over how many GPUs each is split"),
    ];
    let first = refused.into_iter().find(|(_, is_given, _)| *is_given);
    first.map_or(Ok(()), |(flag, _, reason)| Err(FleetError::NotWithSeveral { flag, reason }))
}

fn parse(words: &[String]) -> Result<Args, String> {
    let program = std::iter::once("launcher".to_owned());
    let parsed = without_variables_of_server().try_get_matches_from(program.chain(words.iter().cloned()));
    let args = parsed.and_then(|matches| Args::from_arg_matches(&matches));
    args.map_err(|error| error.to_string().lines().next().unwrap_or_default().replacen("error: ", "", 1))
}

/// A command without the variables of the server: the launcher of a model does not see them.
fn without_variables_of_server() -> Command {
    let is_of_server = |arg: &Arg| arg.get_long().is_some_and(|flag| OF_SERVER.contains(&flag));
    Args::command().mut_args(|arg| if is_of_server(&arg) { arg.env(None::<&'static str>) } else { arg })
}

/// Says the models to the proxy: whole or not at all.
pub fn write_models(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use penstock_router::engine::condition::AwakeLimit;
    use penstock_router::proxy::budget::Gigabytes;

    use super::*;

    fn common(line: &str) -> Common {
        Common {
            words: line.split_whitespace().map(str::to_owned).collect(),
            launcher: "/venv/bin/launcher".into(),
            router: "/venv/bin/penstock-router".into(),
            run_dir: "/tmp/penstock-x".into(),
            keys: Some("/tmp/penstock-x/api-keys".into()),
            parent_pipe_fd: 7,
            fork_server: None,
            machine_share: 2,
            budget: None,
        }
    }

    fn checked(line: &str, model: &str, num_gpus: u32) -> Result<Checked, FleetError> {
        let hardware = Hardware { num_gpus, num_cpus: 8 };
        common(line).check(&model.parse().expect("a model"), &hardware)
    }

    #[test]
    fn a_model_gets_the_common_flags_its_own_and_a_socket() {
        let line =
            "--model a=/m --model=b=/n --port 80 --api-key k --tls-cert=c --num-shard 2 --dtype float32";
        let checked = checked(line, "a=/m,num_shard=3,lora_adapters=s=/s", 8).expect("valid");
        assert_eq!((checked.num_gpus, &checked.names[..]), (3, &["a".to_owned(), "s".to_owned()][..]));
        let gpus = ["2", "3", "4"].map(str::to_owned);
        let spec = common(line).model(1, &checked, &gpus, true);
        let words = spec.args.join(" ");
        assert!(
            words.starts_with("--num-shard 2 --dtype float32 --num-shard=3 --lora-adapters=s=/s "),
            "{words}"
        );
        let program = std::iter::once("launcher".to_owned());
        let args = Args::try_parse_from(program.chain(spec.args.iter().cloned())).expect("it starts");
        assert_eq!(args.model.model_id.as_deref(), Some("/m"));
        assert_eq!(args.router.names.served_model_name, ["a"]);
        assert_eq!(args.router.listen.uds, Some("/tmp/penstock-x/model-1.sock".into()));
        assert_eq!(args.shards.num_shard, Some(3));
        assert!(args.process.supervised && args.router.api_key.is_empty());
        let variable = |name: &str| spec.environment.iter().find(|it| it.0 == name).map(|it| it.1.clone());
        assert_eq!(variable("CUDA_VISIBLE_DEVICES"), Some(Some("2,3,4".to_owned())));
        assert_eq!((variable("API_KEY"), variable("PORT")), (Some(None), Some(None)));
    }

    #[test]
    fn a_model_under_a_budget_waits_to_be_told_on_a_socket_of_its_own() {
        let budget = BudgetOptions {
            max_awake_models: Some(1),
            max_awake_gb: Some(Gigabytes::of_bytes(7_500_000_000)),
            sleep_level: 2,
            min_awake_time: 5,
        };
        let line = "--max-awake-models 1 --max-awake-gb 7.5 --sleep-level=2";
        let common = Common { budget: Some(budget.clone()), ..common(line) };
        let hardware = Hardware { num_gpus: 0, num_cpus: 8 };
        let checked = common.check(&"a=/m".parse().expect("a model"), &hardware).expect("valid");
        for (is_awake, level) in [(true, None), (false, Some(2))] {
            let spec = common.model(3, &checked, &[], is_awake);
            let program = std::iter::once("launcher".to_owned());
            let args = Args::try_parse_from(program.chain(spec.args)).expect("it starts");
            assert_eq!(args.router.condition.asleep_at_start, level);
            assert!(args.router.condition.wake_when_told && !args.models.budget.is_given());
            let limit = args.router.condition.max_awake_bytes;
            assert_eq!(limit, Some(AwakeLimit { sleep_level: 2, bytes: 7_500_000_000 }));
            assert_eq!(args.router.replicas.admin_socket, Some("/tmp/penstock-x/model-3.admin".into()));
        }
        let refused = common.check(&"a=/m,wake_on_request=false".parse().expect("a model"), &hardware);
        assert_eq!(refused, Err(FleetError::NeverWoken { name: "a".to_owned() }));
        let args = Args::try_parse_from(["launcher", "--model=a=/m"]).expect("flags");
        let words = common.proxy(&args).args;
        let word = words.iter().find_map(|word| word.strip_prefix("--budget="));
        assert_eq!(word.expect("a budget").parse(), Ok(budget));
    }

    #[test]
    fn a_model_takes_one_gpu_unless_its_flags_say_more() {
        let num_gpus = |line, model| checked(line, model, 8).map(|checked| checked.num_gpus);
        assert_eq!(num_gpus("", "a=/m"), Ok(1));
        assert_eq!(num_gpus("--num-replicas 2", "a=/m,num_shard=2"), Ok(4));
        assert_eq!(num_gpus("--device cpu", "a=/m"), Ok(0));
        assert_eq!(checked("", "a=/m", 0).map(|checked| checked.num_gpus), Ok(0));
    }

    #[test]
    fn flags_that_a_model_cannot_have_are_named() {
        for (model, reason) in [
            ("a=/m,port=1", "`port` is a flag of the whole server"),
            ("a=/m,log_level=warn", "`log-level` is a flag of the whole server"),
            ("a=/m,nonsense=1", "unexpected argument '--nonsense'"),
            ("a=/m,dtype=int3", "invalid value 'int3' for '--dtype"),
            ("a=/m,max_input_tokens=9,max_total_tokens=9", "--max-input-tokens 9 must be less"),
            ("a=/m,device=cuda", "no GPU is visible"),
        ] {
            let error = checked("", model, 0).expect_err("refused").to_string();
            assert!(error.starts_with("--model a: ") && error.contains(reason), "{model}: {error}");
        }
    }

    #[test]
    fn flags_that_several_models_cannot_share_are_named() {
        for flags in [
            "--grpc-port 1",
            "--served-model-name x",
            "--accept-any-model",
            "--nnodes 2",
            "--lora-adapters a=/a",
            "--replica unix:/a",
            "--kv-events-endpoint tcp://127.0.0.1:1",
            "--sharded true",
        ] {
            let line = format!("launcher --model a=/m {flags}");
            let args = Args::try_parse_from(line.split_whitespace()).expect("flags");
            let error = check_common(&args).expect_err("refused").to_string();
            assert!(error.starts_with(flags.split(' ').next().expect("a flag")), "{error}");
        }
    }

    #[test]
    fn the_proxy_has_the_port_and_the_files() {
        let args =
            Args::try_parse_from(["launcher", "--model=a=/m", "--port=80", "--access-log=json", "-g", "5"]);
        let spec = common("").proxy(&args.expect("flags"));
        for word in [
            "--port=80",
            "--access-log=json",
            "--models-file=/tmp/penstock-x/models.json",
            "--api-key-file=/tmp/penstock-x/api-keys",
            "--graceful-termination-timeout=5",
            "--listen-stdin",
        ] {
            assert!(spec.args.contains(&word.to_owned()), "{word} is not in {:?}", spec.args);
        }
    }
}
