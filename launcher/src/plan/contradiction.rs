//! Flags that contradict each other or this machine.

use std::path::PathBuf;

use penstock_router::engine::pace_options::Preference;
use penstock_router::engine::replica_address::ReplicaAddress;
use penstock_router::engine::speculation::Speculation;
use thiserror::Error;

use crate::args::{Args, Role};
use crate::layout::Layout;

/// Why the flags contradict each other or this machine.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("--device cuda was asked for, but no GPU is visible; check the driver and CUDA_VISIBLE_DEVICES")]
    NoGpu,
    #[error("--num-shard {asked} needs {asked} GPUs, but {visible} are visible; lower --num-shard")]
    TooFewGpus { asked: u32, visible: u32 },
    #[error(
        "--num-replicas {replicas} of {shards} shards each need {} GPUs, but {visible} are visible; lower --num-replicas or --num-shard", replicas * shards
    )]
    TooFewGpusForReplicas { replicas: u32, shards: u32, visible: u32 },
    #[error(
        "--pipeline-parallel-size has {stages} stages here of {shards} shards each, which need {} GPUs, but {visible} are visible; lower it or --num-shard", stages * shards
    )]
    TooFewGpusForStages { stages: u32, shards: u32, visible: u32 },
    #[error("--sharded true needs at least two shards, but {found} would start; set --num-shard")]
    NothingToShard { found: u32 },
    #[error("--sharded false contradicts --num-shard {asked}; drop one of the two")]
    ShardedOff { asked: u32 },
    #[error(
        "--ep-size {asked} does not fit {ranks} shards: experts are divided among all shards that have a layer \
         (--expert-parallel true, as --ep-size {ranks}), or each expert is (--expert-parallel false, as --ep-size 1)"
    )]
    ExpertGroups { asked: u32, ranks: u32 },
    #[error(
        "--max-input-tokens {input} must be less than --max-total-tokens {total}, which leaves room for the output"
    )]
    InputTooLong { input: u32, total: u32 },
    #[error(
        "--target-itl-ms {0} and --prefer throughput exclude each other: no step of a burst may take longer than the target; drop one of the two"
    )]
    PauseBeyondTarget(u32),
    #[error("--node-rank {node} must be below --nnodes {count}")]
    NodeRankTooHigh { node: u32, count: u32 },
    #[error("--nnodes {count} needs --master-addr, the address of node 0 in the network of the nodes")]
    NoMasterAddress { count: u32 },
    #[error(
        "--nnodes {count} needs --replica-secret-file, the same on all nodes: they prove to each other that they know it"
    )]
    NoSecretForNodes { count: u32 },
    #[error(
        "--pipeline-parallel-size {stages} does not fit the {count} nodes of a replica: a node has whole stages, or a stage whole nodes; use a multiple or a divisor of {count}"
    )]
    StagesOverNodes { stages: u32, count: u32 },
    #[error("--sharded false contradicts --pipeline-parallel-size {stages}; drop one of the two")]
    StagesOff { stages: u32 },
    #[error(
        "--num-replicas {replicas} and --nnodes {count} do not fit: a node has whole replicas, or a replica whole nodes; use a multiple or a divisor of {count}"
    )]
    ReplicasOverNodes { replicas: u32, count: u32 },
    #[error(
        "--replica-tls-cert has no effect without --nnodes, --replica tcp:HOST:PORT or --admin-socket: nothing goes over TCP; --tls-cert is for HTTPS"
    )]
    NothingForTls,
    #[error("--executor ray has no files of this machine on the others; drop --replica-tls-cert")]
    TlsOverRay,
    #[error("--executor ray numbers the nodes and knows where they are; drop --{flag}")]
    KnownToRay { flag: &'static str },
    #[error(
        "--executor ray places 63 nodes at most beside the router, and --nnodes or --num-replicas asks for {count}"
    )]
    TooManyForRay { count: u32 },
    #[error(
        "--role has {roles} roles, and --num-replicas is {replicas}: give each replica its role, as in --role prefill,decode"
    )]
    RolesOfOthers { roles: usize, replicas: u32 },
    #[error(
        "--role {role} and --prefix-caching false exclude each other: blocks come to another replica as parts of its prefix cache"
    )]
    RoleWithoutCache { role: &'static str },
    #[error(
        "--max-awake-models and --max-awake-gb are for several models; name each by --model NAME=MODEL, or drop them"
    )]
    BudgetOfOne,
    #[error("the socket path {0} is longer than 107 bytes; set TMPDIR to a shorter folder")]
    SocketPathTooLong(PathBuf),
    #[error("--speculation draft needs --draft-model, a small model; add it or use --speculation ngram")]
    NoDraftModel,
    #[error("--draft-model {0} needs --speculation draft, medusa or eagle; add it or drop --draft-model")]
    UnusedDraftModel(String),
    #[error(
        "--speculate-branches {0} needs --speculation medusa, eagle or mtp; add it or drop --speculate-branches"
    )]
    UnusedBranches(u32),
}

