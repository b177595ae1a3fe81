"""After the warm-up no drafter needs a variant of a kernel that is not compiled yet. Launches are recorded, not run."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_model import noisy_heads
from drafting_driver import DraftingDriver
from driver import execute_on
from family_models import CASES, LATENT
from open_spans import Told, generate
from parallel_oracle import noise, saved_noise
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Plan
from test_eagle import random_head
from test_mtp import make

pytest.importorskip("triton")
from kernel_variants.recorder import recording_only
from test_warm_up import NUM_BLOCKS, NUM_LAYERS, NUM_SLOTS, mixture, nothing_new, warm_engine

# These sizes differ from those of the model, so that the kernels differ, too.
SMALL = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "hidden_size": 48}
# A folder, and the options of an engine that drafts for it.
Made = tuple[Path, dict[str, Any]]


def _llama(saved_model: Callable[..., Any]) -> Path:
    folder: Path = saved_model("llama", num_hidden_layers=NUM_LAYERS).folder
    return folder


def _history(saved_model: Callable[..., Any], _to: Path) -> Made:
    return _llama(saved_model), {}


def _latents(saved_model: Callable[..., Any], _to: Path) -> Made:
    return saved_model("youtu", **LATENT).folder, {}


def _model(saved_model: Callable[..., Any], _to: Path) -> Made:
    return _llama(saved_model), {"draft_model_path": saved_model("llama", **SMALL).folder}


def _experts(saved_model: Callable[..., Any], _to: Path) -> Made:
    return _llama(saved_model), {"draft_model_path": saved_model("qwen3_moe", **SMALL).folder}


def _eagle(saved_model: Callable[..., Any], to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": random_head(to / "head")[0]}


def _parallel(saved_model: Callable[..., Any], to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": saved_noise(to / "head", noise())}


def _medusa(saved_model: Callable[..., Any], to: Path) -> Made:
    return _llama(saved_model), {"draft_model_path": noisy_heads(72, to / "heads")}


def _mtp(saved_model: Callable[..., Any], to: Path) -> Made:
    return make(saved_model, to / "mtp", "glm4_moe").folder, {"drafter": "mtp"}


def _states(saved_model: Callable[..., Any], _to: Path) -> Made:
    return saved_model(**CASES["falcon_h1"]).folder, {"num_draft_states": 40}


def _selective_states(saved_model: Callable[..., Any], _to: Path) -> Made:
    return saved_model(**CASES["jamba"]).folder, {"num_draft_states": 40}


DRAFTERS = [
    _history, _latents, _model, _experts, _eagle, _parallel, _medusa, _mtp, _states, _selective_states
]  # fmt: skip


def serve_drafts(engine: Engine) -> None:
    """Open decodes behind prompts of any length, alone and among others, in chunks, preempted."""
    blocks, execute = list(range(engine.slots.limits.max_blocks)), execute_on(engine)
    for length in (1, 2, 3, 4, 5, 8, 9, 17, 40):
        told = generate(execute, Told(), 0, [5] * length, 0, 5, blocks)
        execute(Plan(1, 3, retired=[0]))
        assert told.num_drafted > 0 or length < 2, "two tokens must repeat for those that look for them"
    driver = DraftingDriver(execute, engine.clear, NUM_SLOTS, NUM_BLOCKS)
    driver.play(mixture(engine.slots.limits.vocab_size, 40), random.Random(3))
    assert driver.num_drafted > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_need_no_new_variant(
    saved_model: Callable[..., Any], tmp_path: Path, kind: Callable[..., Made], dtype: str
) -> None:
    folder, options = kind(saved_model, tmp_path)
    with recording_only() as seen:
        engine = warm_engine(folder, dtype=dtype, **options)
        engine.drafter = unlimited(engine.drafter)
        with nothing_new(seen):
            serve_drafts(engine)
