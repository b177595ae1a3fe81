//! Pure: flags and the machine's devices → the processes to start. Starts none of them.

mod addresses;
mod contradiction;
mod shards;
mod spec;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_nodes;

use std::ops::Range;
use std::path::PathBuf;

pub use addresses::Addresses;
pub use contradiction::{PlanError, contradiction};
use penstock_router::config::{RouterConfig, RouterOptions};
use penstock_router::engine::shard_address::ShardAddress;
use shards::Group;
pub use spec::{CacheSize, EachStart, Places, ProcessSpec, Readiness, StartOptions};

use crate::args::{Args, Device};
use crate::argv;
use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::supervisor::ProcessId;

/// The name of the model that is served if `--model-id` is not set.
pub const DEMO_MODEL: &str = "penstock-demo";

/// Longest path of a Unix socket on Linux, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// The processes of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The shards of each replica, one per rank of this machine, in order; none for replicas of other machines.
    pub groups: Vec<Vec<ProcessSpec>>,
    /// Started once every shard of a replica is ready.
    pub router: ProcessSpec,
    /// The first rank of each replica that has shards on this machine.
    first_rank: usize,
    /// Ranks of each replica, on all machines.
    num_ranks: usize,
    /// The private folder of this run.
    pub run_dir: PathBuf,
    /// The shards' devices, as text for operators: "2 GPUs".
    pub devices: String,
}

impl Plan {
    /// Decides what to start.
    pub fn new(args: &Args, hardware: &Hardware, places: &Places) -> Result<Self, PlanError> {
        if !args.nodes.has_shards() {
            return Self::of_router(args, places);
        }
        let device = choose_device(args, hardware)?;
        let layout = args.layout();
        let num_shards = choose_num_shards(args, hardware, device)?;
        let node = args.nodes.node_rank - args.nodes.first_with_shards();
        let first_rank = layout.place_in_replica(node) * num_shards;
        let num_ranks = layout.nodes_of_replica() * num_shards;
        let expert_parallel = choose_expert_parallel(args, num_ranks)?;
        // Only one stage of a replica computes at a time.
        let at_a_time = layout.replicas_of_node() * (num_shards / stages_here(args));
        let threads = threads_per_shard(hardware, at_a_time * args.process.machine_share);
        let first = layout.first_replica(node);
        let here = first..first + layout.replicas_of_node();
        let groups: Vec<_> = here
            .map(|number| Group {
                args,
                places,
                device,
                layout,
                number,
                place: number - first,
                num_shards,
                first_rank,
                num_ranks,
                expert_parallel,
                threads,
            })
            .collect();
        let sockets: Vec<_> = groups.iter().flat_map(Group::sockets).collect();
        check_length(&sockets)?;
        let num_here = layout.replicas_of_node() * num_shards;
        let here = sockets.into_iter().map(ShardAddress::Unix);
        let elsewhere = recorded(places, num_here..layout.num_nodes * num_here);
        let mut shards = vec![Vec::new(); layout.num_replicas as usize];
        groups.iter().for_each(|group| shards[group.number as usize] = group.shards());
        Ok(Self {
            groups: shards,
            router: router(args, places, here.chain(elsewhere).collect()),
            first_rank: first_rank as usize,
            num_ranks: num_ranks as usize,
            run_dir: places.run_dir.clone(),
            devices: describe(device, layout, num_shards),
        })
    }

    /// The shards are on other machines.
    fn of_router(args: &Args, places: &Places) -> Result<Self, PlanError> {
        if let Some(error) = contradiction(args) {
            return Err(error);
        }
        let layout = args.layout();
        let num_ranks = layout.nodes_of_replica() * shards_asked(args);
        choose_expert_parallel(args, num_ranks)?;
        let num_shards = layout.num_replicas * num_ranks;
        Ok(Self {
            groups: vec![Vec::new(); layout.num_replicas as usize],
            router: router(args, places, recorded(places, 0..num_shards).collect()),
            first_rank: 0,
            num_ranks: num_ranks as usize,
            run_dir: places.run_dir.clone(),
            devices: format!("the other nodes (shards: {num_shards})"),
        })
    }

    /// Several models: a group of one process for each, empty ones for others to come, and the proxy.
    pub fn of_models(groups: Vec<Vec<ProcessSpec>>, proxy: ProcessSpec, run_dir: PathBuf) -> Self {
        let devices = format!("{} models", groups.len());
        Self { groups, router: proxy, first_rank: 0, num_ranks: 1, run_dir, devices }
    }

    /// Replicas, and shards of each, on all machines.
    pub fn size(&self) -> (usize, usize) {
        (self.groups.len(), self.num_ranks)
    }