/// The first contradiction among the flags that is one on every machine and for every model.
pub fn contradiction(args: &Args) -> Option<PlanError> {
    contradiction_of_layout(args)
        .or_else(|| contradiction_of_shards(args))
        .or_else(|| contradiction_of_nodes(args))
        .or_else(|| contradiction_of_roles(args))
        .or_else(|| contradiction_of_limits(args))
        .or_else(|| contradiction_of_pace(args))
        .or_else(|| contradiction_of_drafts(args))
}

fn contradiction_of_layout(args: &Args) -> Option<PlanError> {
    if args.models.budget.is_given() && !args.models.are_several() {
        return Some(PlanError::BudgetOfOne);
    }
    let Layout { num_replicas: replicas, num_nodes: count } = args.layout();
    (!args.layout().is_even()).then_some(PlanError::ReplicasOverNodes { replicas, count })
}

fn contradiction_of_shards(args: &Args) -> Option<PlanError> {
    let stages = args.shards.pipeline_parallel_size;
    let count = args.layout().nodes_of_replica();
    if !stages.is_multiple_of(count) && !count.is_multiple_of(stages) {
        return Some(PlanError::StagesOverNodes { stages, count });
    }
    match (args.shards.sharded, args.shards.num_shard) {
        (Some(false), _) if stages > 1 => Some(PlanError::StagesOff { stages }),
        (Some(false), Some(asked)) if asked > 1 => Some(PlanError::ShardedOff { asked }),
        (Some(true), Some(1)) if stages == 1 => Some(PlanError::NothingToShard { found: 1 }),
        _ => None,
    }
}

fn contradiction_of_nodes(args: &Args) -> Option<PlanError> {
    if args.executor.is_ray() {
        return contradiction_of_ray(args);
    }
    if args.router.replicas.tls_files().is_some() && !goes_over_tcp(args) {
        return Some(PlanError::NothingForTls);
    }
    let nodes = &args.nodes;
    let (count, node) = (nodes.nnodes, nodes.node_rank);
    if node >= count {
        return Some(PlanError::NodeRankTooHigh { node, count });
    }
    if !nodes.are_several() {
        return None;
    }
    match (&nodes.master_addr, &args.router.replicas.replica_secret_file) {
        (None, _) => Some(PlanError::NoMasterAddress { count }),
        (_, None) => Some(PlanError::NoSecretForNodes { count }),
        _ => None,
    }
}

/// Whether shards are reached over TCP, or may be later.
fn goes_over_tcp(args: &Args) -> bool {
    let replicas = &args.router.replicas;
    let has_tcp = replicas.replica.iter().any(|address| matches!(address, ReplicaAddress::Tcp(_)));
    args.nodes.are_several() || has_tcp || replicas.admin_socket.is_some()
}

fn contradiction_of_roles(args: &Args) -> Option<PlanError> {
    let (roles, replicas) = (&args.shards.role, args.shards.num_replicas);
    if roles.is_empty() {
        return None;
    }
    if roles.len() != replicas as usize {
        return Some(PlanError::RolesOfOthers { roles: roles.len(), replicas });
    }
    let special = roles.iter().find(|role| **role != Role::Both)?;
    match special {
        _ if args.router.prefix_caching => None,
        Role::Prefill => Some(PlanError::RoleWithoutCache { role: "prefill" }),
        Role::Decode | Role::Both => Some(PlanError::RoleWithoutCache { role: "decode" }),
    }
}

fn contradiction_of_ray(args: &Args) -> Option<PlanError> {
    let (nodes, count) = (&args.nodes, args.layout().num_nodes);
    match (nodes.node_rank, &nodes.master_addr) {
        _ if count > 63 => Some(PlanError::TooManyForRay { count }),
        (1.., _) => Some(PlanError::KnownToRay { flag: "node-rank" }),
        (_, Some(_)) => Some(PlanError::KnownToRay { flag: "master-addr" }),
        _ if args.router.replicas.tls_files().is_some() => Some(PlanError::TlsOverRay),
        _ => None,
    }
}

fn contradiction_of_limits(args: &Args) -> Option<PlanError> {
    let limits = &args.router.limits;
    let (input, total) = (limits.max_input_tokens?, limits.max_total_tokens?);
    (input >= total).then_some(PlanError::InputTooLong { input, total })
}

fn contradiction_of_pace(args: &Args) -> Option<PlanError> {
    let pace = &args.router.pace;
    let target = pace.target_itl_ms.filter(|_| pace.prefer == Preference::Throughput);
    target.map(PlanError::PauseBeyondTarget)
}

fn contradiction_of_drafts(args: &Args) -> Option<PlanError> {
    let asked = args.router.speculation.speculation;
    let branches = args.model.speculate_branches.filter(|_| asked.and_then(Speculation::heads).is_none());
    if let Some(branches) = branches {
        return Some(PlanError::UnusedBranches(branches));
    }
    let reads_folder = |kind: Speculation| kind == Speculation::Draft || kind.heads().is_some();
    match &args.model.draft_model {
        None => (asked == Some(Speculation::Draft)).then_some(PlanError::NoDraftModel),
        Some(model) => (!asked.is_some_and(reads_folder)).then(|| PlanError::UnusedDraftModel(model.clone())),
    }
}
