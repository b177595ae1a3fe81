//! Pure: flags and the machine's devices → the processes to start. Starts none of them.

use std::path::{Path, PathBuf};

use penstock_router::config::RouterConfig;
use thiserror::Error;

use crate::args::{Args, Device, name_of};
use crate::argv;
use crate::hardware::Hardware;
use crate::resolve::Resolved;
use crate::supervisor::ProcessId;

/// The name of the model that is served if `--model-id` is not set.
pub const DEMO_MODEL: &str = "penstock-demo";

/// Token positions per KV block if the size of the cache is given in tokens; else the shards choose the block size.
const BLOCK_SIZE: u32 = 16;

/// Longest path of a Unix socket on Linux, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// Why the flags contradict each other or this machine.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("--device cuda was asked for, but no GPU is visible; check the driver and CUDA_VISIBLE_DEVICES")]
    NoGpu,
    #[error("--num-shard {asked} needs {asked} GPUs, but {visible} are visible; lower --num-shard")]
    TooFewGpus { asked: u32, visible: u32 },
    #[error("--sharded true needs at least two shards, but {found} would start; set --num-shard")]
    NothingToShard { found: u32 },
    #[error("--sharded false contradicts --num-shard {asked}; drop one of the two")]
    ShardedOff { asked: u32 },
    #[error("the socket path {0} is longer than 107 bytes; set TMPDIR to a shorter folder")]
    SocketPathTooLong(PathBuf),
}

/// Paths and the pipe that a plan needs; `main` finds or creates them.
#[derive(Debug, Clone)]
pub struct Places {
    /// The Python interpreter that has the shard's package.
    pub python: PathBuf,
    /// The router's binary.
    pub router: PathBuf,
    /// The private folder of this run.
    pub run_dir: PathBuf,
    /// The folder and the tokenizer of the model.
    pub model: Resolved,
    /// Reading end of the pipe that closes when the launcher ends.
    pub parent_pipe_fd: i32,
}

/// The processes of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// One per rank, in order.
    pub shards: Vec<ProcessSpec>,
    /// Started once every shard is ready.
    pub router: ProcessSpec,
    /// The private folder of this run.
    pub run_dir: PathBuf,
    /// The shards' devices, as text for operators: "2 GPUs".
    pub devices: String,
}

/// What differs between the starts of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Life {
    /// How often the process was started before.
    pub number: u32,
    /// Size of the KV cache before a restart; `None` for the first start. The cache must not become smaller, because
    /// requests were accepted for that size.
    pub cache: Option<CacheSize>,
}

/// The size of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// Number of blocks.
    pub num_blocks: u32,
    /// Token positions per block.
    pub block_size: u32,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Name in log lines: "shard 0".
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// How the launcher finds out that it is ready.
    pub readiness: Readiness,
}

/// How the launcher finds out that a process is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The gRPC health service on this Unix socket returns SERVING.
    GrpcHealth(PathBuf),
    /// The process prints the address it listens on, and then lines that say that it is alive.
    SaysAlive,
}

impl Plan {
    /// Decides what to start.
    pub fn new(args: &Args, hardware: &Hardware, places: &Places) -> Result<Self, PlanError> {
        let device = choose_device(args, hardware)?;
        let num_shards = choose_num_shards(args, hardware, device)?;
        let sockets = socket_paths(&places.run_dir, num_shards)?;
        let group =
            Group { args, places, device, num_shards, threads: threads_per_shard(hardware, num_shards) };
        let shards = sockets.iter().enumerate().map(|(rank, socket)| group.shard(rank, socket)).collect();
        Ok(Self {
            shards,
            router: router(args, places, sockets),
            run_dir: places.run_dir.clone(),
            devices: describe(device, num_shards),
        })
    }

    /// The process to start, with the flags that differ between starts.
    pub fn spec(&self, id: ProcessId, life: Life) -> ProcessSpec {
        let (spec, flags) = match id {
            ProcessId::Shard(rank) => (&self.shards[rank], self.shard_flags(life)),
            ProcessId::Router => (&self.router, vec![format!("--router-restarts={}", life.number)]),
        };
        let args = spec.args.iter().cloned().chain(flags).collect();
        ProcessSpec { args, ..spec.clone() }
    }

    fn shard_flags(&self, life: Life) -> Vec<String> {
        let mut flags = vec![format!("--rendezvous-dir={}", self.rendezvous_dir(life).display())];
        if let Some(CacheSize { num_blocks, block_size }) = life.cache {
            flags.extend([format!("--num-blocks={num_blocks}"), format!("--block-size={block_size}")]);
        }
        flags
    }