    /// The process to start, with the flags that differ between starts.
    pub fn spec(&self, id: ProcessId, options: StartOptions) -> ProcessSpec {
        let spec = match id {
            ProcessId::Shard { group, rank } => &self.groups[group][rank - self.first_rank],
            ProcessId::Router => &self.router,
        };
        let flags = match spec.each_start {
            EachStart::Group => self.shard_flags(id, options),
            EachStart::Restarts => vec![format!("--router-restarts={}", options.num_restarts)],
            EachStart::Alike => Vec::new(),
        };
        let args = spec.args.iter().cloned().chain(flags).collect();
        ProcessSpec { args, ..spec.clone() }
    }

    fn shard_flags(&self, id: ProcessId, options: StartOptions) -> Vec<String> {
        let mut flags = vec![format!("--rendezvous-dir={}", self.rendezvous_dir(id, options).display())];
        if let Some(CacheSize { num_blocks, block_size }) = options.cache {
            flags.extend([format!("--num-blocks={num_blocks}"), format!("--block-size={block_size}")]);
        }
        flags
    }

    /// Folder in which the ranks of a group find each other. Each start has its own, because files of an earlier group
    /// would mislead the new one.
    pub fn rendezvous_dir(&self, id: ProcessId, options: StartOptions) -> PathBuf {
        let group = match id {
            ProcessId::Shard { group, .. } => group,
            ProcessId::Router => 0,
        };
        self.run_dir.join(format!("group-{group}-{}", options.num_restarts))
    }
}

/// GPUs that a model takes that is one of several: as many as its flags say, else one for each replica.
pub fn num_gpus(args: &Args, hardware: &Hardware) -> Result<u32, PlanError> {
    if let Some(error) = contradiction(args) {
        return Err(error);
    }
    let is_cuda = choose_device(args, hardware)? == Device::Cuda;
    Ok(if is_cuda { args.shards.num_replicas * shards_asked(args) } else { 0 })
}

fn choose_device(args: &Args, hardware: &Hardware) -> Result<Device, PlanError> {
    match (args.shards.device, hardware.num_gpus) {
        (Device::Cuda, 0) => Err(PlanError::NoGpu),
        (Device::Cpu, _) | (Device::Auto, 0) => Ok(Device::Cpu),
        (Device::Cuda | Device::Auto, _) => Ok(Device::Cuda),
    }
}

/// How many shards each replica has on this machine, or on each other one if this has none.
pub fn shards_here(args: &Args, hardware: &Hardware) -> Result<u32, PlanError> {
    if !args.nodes.has_shards() {
        return Ok(shards_asked(args));
    }
    choose_num_shards(args, hardware, choose_device(args, hardware)?)
}

/// Stages of a replica of which a machine has shards: several whole ones, or a part of one.
pub fn stages_here(args: &Args) -> u32 {
    (args.shards.pipeline_parallel_size / args.layout().nodes_of_replica()).max(1)
}

/// Shards of each replica on a machine, where devices do not decide.
fn shards_asked(args: &Args) -> u32 {
    args.shards.num_shard.unwrap_or(1) * stages_here(args)
}

fn choose_num_shards(args: &Args, hardware: &Hardware, device: Device) -> Result<u32, PlanError> {
    if let Some(error) = contradiction(args) {
        return Err(error);
    }
    let (replicas, stages) = (args.layout().replicas_of_node(), stages_here(args));
    let visible = if device == Device::Cuda { hardware.num_gpus } else { replicas * stages };
    // Each stage of each replica has as many.
    let visible = visible / replicas / stages;
    if visible == 0 {
        return Err(too_few(args, hardware, 1));
    }
    let of_stage = match (args.shards.sharded, args.shards.num_shard) {
        (Some(false), _) => 1,
        (Some(true), None) if visible * stages < 2 => {
            return Err(PlanError::NothingToShard { found: visible });
        }
        (_, Some(asked)) if device == Device::Cuda && asked > visible => {
            return Err(too_few(args, hardware, asked));
        }
        (_, Some(asked)) => asked,
        // The demo model is so small that splitting it makes it slower.
        (None, None) if args.model.model_id.is_none() => 1,
        (_, None) => visible,
    };
    Ok(of_stage * stages)
}

/// Whether shards have whole experts; `None`: they decide.
fn choose_expert_parallel(args: &Args, num_ranks: u32) -> Result<Option<bool>, PlanError> {
    let ranks = num_ranks / args.shards.pipeline_parallel_size;
    match args.shards.ep_size {
        None => Ok(args.shards.expert_parallel),
        Some(1) => Ok(Some(false)),
        Some(asked) if asked == ranks => Ok(Some(true)),
        Some(asked) => Err(PlanError::ExpertGroups { asked, ranks }),
    }
}

