//! The flags about how the model is computed.

use clap::{ArgAction, Args as ClapArgs};
use penstock_router::base::boolean::boolean;

use super::choices::{AllReduce, AttentionBackend, CpuActivations, Device, Endpoint, GpuActivations, Role};

/// How it is computed.
#[derive(Debug, Clone, ClapArgs)]
pub struct ShardArgs {
    /// Replicas of the model, each of --num-shard shards; with --nnodes those of all machines. A request goes to the one that
    /// has most of its prompt in its cache, or least to do
    #[arg(long, env, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub num_replicas: u32,

    /// What each replica of --num-replicas is for, in their order, as in prefill,decode: `prefill` computes prompts, and others
    /// generate; `decode` generates, and computes prompts where nobody else does [default: both for all]
    #[arg(long, env, value_enum, value_delimiter = ',', value_name = "ROLES")]
    pub role: Vec<Role>,

    /// Shards that the model, or each replica, is split over (tensor parallel); with --pipeline-parallel-size those of a
    /// stage [default: every visible GPU, divided among replicas and stages; 1 on the CPU]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub num_shard: Option<u32>,

    /// Stages that the layers are divided among, each of --num-shard shards (pipeline parallel)
    // The name of vLLM and SGLang; the aliases are short forms of both.
    #[arg(long, env, default_value_t = 1, aliases = ["pp", "pp-size"], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pipeline_parallel_size: u32,

    /// Whole experts on each shard in place of a slice of every expert, of a model with experts
    /// [default: only where slices of an expert would not be of the same size]
    // vLLM's name.
    #[arg(long, env, alias = "enable-expert-parallel", num_args = 0..=1, default_missing_value = "true", value_parser = boolean)]
    pub expert_parallel: Option<bool>,

    /// SGLang's way to say the same: 1, or all shards that a layer is divided among.
    #[arg(long, hide = true, aliases = ["ep", "expert-parallel-size"], conflicts_with = "expert_parallel")]
    pub ep_size: Option<u32>,

    /// `true` splits the model over every visible GPU, `false` uses one
    #[arg(long, env, num_args = 0..=1, default_missing_value = "true", value_parser = boolean)]
    pub sharded: Option<bool>,

    /// Where the shards compute; `auto` takes the GPUs if there are any
    #[arg(long, env, default_value = "auto")]
    pub device: Device,

    /// Most sequences that run at once [default: 128]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_batch_size: Option<u32>,

    /// Different adapters that run at once, on the device; a request of another one waits for a place; 0 for none
    /// [default: 8]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub max_loras: Option<u32>,

    /// States of sequences that the prefix cache keeps, of a model with recurrent layers; 0 for no prefix cache
    /// [default: two for each of --max-batch-size, in a quarter of the memory that is left for the cache]
    #[arg(long, env)]
    pub max_snapshots: Option<u32>,

    /// What computes attention; `auto` takes Penstock's own for the device
    #[arg(long, env, default_value = "auto")]
    pub attention_backend: AttentionBackend,

    /// What adds up what several GPUs computed; `auto` takes Penstock's kernels where they can, else NCCL
    #[arg(long, env, default_value = "auto")]
    pub all_reduce: AllReduce,

    /// What quantized weights are multiplied by on a CPU; `int8` is faster, and the numbers that come in are rounded
    #[arg(long, env, default_value = "auto")]
    pub cpu_activations: CpuActivations,

    /// What quantized weights of 8 bits are multiplied by on a GPU; `8bit` is faster, and the numbers that come in are rounded
    #[arg(long, env, default_value = "float")]
    pub gpu_activations: GpuActivations,

    /// What serves the shards' end of the wire; `auto` takes `tonic`, in Rust, where it is installed
    #[arg(long, env, default_value = "auto")]
    pub endpoint: Endpoint,

    /// A request's tokens do not depend on what shares its batch, to the last bit; slower
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub batch_invariant: bool,

    /// Numbers of rows that decode steps are captured for, as in 1,2,4,8; `0` for none
    /// [default: up to --max-batch-size on a GPU, up to 32 on a CPU, 128 where the model is small]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(0..=4096), value_delimiter = ',', value_name = "SIZES")]
    pub cuda_graphs: Option<Vec<u32>>,

    /// Share of a GPU's memory that weights, KV cache and steps may take together [default: 0.9]
    #[arg(long, env, value_parser = fraction)]
    pub cuda_memory_fraction: Option<f32>,

    /// For tests: whatever KV cache was not written for a sequence is made NaN before it computes; slow
    #[arg(long, hide = true)]
    pub poison_cache: bool,
}

fn fraction(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err(format!("{text} is not a number above 0 and at most 1")),
    }
}