    /// Folder in which the ranks of a group find each other. Each start has its own, because files of an earlier group
    /// would mislead the new one.
    pub fn rendezvous_dir(&self, life: Life) -> PathBuf {
        self.run_dir.join(format!("group-{}", life.number))
    }
}

fn choose_device(args: &Args, hardware: &Hardware) -> Result<Device, PlanError> {
    match (args.shards.device, hardware.num_gpus) {
        (Device::Cuda, 0) => Err(PlanError::NoGpu),
        (Device::Cpu, _) | (Device::Auto, 0) => Ok(Device::Cpu),
        (Device::Cuda | Device::Auto, _) => Ok(Device::Cuda),
    }
}

/// Flags that contradict each other on every machine.
pub fn contradiction(args: &Args) -> Option<PlanError> {
    match (args.shards.sharded, args.shards.num_shard) {
        (Some(false), Some(asked)) if asked > 1 => Some(PlanError::ShardedOff { asked }),
        (Some(true), Some(1)) => Some(PlanError::NothingToShard { found: 1 }),
        _ => None,
    }
}

fn choose_num_shards(args: &Args, hardware: &Hardware, device: Device) -> Result<u32, PlanError> {
    if let Some(error) = contradiction(args) {
        return Err(error);
    }
    let visible = if device == Device::Cuda { hardware.num_gpus } else { 1 };
    match (args.shards.sharded, args.shards.num_shard) {
        (Some(false), _) => Ok(1),
        (Some(true), None) if visible < 2 => Err(PlanError::NothingToShard { found: visible }),
        (_, Some(asked)) if device == Device::Cuda && asked > visible => {
            Err(PlanError::TooFewGpus { asked, visible })
        }
        (_, Some(asked)) => Ok(asked),
        // The demo model is so small that splitting it makes it slower.
        (None, None) if args.model.model_id.is_none() => Ok(1),
        (_, None) => Ok(visible),
    }
}

fn socket_paths(run_dir: &Path, num_shards: u32) -> Result<Vec<PathBuf>, PlanError> {
    let paths: Vec<PathBuf> =
        (0..num_shards).map(|rank| run_dir.join(format!("shard-{rank}.sock"))).collect();
    match paths.iter().find(|path| path.as_os_str().len() > MAX_SOCKET_PATH) {
        Some(path) => Err(PlanError::SocketPathTooLong(path.clone())),
        None => Ok(paths),
    }
}

/// Threads per shard: all cores, none reserved for the router. The router needs a few hundredths of a core while a step
/// runs, and most work of a step (matrix products and attention) is split into small pieces, so that the other threads
/// hardly wait for one that loses its core for a moment.
fn threads_per_shard(hardware: &Hardware, num_shards: u32) -> u32 {
    (hardware.num_cpus / num_shards).max(1)
}

fn describe(device: Device, num_shards: u32) -> String {
    match (device, num_shards) {
        (Device::Cuda, 1) => "1 GPU".to_owned(),
        (Device::Cuda, _) => format!("{num_shards} GPUs"),
        (_, 1) => "the CPU".to_owned(),
        (_, _) => format!("the CPU in {num_shards} shards"),
    }
}

fn router(args: &Args, places: &Places, shard_sockets: Vec<PathBuf>) -> ProcessSpec {
    let config = RouterConfig {
        model_id: args.model.model_id.clone().unwrap_or_else(|| DEMO_MODEL.to_owned()),
        model_path: places.model.folder.clone(),
        tokenizer_path: Some(places.model.tokenizer.clone()),
        shard_sockets,
        supervised: true,
        router_restarts: 0,
        options: args.router.clone(),
    };
    let mut flags = argv::render(&config);
    flags.push(format!("--graceful-termination-timeout={}", args.process.graceful_termination_timeout));
    flags.push(format!("--parent-pipe-fd={}", places.parent_pipe_fd));
    flags.push("--listen-stdin".to_owned());
    flags.push(format!("--run-dir={}", places.run_dir.display()));
    let readiness = Readiness::SaysAlive;
    ProcessSpec { name: "router".to_owned(), program: places.router.clone(), args: flags, readiness }
}

/// Settings that the shards of one tensor-parallel group share.
struct Group<'a> {
    args: &'a Args,
    places: &'a Places,
    device: Device,
    num_shards: u32,
    threads: u32,
}

