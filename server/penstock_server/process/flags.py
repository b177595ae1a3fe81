"""The flags of a shard, parsed into `ServerConfig`."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

from penstock_server import __version__
from penstock_server.base.config import (
    AllReduce,
    AtLoad,
    AttentionBackend,
    BlocksAddress,
    CacheConfig,
    CpuActivations,
    CudaConfig,
    DraftLimits,
    EndpointKind,
    GpuActivations,
    GroupConfig,
    KvCacheDtype,
    LogLevel,
    ModelOverrides,
    QuantizeCache,
    Rendezvous,
    Role,
    RopeOverride,
    RopeScaling,
    ServerConfig,
    StoredFormat,
)
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.process import tcp_address

# `add_argument` of a group of flags.
_Add: TypeAlias = Callable[..., object]

# A Unix socket's address holds 108 bytes with its final zero.
_MAX_SOCKET_PATH = 107


def parse(argv: list[str]) -> ServerConfig:
    """Flags to settings; argparse itself prints the usage and exits with code 2."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if flags.rank >= flags.world_size:
        parser.error(f"--rank {flags.rank} must be below --world-size {flags.world_size}")
    _check_group(flags, parser.error)
    if len(bytes(flags.uds_path)) > _MAX_SOCKET_PATH:
        parser.error(f"--uds-path is longer than the {_MAX_SOCKET_PATH} bytes a Unix socket can have")
    if flags.secret_file is not None and not (flags.listen or flags.rendezvous or flags.blocks_listen):
        parser.error("--secret-file has no effect without --listen, --rendezvous or --blocks-listen")
    _check_role(flags, parser.error)
    _check_tls(flags, parser.error)
    return _config(flags)