/// `shards`: of each stage.
fn too_few(args: &Args, hardware: &Hardware, shards: u32) -> PlanError {
    match (args.layout().replicas_of_node(), stages_here(args), hardware.num_gpus) {
        (1, 1, visible) => PlanError::TooFewGpus { asked: shards, visible },
        (1, stages, visible) => PlanError::TooFewGpusForStages { stages, shards, visible },
        (replicas, stages, visible) => {
            PlanError::TooFewGpusForReplicas { replicas, shards: shards * stages, visible }
        }
    }
}

fn check_length(sockets: &[PathBuf]) -> Result<(), PlanError> {
    match sockets.iter().find(|path| path.as_os_str().len() > MAX_SOCKET_PATH) {
        Some(path) => Err(PlanError::SocketPathTooLong(path.clone())),
        None => Ok(()),
    }
}

/// Threads per shard: all cores, none reserved for the router. The router needs a few hundredths of a core while a step
/// runs, and most work of a step (matrix products and attention) is split into small pieces, so that the other threads
/// hardly wait for one that loses its core for a moment.
fn threads_per_shard(hardware: &Hardware, num_shards: u32) -> u32 {
    (hardware.num_cpus / num_shards).max(1)
}

/// `num_shards`: of each replica on this machine.
fn describe(device: Device, layout: Layout, num_shards: u32) -> String {
    let of_one = match (device, num_shards) {
        (Device::Cuda, 1) => "1 GPU".to_owned(),
        (Device::Cuda, _) => format!("{num_shards} GPUs"),
        (_, 1) => "the CPU".to_owned(),
        (_, _) => format!("the CPU in {num_shards} shards"),
    };
    let of_replica = match layout.nodes_of_replica() {
        1 => of_one,
        num_nodes => format!("{of_one} of each of {num_nodes} nodes"),
    };
    match layout {
        Layout { num_replicas: 1, .. } => of_replica,
        Layout { num_replicas, num_nodes: 1 } => format!("{of_replica}, {num_replicas} replicas"),
        Layout { num_replicas, num_nodes } => {
            format!("{of_replica}, {num_replicas} replicas on {num_nodes} nodes")
        }
    }
}

/// The settings with the folder of each adapter.
fn with_folders(options: &RouterOptions, folders: &[PathBuf]) -> RouterOptions {
    let mut options = options.clone();
    for (adapter, folder) in options.adapters.lora_adapters.iter_mut().zip(folders) {
        adapter.source = folder.display().to_string();
    }
    options
}

/// Where the router finds these shards, which are on other machines.
fn recorded(places: &Places, shards: Range<u32>) -> impl Iterator<Item = ShardAddress> {
    let addresses = Addresses::new(&places.run_dir);
    shards.map(move |shard| ShardAddress::Recorded(addresses.file(shard as usize)))
}

/// The router of these shards.
fn router(args: &Args, places: &Places, shard_sockets: Vec<ShardAddress>) -> ProcessSpec {
    let config = RouterConfig {
        model_id: args.model.model_id.clone().unwrap_or_else(|| DEMO_MODEL.to_owned()),
        model_path: places.model.folder.clone(),
        tokenizer_path: Some(places.model.tokenizer.clone()),
        tokenizer_folder: places.model.tokenizer_folder.clone(),
        shard_sockets,
        num_replicas: args.shards.num_replicas,
        supervised: true,
        router_restarts: 0,
        adapter_record: Some(places.run_dir.join("adapters.json")),
        replica_record: Some(places.run_dir.join("replicas.json")),
        condition_record: Some(places.run_dir.join("condition.json")),
        adapter_python: args.router.adapters.allow_lora_downloads.then(|| places.python.clone()),
        adapter_cache: args.model.hub.huggingface_hub_cache.clone(),
        options: with_folders(&args.router, &places.model.adapters),
    };
    let mut flags = argv::render(&config);
    flags.push(format!("--graceful-termination-timeout={}", args.process.graceful_termination_timeout));
    flags.push(format!("--parent-pipe-fd={}", places.parent_pipe_fd));
    flags.push("--listen-stdin".to_owned());
    flags.push(format!("--run-dir={}", places.run_dir.display()));
    ProcessSpec {
        name: "router".to_owned(),
        program: places.router.clone(),
        args: flags,
        environment: Vec::new(),
        each_start: EachStart::Restarts,
        readiness: Readiness::StdoutHeartbeat,
    }
}