impl Group<'_> {
    fn shard(&self, rank: usize, socket: &Path) -> ProcessSpec {
        ProcessSpec {
            name: format!("shard {rank}"),
            program: self.places.python.clone(),
            // -P: a file named torch.py in the current folder is not imported.
            args: ["-P", "-m", "penstock_server"]
                .map(str::to_owned)
                .into_iter()
                .chain(self.flags(rank, socket))
                .collect(),
            readiness: Readiness::GrpcHealth(socket.to_owned()),
        }
    }

    fn flags(&self, rank: usize, socket: &Path) -> Vec<String> {
        let (model, limits, shards) = (&self.args.model, &self.args.router.limits, &self.args.shards);
        let device = if self.device == Device::Cuda { "cuda" } else { "cpu" };
        let given = [
            ("model-path", Some(self.places.model.folder.display().to_string())),
            ("tokenizer-path", Some(self.places.model.tokenizer.display().to_string())),
            ("load-format", Some(name_of(&model.load_format))),
            ("model-impl", Some(name_of(&model.model_impl))),
            ("generation-config", Some(name_of(&model.generation_config))),
            ("uds-path", Some(socket.display().to_string())),
            ("rank", Some(rank.to_string())),
            ("world-size", Some(self.num_shards.to_string())),
            ("dtype", model.dtype.as_ref().map(name_of)),
            ("kv-cache-dtype", Some(name_of(&model.kv_cache_dtype))),
            ("attention-backend", Some(name_of(&shards.attention_backend))),
            ("device", Some(device.to_owned())),
            ("max-sequence-len", limits.max_total_tokens.map(|tokens| tokens.to_string())),
            ("max-step-tokens", limits.max_batch_prefill_tokens.map(|tokens| tokens.to_string())),
            ("num-slots", shards.max_batch_size.map(|slots| slots.to_string())),
            (
                "num-blocks",
                limits.max_batch_total_tokens.map(|tokens| tokens.div_ceil(BLOCK_SIZE).to_string()),
            ),
            ("block-size", limits.max_batch_total_tokens.map(|_| BLOCK_SIZE.to_string())),
            ("cuda-graphs", shards.cuda_graphs.as_deref().map(sizes)),
            ("cuda-memory-fraction", shards.cuda_memory_fraction.map(|fraction| fraction.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("parent-pipe-fd", Some(self.places.parent_pipe_fd.to_string())),
        ];
        let mut flags: Vec<String> =
            given.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect();
        let switches = [
            ("--json-output", self.args.router.json_output),
            ("--batch-invariant", shards.batch_invariant),
            ("--poison-cache", shards.poison_cache),
        ];
        flags.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name.to_owned()));
        flags.extend(self.args.process.fault.iter().map(|fault| format!("--fault={fault}")));
        flags
    }
}