def _check_group(flags: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    """The flags about the place in the group, together."""
    if flags.world_size % flags.num_stages:
        refuse(f"--num-stages {flags.num_stages} does not divide --world-size {flags.world_size}")
    if flags.rendezvous is None:
        if flags.world_size > 1 and flags.rendezvous_dir is None:
            refuse("--rendezvous-dir or --rendezvous is needed when --world-size is above 1")
        if flags.ranks_per_node is not None:
            refuse("--ranks-per-node has no effect without --rendezvous")
    elif flags.secret_file is None:
        refuse("--rendezvous needs --secret-file: ranks on other machines have to prove who they are")
    elif flags.world_size % (flags.ranks_per_node or flags.world_size):
        refuse(f"--ranks-per-node {flags.ranks_per_node} does not divide --world-size {flags.world_size}")


def _check_tls(flags: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    files = (flags.tls_cert, flags.tls_key, flags.tls_ca)
    if any(files) and not all(files):
        refuse("--tls-cert, --tls-key and --tls-ca need each other")
    if any(files) and flags.listen is None and flags.rendezvous is None and flags.role == "both":
        refuse("--tls-cert has no effect without --listen, --rendezvous or --role")


def _check_role(flags: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    where = flags.blocks_listen
    if where is None:
        return
    if flags.role != "prefill":
        refuse("--blocks-listen has no effect without --role prefill: only such replicas hand out blocks")
    if not where.is_loopback and flags.secret_file is None:
        refuse(
            f"--blocks-listen: {where.host} is reached from other machines; that needs --secret-file, "
            "or listen on 127.0.0.1"
        )


def _blocks(flags: argparse.Namespace) -> BlocksAddress | None:
    if flags.role != "prefill":
        return None
    where = flags.blocks_listen
    if where is None:
        return BlocksAddress(path=flags.uds_path.with_name(f"{flags.uds_path.stem}.blocks"))
    return BlocksAddress(host=where.host, port=where.port)


def _mutual_tls(flags: argparse.Namespace) -> MutualTls | None:
    if flags.tls_cert is None:
        return None
    tls = MutualTls(flags.tls_cert, flags.tls_key, flags.tls_ca)
    # An error is reported before the model is loaded.
    tls.context()
    return tls


def _rendezvous(flags: argparse.Namespace, tls: MutualTls | None) -> Rendezvous | None:
    if flags.rendezvous is None:
        return None
    host, port = flags.rendezvous
    secret = tcp_address.read_secret(flags.secret_file)
    return Rendezvous(host, port, flags.group_number, flags.group_start, secret, tls)


def _config(flags: argparse.Namespace) -> ServerConfig:
    tls = _mutual_tls(flags)
    return ServerConfig(
        model_path=flags.model_path,
        tokenizer_path=flags.tokenizer_path or flags.model_path / "tokenizer.json",
        load_format=flags.load_format,
        model_impl=flags.model_impl,
        generation_config=flags.generation_config,
        uds_path=flags.uds_path,
        dtype=flags.dtype,
        device=flags.device,
        threads=flags.threads,
        cpu_activations=flags.cpu_activations,
        gpu_activations=flags.gpu_activations,
        batch_invariant=flags.batch_invariant,
        json_output=flags.json_output,
        parent_pipe_fd=flags.parent_pipe_fd,
        group=GroupConfig(
            rank=flags.rank,
            world_size=flags.world_size,
            rendezvous_dir=flags.rendezvous_dir,
            first_gpu=flags.first_gpu,
            num_replicas=flags.num_replicas,
            rendezvous=_rendezvous(flags, tls),
            ranks_per_node=flags.ranks_per_node,
            num_stages=flags.num_stages,
            expert_parallel=None if flags.expert_parallel is None else flags.expert_parallel == "true",
        ),
        cache=CacheConfig(
            max_sequence_len=flags.max_sequence_len,
            max_step_tokens=flags.max_step_tokens,
            num_slots=flags.num_slots,
            num_snapshots=flags.num_snapshots,
            num_draft_states=flags.max_drafts * min(flags.max_drafting, flags.num_slots),
            num_blocks=flags.num_blocks,
            block_size=flags.block_size,
            is_poisoned=flags.poison_cache,
            dtype=flags.kv_cache_dtype,
        ),
        cuda=CudaConfig(flags.cuda_graphs, flags.cuda_memory_fraction, all_reduce=flags.all_reduce),
        attention_backend=flags.attention_backend,
        quantize=flags.quantize or None,
        quantize_cache=QuantizeCache(flags.quantize_cache, flags.quantize_cache_gb),
        overrides=ModelOverrides(
            rope=RopeOverride(flags.rope_scaling, flags.rope_factor) if flags.rope_scaling else None,
            generation=flags.override_generation_config,
        ),
        max_adapters=flags.max_loras,
        draft_model_path=flags.draft_model,
        drafter=flags.drafter,
        draft_branches=flags.draft_branches,
        draft_limits=DraftLimits(flags.max_drafts, min(flags.max_drafting, flags.num_slots)),
        log_level=flags.log_level,
        endpoint=flags.endpoint,
        tcp=tcp_address.with_secret(flags.listen, flags.secret_file, tls) if flags.listen else None,
        role=flags.role,
        blocks=_blocks(flags),
        tls=tls,
        faults=tuple(flags.fault),
    )


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {2**31 - 1}")
    return value


def _natural(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _sizes(text: str) -> tuple[int, ...]:
    return () if text == "0" else tuple(_positive(size) for size in text.split(","))


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
    return value


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock_server", description="One shard of the Penstock LLM server."
    )
    parser.add_argument("--version", action="version", version=__version__)
    for title, add_flags in _GROUPS.items():
        add_flags(parser.add_argument_group(title).add_argument)
    return parser


def parse_fork_server(argv: list[str]) -> argparse.Namespace:
    """The flags of the process that forks shards."""
    parser = argparse.ArgumentParser(
        prog="penstock_server.process.fork_server", description="Forks shards for a launcher."
    )
    add = parser.add_argument
    add("--parent-pipe-fd", type=int, required=True, help="inherited pipe; ends when its other end closes")
    add("--socket", required=True, help="the path of its stdin, for whoever looks at processes")
    add("--checked", action="store_true", help="import at once, not when a first request has been checked")
    add("--json-output", action="store_true", help="one JSON object a line")
    add("--log-level", choices=get_args(LogLevel), default="info")
    add("room", nargs="?", help="spaces: the room for the command lines of shards")
    return parser.parse_args(argv)


def _add_model(add: _Add) -> None:
    add("--model-path", type=Path, required=True, help="local folder with config.json and safetensors")
    add("--tokenizer-path", type=Path, help="tokenizer.json; default: that of the model's folder")
    add("--load-format", choices=("safetensors", "dummy"), default="safetensors",
        help="dummy: weights are noise and none are read, for measuring")  # fmt: skip
    add("--model-impl", choices=("auto", "native", "transformers"), default="auto",
        help="whose modelling code computes; auto: our own where it knows the family")  # fmt: skip
    add("--generation-config", choices=("auto", "none"), default="auto",
        help="auto: requests that do not say how to sample do as generation_config.json has it")  # fmt: skip
    add("--override-generation-config", type=_json_object, metavar="JSON",
        help="values in the place of those of generation_config.json")  # fmt: skip
    add("--rope-scaling", choices=get_args(RopeScaling),
        help="scaling of rotary positions in the place of config.json's")  # fmt: skip
    add("--rope-factor", type=_factor, default=1.0, help="factor of --rope-scaling")
    add("--max-loras", type=_natural, default=8,
        help="LoRA adapters that the running sequences may use at one time; 0: none can be loaded")  # fmt: skip


def _add_weights(add: _Add) -> None:
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto",
        help="of weights, activations and cache; auto: float32 on cpu, else the model's own")  # fmt: skip
    add("--kv-cache-dtype", choices=get_args(KvCacheDtype), default="auto",
        help="type of the KV cache; auto: that of the weights; the others are float8_e4m3fn")  # fmt: skip
    add("--quantize", choices=("", *get_args(AtLoad), *get_args(StoredFormat)), metavar="FORMAT",
        help="quantizes weights while they are read, or names the format that they have")  # fmt: skip
    add("--quantize-cache", type=Path, metavar="DIR",
        help="keeps the weights that --quantize made, for later starts; default: penstock/quantized beside the hub's "
        "cache")  # fmt: skip
    add("--quantize-cache-gb", type=_natural, default=200, help="GB that are kept there at most; 0: none")


def _add_drafts(add: _Add) -> None:
    add("--draft-model", type=Path,
        help="folder of what drafts tokens; default: they are drafted from those of the sequence")  # fmt: skip
    add("--drafter", choices=("ngram", "suffix", "draft", "medusa", "eagle", "mtp"), default="ngram",
        help="how tokens are drafted; ngram with a draft model: as its folder says")  # fmt: skip
    add("--draft-branches", type=_positive,
        help="guesses of heads for a token, with more than 1 for trees; default: a tree that the config.json of the "
        "heads has, else 1")  # fmt: skip
    add("--max-drafts", type=_natural, default=0, help="tokens that a step may draft for a sequence")
    add("--max-drafting", type=_natural, default=0, help="sequences for which a step may draft")


def _add_wire(add: _Add) -> None:
    add("--uds-path", type=Path, required=True, help="Unix socket this rank serves on")
    add("--listen", type=tcp_address.parse, metavar="tcp:ADDRESS:PORT",
        help="TCP address that this rank serves on, too, for routers on other machines; other addresses than those of "
        "this machine alone need --secret-file")  # fmt: skip
    add("--secret-file", type=Path,
        help="file with the secret that routers have to send to the TCP address, and for --rendezvous")  # fmt: skip
    add("--tls-cert", type=Path,
        help="certificate in PEM format, of --tls-ca and with the name penstock-node: connections over TCP, and for "
        "--rendezvous, are then TLS, in which both sides show one")  # fmt: skip
    add("--tls-key", type=Path, help="private key of --tls-cert, in PEM format")
    add("--tls-ca", type=Path, help="certificate of the authority, in PEM format, that those of all are of")
    add("--role", choices=get_args(Role), default="both",
        help="prefill: it only computes prompts, and other replicas fetch the blocks and generate; decode: it is one "
        "of those")  # fmt: skip
    add("--blocks-listen", type=tcp_address.parse, metavar="tcp:ADDRESS:PORT",
        help="where blocks are fetched from, of --role prefill; default: a Unix socket beside --uds-path")  # fmt: skip
    add("--endpoint", choices=get_args(EndpointKind), default="auto",
        help="who serves gRPC on it; auto: tonic, in Rust, where it is installed, else grpcio")  # fmt: skip


def _add_group(add: _Add) -> None:
    add("--rank", type=_natural, default=0, help="position in the group; ranks of a stage follow each other")
    add("--world-size", type=_positive, default=1, help="ranks of the group, in all stages")
    add("--num-stages", type=_positive, default=1,
        help="ranges of layers, each divided among as many ranks (pipeline parallel)")  # fmt: skip
    add(
        "--first-gpu",
        type=_natural,
        default=0,
        help="number of the GPU of a machine's first rank; further ranks have the next",
    )
    add(
        "--num-replicas",
        type=_positive,
        default=1,
        help="groups on the machine; on a cpu they divide its memory",
    )
    add("--rendezvous-dir", type=Path, help="fresh private folder in which the ranks of one group meet")
    add("--rendezvous", type=tcp_address.parse, metavar="tcp:ADDRESS:PORT",
        help="where the ranks of a group over several machines meet: at the launcher of the first")  # fmt: skip
    add("--group-number", type=_natural, default=0, help="number of such a group among the replicas")
    add("--group-start", type=_natural, default=0, help="number of this start of such a group")
    add("--ranks-per-node", type=_positive, help="ranks on each machine of such a group; default: all")
    add("--expert-parallel", choices=("true", "false"),
        help="whole experts on each rank; default: where slices of an expert would not be of one size")  # fmt: skip


def _add_memory(add: _Add) -> None:
    add("--max-sequence-len", type=_positive,
        help="prompt and output together; default: what the model was made for")  # fmt: skip
    add("--max-step-tokens", type=_positive,
        help="tokens one step may compute; default: 2048 on cpu, 8192 on cuda")  # fmt: skip
    add("--num-slots", type=_positive, default=128, help="sequences held at a time")
    add("--num-snapshots", type=_natural,
        help="states kept for the prefix cache; default: two a slot, in a quarter of the memory for both")  # fmt: skip
    add(
        "--num-blocks", type=_positive, help="KV blocks; default: from the free memory, the same on all ranks"
    )
    add("--block-size", type=_positive, default=16, help="token positions per KV block")


def _add_computing(add: _Add) -> None:
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where there is one")
    add("--threads", type=_positive, help="compute threads; default: cores divided by the world size")
    add("--cpu-activations", choices=get_args(CpuActivations), default="auto",
        help="what quantized weights are multiplied by on a cpu; auto: int16 or float")  # fmt: skip
    add("--gpu-activations", choices=get_args(GpuActivations), default="float",
        help="what quantized weights of 8 bits are multiplied by on a gpu")  # fmt: skip
    add("--attention-backend", choices=get_args(AttentionBackend), default="auto",
        help="who computes attention; auto: our own kernels for the device")  # fmt: skip
    add("--all-reduce", choices=get_args(AllReduce), default=CudaConfig().all_reduce,
        help="who adds up over GPUs; auto: our kernels where NVLink ties them and rows are few, else nccl")  # fmt: skip
    add("--batch-invariant", action="store_true",
        help="a request's tokens do not depend on what shares its batch, to the last bit; slower")  # fmt: skip
    add("--cuda-graphs", type=_sizes, metavar="SIZES",
        help="rows of decode steps to capture, as in 1,2,4; 0: none; default: as many as there are slots")  # fmt: skip
    add("--cuda-memory-fraction", type=_fraction, default=CudaConfig().memory_fraction,
        help="of the GPU's memory that weights, cache and steps may take together")  # fmt: skip


def _add_process(add: _Add) -> None:
    add("--json-output", action="store_true", help="log one JSON object a line")
    add("--log-level", choices=get_args(LogLevel), default="info", help="lowest level of log lines")
    add("--parent-pipe-fd", type=_natural,
        help="inherited pipe; the shard exits at once when its other end closes")  # fmt: skip
    add("--poison-cache", action="store_true", help="for tests: KV cache that was not written is NaN; slow")
    add("--fault", action="append", default=[], help=argparse.SUPPRESS)


_GROUPS = {
    "model": _add_model,
    "weights and types": _add_weights,
    "drafts": _add_drafts,
    "wire": _add_wire,
    "group": _add_group,
    "memory": _add_memory,
    "computing": _add_computing,
    "process": _add_process,
}
