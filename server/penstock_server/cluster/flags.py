"""The flags that the launcher gives the driver. Users never see these flags: it has checked theirs."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Settings:
    """The size of the placement, and the flags of its launchers."""

    # Machines with shards.
    num_nodes: int
    # Replicas of the model, which are not more.
    num_replicas: int
    # On each; None for every GPU of a machine.
    num_shards: int | None
    device: Device
    master_port: int
    # None for the cluster of this machine.
    ray_address: str | None
    placement_timeout_s: float
    # None for a secret of this run.
    secret_file: Path | None
    # The words of the launcher with the router, and of those with the shards.
    router_words: list[str]
    node_words: list[str]
    # Names of variables that stand for flags, and are set here.
    variables: list[str]
    json_output: bool


def parse(argv: list[str]) -> Settings:
    """The settings in these arguments."""
    parser = argparse.ArgumentParser(prog="penstock_server.cluster", allow_abbrev=False)
    parser.add_argument("--num-nodes", type=int, required=True)
    parser.add_argument("--num-replicas", type=int, required=True)
    parser.add_argument("--num-shard", type=int)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), required=True)
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--ray-address")
    parser.add_argument("--placement-timeout", type=float, required=True)
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--router-words", type=json.loads, required=True)
    parser.add_argument("--node-words", type=json.loads, required=True)
    parser.add_argument("--variable", action="append", default=[])
    parser.add_argument("--json-output", action="store_true")
    flags = parser.parse_args(argv)
    return Settings(
        num_nodes=flags.num_nodes,
        num_replicas=flags.num_replicas,
        num_shards=flags.num_shard,
        device=flags.device,
        master_port=flags.master_port,
        ray_address=flags.ray_address,
        placement_timeout_s=flags.placement_timeout,
        secret_file=flags.secret_file,
        router_words=flags.router_words,
        node_words=flags.node_words,
        variables=flags.variable,
        json_output=flags.json_output,
    )
