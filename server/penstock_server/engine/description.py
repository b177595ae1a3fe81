"""The description of a shard that it reports to the router."""

from dataclasses import dataclass

from penstock_server.architectures.spec import ModelFacts
from penstock_server.engine.limits import Limits
from penstock_server.files.generation_config import GenerationDefaults
from penstock_server.files.versions import Versions
from penstock_server.network.quantization.quantization import QuantizationFacts


@dataclass(frozen=True, slots=True)
class Description:
    """The answer to Describe; it does not change while the process runs."""

    facts: ModelFacts
    limits: Limits
    dtype: str
    kv_cache_dtype: str
    attention_backend: str
    device: str
    rank: int
    world_size: int
    # Ranges of layers, each on as many ranks.
    num_stages: int
    # Whether each of several ranks has whole experts.
    expert_parallel: bool
    max_top_logprobs: int
    max_adapters: int
    abilities: tuple[str, ...]
    generation: GenerationDefaults | None
    quantization: QuantizationFacts | None
    versions: Versions
