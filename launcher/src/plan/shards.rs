//! The processes of the shards and their flags.

use std::path::{Path, PathBuf};

use penstock_router::engine::speculation::Speculation;

use super::spec::{EachStart, Places, ProcessSpec, Readiness};
use crate::args::{Args, Device, Role, name_of};
use crate::layout::{Layout, shard_name};

/// Token positions per KV block if the size of the cache is given in tokens; else the shards choose the block size.
const BLOCK_SIZE: u32 = 16;
/// Slots of a shard by default, as the help text of `--max-batch-size` says.
const DEFAULT_BATCH_SIZE: u32 = 128;

/// Name and value of a flag; without a value it is left out.
type Flag = (&'static str, Option<String>);

/// Settings that the shards of one replica share.
pub struct Group<'a> {
    pub args: &'a Args,
    pub places: &'a Places,
    pub device: Device,
    /// Groups like this one, on all machines.
    pub layout: Layout,
    /// Its number among them.
    pub number: u32,
    /// Its place among those of this machine.
    pub place: u32,
    /// Shards on this machine.
    pub num_shards: u32,
    /// The rank of the first of them.
    pub first_rank: u32,
    /// Shards on all machines.
    pub num_ranks: u32,
    /// Whether each has whole experts; `None`: they decide.
    pub expert_parallel: Option<bool>,
    pub threads: u32,
}

