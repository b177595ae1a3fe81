"""Which lengths of sequences a model and a KV cache allow. Needs no torch: it is checked before weights are read."""

from penstock_server.architectures.spec import ModelFacts, ModelSpec
from penstock_server.base.config import CacheConfig
from penstock_server.base.errors import StartError


def check_lengths(cache: CacheConfig, facts: ModelFacts) -> None:
    """Raise StartError where the length that was asked for fits neither the model nor the cache that was asked for."""
    asked = cache.max_sequence_len
    if asked is None:
        return
    if asked > facts.max_sequence_len:
        rotates = isinstance(facts, ModelSpec) and facts.ropes
        raise StartError(
            f"--max-total-tokens {asked} is more than the {facts.max_sequence_len} that the model was made for; "
            f"lower it{', or see --rope-factor' if rotates else ''}"
        )
    if cache.num_blocks is not None:
        positions = cache.num_blocks * cache.block_size
        if positions < positions_needed(facts, asked, cache.block_size):
            raise does_not_fit(asked, positions)


def positions_needed(facts: ModelFacts, max_sequence_len: int, block_size: int) -> int:
    """Cache positions for one sequence. Blocks that no window reaches any more are given back while it runs."""
    if facts.attention_window is None:
        return max_sequence_len
    num_seen = -(-(facts.attention_window - 1) // block_size) + 1
    return min(max_sequence_len, num_seen * block_size)


def does_not_fit(max_sequence_len: int, positions: int) -> StartError:
    """The error for a sequence that is longer than the cache."""
    return StartError(
        f"--max-total-tokens {max_sequence_len} does not fit into a cache of {positions} tokens; "
        "lower it, free memory or raise --max-batch-total-tokens"
    )
