"""The settings of one shard: parsed once, frozen, passed down. What the shard derives from them is not stored here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock_server.base.mutual_tls import MutualTls

# Reported to the router, which refuses more; each costs a row of a top-k over the vocabulary.
MAX_TOP_LOGPROBS = 20
# One plan may admit many long prompts: 64 MiB hold 16 million token ids, and no valid plan comes near.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# The stack of threads for grammars. Schemas are compiled by recursion, whose levels the router bounds
# (grammar/schema.rs).
GRAMMAR_STACK_BYTES = 64 << 20


# Where the weights come from: the files of the folder, or (dummy) noise, for measurements.
LoadFormat = Literal["safetensors", "dummy"]

# Which code computes the model; auto: our own decoder where the family has a row, else transformers.
ModelImpl = Literal["auto", "native", "transformers"]


# Type of the KV cache; auto: that of the weights. The others are three names of one type, as other servers use them.
KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "fp8_e4m3fn"]


# How weights of 16 or 32 bits are quantized while they are read. Some names mean the same, see docs/quantization.md.
AtLoad = Literal["fp8", "int8", "eetq", "int4", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"]

# Formats that a folder may have already; TGI's names first.
StoredFormat = Literal[
    "awq", "compressed-tensors", "exl2", "gptq", "marlin", "fbgemm_fp8", "modelopt", "mxfp4"
]


# The names of `penstock_kernels.backends`, written out here because importing that imports torch.
AttentionBackend = Literal["auto", "triton", "native", "reference", "flashinfer", "varlen", "fa3", "cudnn"]
# The way to add up over GPUs; auto: sums of few rows by our kernels, where all reach each other's memory.
AllReduce = Literal["auto", "nccl"]
# Whether generation_config.json gives the defaults of sampling; none: the server's own apply.
GenerationConfig = Literal["auto", "none"]


# The activations that quantized weights are multiplied by on a CPU: as they are, or integers in blocks.
CpuActivations = Literal["auto", "float", "int16", "int8"]
GpuActivations = Literal["float", "8bit"]
DrafterKind = Literal["ngram", "suffix", "draft", "medusa", "eagle", "mtp"]


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How much a step may draft; nothing with zeros."""

    # Tokens of a sequence, and sequences.
    max_drafts: int = 0
    max_drafting: int = 0


# The gRPC server on the shard's socket; auto: the extension module in Rust where it is installed, else grpcio.
EndpointKind = Literal["auto", "tonic", "grpcio"]

# The work of a replica for a request: compute its prompt, generate, or both.
Role = Literal["both", "prefill", "decode"]


# Scalings of rotary positions that a flag may ask for.
RopeScaling = Literal["linear", "dynamic"]

# From the lowest; trace is debug in Python.
LogLevel = Literal["off", "error", "warn", "info", "debug", "trace"]


@dataclass(frozen=True, slots=True)
class RopeOverride:
    """A scaling of rotary positions in the place of config.json's."""

    kind: RopeScaling
    factor: float


@dataclass(frozen=True, slots=True)
class ModelOverrides:
    """Replacements for parts of a model's configuration; None keeps the model's."""

    rope: RopeOverride | None = None
    # Fields in the place of those of generation_config.json.
    generation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group over several machines meet: at the launcher of the first."""

    # A number, not a name.
    host: str
    port: int
    # The number of the group among the replicas of the model.
    group: int
    # The number of this start of the group. A rank that was left over from another is refused.
    start: int
    # Both sides prove that they know it.
    secret: str
    # None: the connection is not encrypted.
    tls: MutualTls | None = None


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """This shard's place in its group: ranks follow each other by stage, and in a stage by part."""

    rank: int
    world_size: int
    # A private folder all ranks of a machine can reach; they meet through a file in it. Needed when world_size > 1 and
    # there is no `rendezvous`.
    rendezvous_dir: Path | None
    # A rank whose process ended is noticed at once; one that is stopped, after this time.
    timeout_s: float = 10.0
    # Number of the GPU of rank 0; the other ranks have those behind it.
    first_gpu: int = 0
    # Groups like this one on the machine. On a CPU they divide its memory.
    num_replicas: int = 1
    # None: all ranks are on this machine.
    rendezvous: Rendezvous | None = None
    # How many ranks each machine has, if there are several; None: all.
    ranks_per_node: int | None = None
    # Whether each rank has whole experts; None: where slices of an expert would not be of the same size.
    expert_parallel: bool | None = None
    # Pipeline parallel: each stage has a range of layers, divided among as many ranks as in every other.
    num_stages: int = 1

    @property
    def ranks_per_stage(self) -> int:
        """Ranks that a layer is divided among."""
        return self.world_size // self.num_stages

    @property
    def stage(self) -> int:
        """The stage of this rank."""
        return self.rank // self.ranks_per_stage

    @property
    def tells_tokens(self) -> bool:
        """Whether it is the first of the last stage, whose outcomes have the tokens."""
        return self.rank == self.world_size - self.ranks_per_stage

    @property
    def part(self) -> int:
        """The place among the ranks of the stage."""
        return self.rank % self.ranks_per_stage

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine."""
        return self.ranks_per_node or self.world_size

    @property
    def local_rank(self) -> int:
        """The place among them."""
        return self.rank % self.ranks_here


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes of what a step touches; None means derived from the model and the memory."""

    max_sequence_len: int | None
    max_step_tokens: int | None
    num_slots: int
    num_blocks: int | None
    block_size: int
    # Places for states kept for the prefix cache, of a model that has states.
    num_snapshots: int | None = None
    # Tokens that a step may draft, of a model that has states: for each of them one is kept.
    num_draft_states: int = 0
    # Memory that was not written is NaN, so that a test notices when it is read.
    is_poisoned: bool = False
    dtype: KvCacheDtype = "auto"