impl Group<'_> {
    /// Where its shards listen, by rank. Shards of all groups are counted through.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let first = self.number * self.num_ranks + self.first_rank;
        let path = |shard| self.places.run_dir.join(format!("shard-{shard}.sock"));
        (first..first + self.num_shards).map(path).collect()
    }

    /// The processes of the ranks of this machine.
    pub fn shards(&self) -> Vec<ProcessSpec> {
        (self.first_rank as usize..)
            .zip(self.sockets())
            .map(|(rank, socket)| self.shard(rank, &socket))
            .collect()
    }

    fn shard(&self, rank: usize, socket: &Path) -> ProcessSpec {
        ProcessSpec {
            name: shard_name(self.layout.num_replicas as usize, self.number as usize, rank),
            program: self.places.python.clone(),
            // -P: a file named torch.py in the current folder is not imported.
            args: ["-P", "-m", "penstock_server"]
                .map(str::to_owned)
                .into_iter()
                .chain(self.flags(rank, socket))
                .collect(),
            environment: Vec::new(),
            each_start: EachStart::Group,
            readiness: Readiness::GrpcHealth(socket.to_owned()),
        }
    }

    /// Whether it has shards on several machines.
    fn is_over_nodes(&self) -> bool {
        self.layout.nodes_of_replica() > 1
    }

    /// Whether others reach its shards over TCP: those of other machines that belong to it, the router from another one, or
    /// other replicas, for blocks.
    fn is_reached_over_tcp(&self) -> bool {
        let hands_out_blocks = self.args.nodes.are_several() && self.role() == Some(Role::Prefill);
        self.is_over_nodes() || self.args.nodes.node_rank > 0 || hands_out_blocks
    }

    /// Groups that share the memory of the machine, those of other models among them.
    fn num_sharing(&self) -> u32 {
        self.layout.replicas_of_node() * self.args.process.machine_share
    }

    /// How tokens are drafted, if any are, where that is not the default of the shards.
    fn drafter(&self) -> Option<String> {
        let speculation = &self.args.router.speculation;
        let asked = speculation.speculation.filter(|_| speculation.max_drafts() > 0)?;
        (asked != Speculation::Ngram).then(|| name_of(&asked))
    }

    /// Most tokens that a step may draft for a sequence, if any are drafted.
    fn max_drafts(&self) -> Option<u32> {
        Some(self.args.router.speculation.max_drafts()).filter(|drafts| *drafts > 0)
    }

    /// Most sequences for which a step may draft.
    fn max_drafting(&self) -> u32 {
        self.args.router.speculation.speculate_max.min(self.num_slots())
    }

    /// Its role; `None` if it does both.
    fn role(&self) -> Option<Role> {
        self.args.shards.role.get(self.number as usize).copied().filter(|role| *role != Role::Both)
    }

    /// Sequences that a shard holds at a time.
    fn num_slots(&self) -> u32 {
        self.args.shards.max_batch_size.unwrap_or(DEFAULT_BATCH_SIZE)
    }

    /// The folder of what drafts, if any tokens are drafted, and not by n-gram or suffix.
    fn draft_model(&self) -> Option<String> {
        let speculation = &self.args.router.speculation;
        let is_used = speculation.max_drafts() > 0
            && !matches!(speculation.speculation, Some(Speculation::Ngram | Speculation::Suffix));
        self.places.model.draft.as_ref().filter(|_| is_used).map(|folder| folder.display().to_string())
    }

    fn flags(&self, rank: usize, socket: &Path) -> Vec<String> {
        let mut given = self.rank_flags(rank, socket);
        given.extend(self.model_flags());
        given.extend(self.size_flags());
        let mut flags: Vec<String> =
            given.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect();
        let switches = [
            ("--json-output", self.args.router.log.json_output),
            ("--batch-invariant", self.args.shards.batch_invariant),
            ("--poison-cache", self.args.shards.poison_cache),
        ];
        flags.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name.to_owned()));
        flags.extend(self.args.process.fault.iter().map(|fault| format!("--fault={fault}")));
        flags
    }

    /// The flags about the model that is loaded.
    fn model_flags(&self) -> Vec<Flag> {
        let (model, places) = (&self.args.model, &self.places.model);
        let rope = model.rope.chosen();
        vec![
            ("model-path", Some(places.folder.display().to_string())),
            ("tokenizer-path", Some(places.tokenizer.display().to_string())),
            ("draft-model", self.draft_model()),
            ("drafter", self.drafter()),
            ("draft-branches", model.speculate_branches.map(|branches| branches.to_string())),
            ("load-format", Some(name_of(&model.load_format))),
            ("model-impl", Some(name_of(&model.model_impl))),
            ("generation-config", Some(name_of(&model.generation_config))),
            ("override-generation-config", model.override_generation_config.clone()),
            ("rope-scaling", rope.as_ref().map(|(scaling, _)| name_of(scaling))),
            ("rope-factor", rope.map(|(_, factor)| factor.to_string())),
            ("dtype", model.dtype.as_ref().map(name_of)),
            ("kv-cache-dtype", Some(name_of(&model.kv_cache_dtype))),
            ("quantize", Some(name_of(&model.quantize)).filter(|name| !name.is_empty())),
            ("quantize-cache", model.quantize_cache.as_ref().map(|folder| folder.display().to_string())),
            ("quantize-cache-gb", Some(model.quantize_cache_gb.to_string())),
        ]
    }

    /// Its place among the processes, and how it is reached.
    fn rank_flags(&self, rank: usize, socket: &Path) -> Vec<Flag> {
        let shards = &self.args.shards;
        let first_gpu = Some(self.place * self.num_shards).filter(|first| *first > 0);
        let replicas = &self.args.router.replicas;
        let text = |file: &PathBuf| file.display().to_string();
        let of_nodes =
            |file: &Option<PathBuf>| file.as_ref().filter(|_| self.is_reached_over_tcp()).map(text);
        // Blocks may come over TCP, too.
        let of_tcp = |file: &Option<PathBuf>| {
            file.as_ref().filter(|_| self.is_reached_over_tcp() || self.role().is_some()).map(text)
        };
        vec![
            ("log-level", Some(self.args.shard_log_level().to_string())),
            ("uds-path", Some(socket.display().to_string())),
            ("rank", Some(rank.to_string())),
            ("world-size", Some(self.num_ranks.to_string())),
            (
                "num-stages",
                Some(shards.pipeline_parallel_size).filter(|all| *all > 1).map(|it| it.to_string()),
            ),
            ("ranks-per-node", self.is_over_nodes().then(|| self.num_shards.to_string())),
            ("secret-file", of_nodes(&replicas.replica_secret_file)),
            ("tls-cert", of_tcp(&replicas.replica_tls_cert)),
            ("tls-key", of_tcp(&replicas.replica_tls_key)),
            ("tls-ca", of_tcp(&replicas.replica_tls_ca)),
            ("num-replicas", Some(self.num_sharing()).filter(|all| *all > 1).map(|it| it.to_string())),
            ("first-gpu", first_gpu.map(|it| it.to_string())),
            ("expert-parallel", self.expert_parallel.map(|is_asked| is_asked.to_string())),
            ("endpoint", Some(name_of(&shards.endpoint))),
            ("role", self.role().as_ref().map(name_of)),
            ("parent-pipe-fd", Some(self.places.parent_pipe_fd.to_string())),
        ]
    }

    /// The flags about the device, and how much it computes at a time.
    fn size_flags(&self) -> Vec<Flag> {
        let (limits, shards) = (&self.args.router.limits, &self.args.shards);
        let device = if self.device == Device::Cuda { "cuda" } else { "cpu" };
        let num_blocks = limits.max_batch_total_tokens.map(|tokens| tokens.div_ceil(BLOCK_SIZE));
        vec![
            ("attention-backend", Some(name_of(&shards.attention_backend))),
            ("all-reduce", Some(name_of(&shards.all_reduce))),
            ("cpu-activations", Some(name_of(&shards.cpu_activations))),
            ("gpu-activations", Some(name_of(&shards.gpu_activations))),
            ("device", Some(device.to_owned())),
            ("max-sequence-len", limits.max_total_tokens.map(|tokens| tokens.to_string())),
            ("max-step-tokens", limits.max_batch_prefill_tokens.map(|tokens| tokens.to_string())),
            ("max-loras", shards.max_loras.map(|adapters| adapters.to_string())),
            ("num-snapshots", shards.max_snapshots.map(|snapshots| snapshots.to_string())),
            ("max-drafts", self.max_drafts().map(|drafts| drafts.to_string())),
            ("max-drafting", self.max_drafts().map(|_| self.max_drafting().to_string())),
            ("num-slots", Some(self.num_slots().to_string())),
            ("num-blocks", num_blocks.map(|blocks| blocks.to_string())),
            ("block-size", num_blocks.map(|_| BLOCK_SIZE.to_string())),
            ("cuda-graphs", shards.cuda_graphs.as_deref().map(sizes)),
            ("cuda-memory-fraction", shards.cuda_memory_fraction.map(|fraction| fraction.to_string())),
            ("threads", Some(self.threads.to_string())),
        ]
    }
}

/// The value of a shard's `--cuda-graphs`: sizes without zeros, separated by commas, or `0` if none is left.
fn sizes(rows: &[u32]) -> String {
    let captured: Vec<String> = rows.iter().filter(|size| **size > 0).map(ToString::to_string).collect();
    if captured.is_empty() { "0".to_owned() } else { captured.join(",") }
}
