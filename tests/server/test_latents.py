"""The cache of latents: its size, the same on every rank, and what is refused because nobody computes it."""

from collections.abc import Callable
from typing import Any

import pytest
import thread_ranks
import torch
from driver import Driver, Sequence, execute_on, make_engine
from family_models import LATENT
from penstock_server.architectures.spec import CacheShape, KvHeads
from penstock_server.base.errors import StartError
from penstock_server.network.kv_cache import block_bytes

# Sizes that fill vectors.
_IN_C = {**LATENT, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}


def test_a_token_takes_one_vector_in_every_layer() -> None:
    shape = CacheShape((KvHeads(1, 512 + 64),) * 61, num_tensors=1)
    assert block_bytes(shape, 1, torch.bfloat16) == 61 * 1152
    assert block_bytes(CacheShape((KvHeads(8, 128),) * 61), 1, torch.bfloat16) == 61 * 4096


def test_every_rank_has_the_whole_latents(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model("youtu", **LATENT).folder
    with thread_ranks.engines(folder, 4, monkeypatch) as ranks:
        # One tensor of 20 + 6 numbers a token, and the spare block.
        assert {tuple(rank.cache.pools[0].shape) for rank in ranks} == {(3, 1, 65, 4, 1, 26)}
        assert {rank.model.num_heads for rank in ranks} == {2}


def test_a_poisoned_cache_and_copied_blocks_change_no_token(saved_model: Callable[..., Any]) -> None:
    folder, outputs = saved_model("youtu", **LATENT).folder, []
    for is_poisoned in (False, True):
        engine = make_engine(folder, is_poisoned=is_poisoned)
        sequences = [Sequence([7 * n + k for k in range(5 + 3 * n)], 8) for n in range(4)]
        Driver(execute_on(engine)).run(sequences, seed=3)
        outputs.append([sequence.output for sequence in sequences])
    assert outputs[0] == outputs[1]
    source, target = sequences[0].left_blocks[0], 63
    engine.cache.copy_blocks([source], [target])
    assert torch.equal(engine.cache.pools[0][:, :, source], engine.cache.pools[0][:, :, target])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention_backend": "native"},
            "--attention-backend native: it cannot do latents of 20 and 6 numbers",
        ),
        (
            {"attention_backend": "triton"},
            "--attention-backend triton: its kernels need a CUDA device, this one is cpu",
        ),
        (
            {"attention_backend": "flashinfer"},
            "--attention-backend flashinfer: this model attends to latents, which only triton, native and",
        ),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: latents are kept in the model's type"),
        ({"batch_invariant": True}, "--batch-invariant: the products of attention over latents"),
    ],
)
def test_what_nobody_computes_is_refused(
    saved_model: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        make_engine(saved_model("youtu", **LATENT).folder, **options)


def test_what_vectors_fill_is_in_c_unless_the_reference_is_asked_for(
    saved_model: Callable[..., Any],
) -> None:
    folders = {
        kind: saved_model("youtu", **sizes).folder for kind, sizes in (("odd", LATENT), ("even", _IN_C))
    }
    names = {
        (kind, asked): make_engine(folder, attention_backend=asked).description.attention_backend
        for kind, folder in folders.items()
        for asked in ("auto", "reference")
    }
    assert names.pop(("even", "auto")) == "native"
    assert set(names.values()) == {"reference"}


def test_c_gives_the_tokens_of_the_reference_and_steps_are_recorded(
    saved_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder, outputs = saved_model("youtu", **_IN_C).folder, []
    caplog.set_level("INFO")
    for name in ("native", "reference"):
        caplog.clear()
        engine = make_engine(folder, attention_backend=name)
        sequences = [Sequence([7 * n + k for k in range(5 + 9 * n)], 12) for n in range(4)]
        Driver(execute_on(engine)).run(sequences, seed=3)
        outputs.append([sequence.output for sequence in sequences])
        assert ("decode steps are not recorded" in caplog.text) == (name == "reference")
    assert outputs[0] == outputs[1]