/// The value of a shard's `--cuda-graphs`: sizes without zeros, separated by commas, or `0` if none is left.
fn sizes(rows: &[u32]) -> String {
    let captured: Vec<String> = rows.iter().filter(|size| **size > 0).map(ToString::to_string).collect();
    if captured.is_empty() { "0".to_owned() } else { captured.join(",") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn places() -> Places {
        Places {
            python: "/venv/bin/python".into(),
            router: "/venv/bin/penstock-router".into(),
            run_dir: "/tmp/penstock-x".into(),
            model: Resolved { folder: "/models/m".into(), tokenizer: "/models/m/tokenizer.json".into() },
            parent_pipe_fd: 7,
        }
    }

    fn plan(num_gpus: u32, flags: &str) -> Result<Plan, PlanError> {
        let args =
            Args::try_parse_from(["launcher"].into_iter().chain(flags.split_whitespace())).expect("flags");
        Plan::new(&args, &Hardware { num_gpus, num_cpus: 8 }, &places())
    }

    fn num_shards(num_gpus: u32, flags: &str) -> Result<usize, PlanError> {
        plan(num_gpus, flags).map(|plan| plan.shards.len())
    }

    #[test]
    fn a_named_model_takes_every_gpu_and_the_demo_model_takes_one() {
        assert_eq!(num_shards(4, "--model-id m"), Ok(4));
        assert_eq!(num_shards(4, "--model-id m --sharded false"), Ok(1));
        assert_eq!(num_shards(4, ""), Ok(1));
        assert_eq!(num_shards(0, "--model-id m"), Ok(1));
    }

    #[test]
    fn contradictory_flags_are_refused() {
        assert_eq!(num_shards(0, "--device cuda"), Err(PlanError::NoGpu));
        assert_eq!(num_shards(1, "--num-shard 2"), Err(PlanError::TooFewGpus { asked: 2, visible: 1 }));
        assert_eq!(num_shards(0, "--sharded true"), Err(PlanError::NothingToShard { found: 1 }));
        assert_eq!(num_shards(0, "--sharded false --num-shard 2"), Err(PlanError::ShardedOff { asked: 2 }));
    }

    #[test]
    fn ranks_of_a_group_differ_only_in_rank_and_socket() {
        let plan = plan(0, "--num-shard 2 --max-batch-total-tokens 100").expect("plan");
        let [first, second] = &plan.shards[..] else { panic!("two shards") };
        let differing = first.args.iter().zip(&second.args).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 2);
        assert!(first.args.contains(&"--world-size=2".to_owned()));
        assert!(first.args.contains(&"--num-blocks=7".to_owned()));
        assert!(first.args.contains(&"--threads=4".to_owned()));
        assert!(!first.args.iter().any(|arg| arg.starts_with("--dtype")));
    }

    #[test]
    fn flags_of_gpus_are_passed_on_only_if_they_were_given() {
        let of_gpu = |flags: &str| -> Vec<String> {
            let plan = plan(0, flags).expect("plan");
            plan.shards[0].args.iter().filter(|arg| arg.starts_with("--cuda")).cloned().collect()
        };
        assert!(of_gpu("").is_empty());
        assert_eq!(of_gpu("--cuda-graphs 1,2,8"), ["--cuda-graphs=1,2,8"]);
        assert_eq!(of_gpu("--cuda-graphs 0"), ["--cuda-graphs=0"]);
        assert_eq!(of_gpu("--cuda-memory-fraction 0.5"), ["--cuda-memory-fraction=0.5"]);
        for wrong in ["--cuda-memory-fraction 0", "--cuda-memory-fraction 1.5", "--cuda-graphs x"] {
            assert!(Args::try_parse_from(["launcher"].into_iter().chain(wrong.split_whitespace())).is_err());
        }
    }

    #[test]
    fn shards_get_the_type_of_their_cache_and_the_attention_backend() {
        let shard = |flags: &str| plan(0, flags).expect("plan").shards[0].args.join(" ");
        assert!(shard("").contains("--kv-cache-dtype=auto --attention-backend=auto"));
        let chosen = "--kv-cache-dtype=fp8_e4m3fn --attention-backend=flashinfer";
        assert!(shard("--kv-cache-dtype fp8_e4m3fn --attention-backend flashinfer").contains(chosen));
        let refused =
            Args::try_parse_from(["launcher", "--kv-cache-dtype", "fp8_e5m2"]).expect_err("refused");
        assert!(refused.to_string().contains("fp8_e5m2"));
    }

    #[test]
    fn the_router_gets_the_sockets_in_order_of_rank() {
        let plan = plan(0, "--num-shard 2").expect("plan");
        let sockets: Vec<_> =
            plan.router.args.iter().filter(|arg| arg.starts_with("--shard-sockets")).collect();
        assert_eq!(
            sockets,
            ["--shard-sockets=/tmp/penstock-x/shard-0.sock", "--shard-sockets=/tmp/penstock-x/shard-1.sock"]
        );
        assert!(plan.router.args.contains(&"--model-id=penstock-demo".to_owned()));
    }

    #[test]
    fn a_restarted_group_has_a_new_rendezvous_folder_and_keeps_the_size_of_its_cache() {
        let plan = plan(0, "--num-shard 2").expect("plan");
        let first = plan.spec(ProcessId::Shard(1), Life::default());
        assert_eq!(first.args.last().map(String::as_str), Some("--rendezvous-dir=/tmp/penstock-x/group-0"));
        let cache = Some(CacheSize { num_blocks: 70, block_size: 16 });
        let second = plan.spec(ProcessId::Shard(1), Life { number: 1, cache });
        let added = &second.args[first.args.len() - 1..];
        assert_eq!(added, ["--rendezvous-dir=/tmp/penstock-x/group-1", "--num-blocks=70", "--block-size=16"]);
    }

    #[test]
    fn socket_paths_that_are_too_long_for_linux_are_refused() {
        let places = Places { run_dir: PathBuf::from("/tmp").join("x".repeat(100)), ..places() };
        let args = Args::try_parse_from(["launcher"]).expect("flags");
        let error = Plan::new(&args, &Hardware { num_gpus: 0, num_cpus: 1 }, &places).expect_err("too long");
        assert!(matches!(error, PlanError::SocketPathTooLong(_)));
    }
}