@dataclass(frozen=True, slots=True)
class CudaConfig:
    """Decode graphs, and what only a GPU has."""

    # Numbers of rows that decode steps are captured for; None: chosen from the number of slots; empty: no graphs.
    graph_sizes: tuple[int, ...] | None = None
    # Share of the GPU's memory for weights, cache and steps together.
    memory_fraction: float = 0.9
    # Numbers of tokens that steps with prompts are captured for; None: the usual ones. No flag sets it.
    prompt_graph_sizes: tuple[int, ...] | None = None
    # auto: sums of few rows over ranks go through memory that all of them reach, where there is such memory.
    all_reduce: AllReduce = "auto"


@dataclass(frozen=True, slots=True)
class QuantizeCache:
    """Where weights that are quantized at load are kept for later starts."""

    # None: beside the hub's cache.
    folder: Path | None = None
    # GB that all of it takes at most; 0: nothing is kept.
    max_gb: int = 0


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """Where a shard is reached over TCP, beside its Unix socket."""

    # A number, not a name. Without a secret it is one of this machine alone.
    host: str
    port: int
    # The secret that every call there has to bring.
    secret: str | None
    # None: connections are not encrypted.
    tls: MutualTls | None = None


@dataclass(frozen=True, slots=True)
class BlocksAddress:
    """Where shards of other replicas fetch blocks of the cache: a Unix socket, or an address in numbers."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def shown(self) -> str:
        """The value as people read it."""
        return f"unix:{self.path}" if self.path is not None else f"tcp:{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything the command line says."""

    model_path: Path
    tokenizer_path: Path
    load_format: LoadFormat
    model_impl: ModelImpl
    generation_config: GenerationConfig
    uds_path: Path
    dtype: str
    device: str
    threads: int | None
    batch_invariant: bool
    json_output: bool
    parent_pipe_fd: int | None
    group: GroupConfig
    cache: CacheConfig
    cuda: CudaConfig = CudaConfig()
    attention_backend: AttentionBackend = "auto"
    # The format that weights have, or get while they are read; None: as the folder has them.
    quantize: AtLoad | StoredFormat | None = None
    quantize_cache: QuantizeCache = QuantizeCache()
    overrides: ModelOverrides = ModelOverrides()
    # How many LoRA adapters the slots may use at one time; 0: none can be loaded.
    max_adapters: int = 8
    cpu_activations: CpuActivations = "auto"
    gpu_activations: GpuActivations = "float"
    # Folder of the small model or the heads that draft tokens; None: they are drafted from those of the sequence.
    draft_model_path: Path | None = None
    # The drafter; "ngram" together with a draft folder: whatever that folder has.
    drafter: DrafterKind = "ngram"
    # Guesses of a head for a token: with more than one, drafts are trees where they may be. None: as the heads say.
    draft_branches: int | None = None
    draft_limits: DraftLimits = DraftLimits()
    log_level: LogLevel = "info"
    endpoint: EndpointKind = "auto"
    tcp: TcpConfig | None = None
    role: Role = "both"
    # None: no blocks are handed out.
    blocks: BlocksAddress | None = None
    tls: MutualTls | None = None
    # Fault hooks, for tests only.
    faults: tuple[str, ...] = ()
