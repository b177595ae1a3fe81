"""FAULT HOOKS: what tests make a shard do wrong on purpose. Nothing here runs unless `--fault` was given.

`--fault crash-on-token:ID` kills the process when a plan admits a sequence whose prompt holds this token.
`--fault slow-on-token:ID:SECONDS` makes a step that admits this token take so long.
`--fault kernel-on-token:ID` makes a step that admits this token find no kernel to sample with; `:RANK` after it, on
this rank only.
`--fault file:PATH` does, once, what the file `PATH-RANK` says when it appears, and removes it: `count`, `nan`,
`vocabulary`, `differ` and `epoch` spoil the next outcome that has tokens, `hang` stops stepping for good.
`--fault hold:PATH:POSITION` holds streams in their middle while the file `PATH` exists: a step waits that computes this
position of a sequence or a later one. It waits two seconds at most, so that it is slow and does not count as hung. A
shard that starts waits until the file is gone.
`--fault hold-blocks:PATH` has blocks that were announced to another shard sent when the file `PATH` is gone.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.pending import Launched
from penstock_server.engine.plan import Plan
from penstock_server.engine.sampling import Sampled
from penstock_server.engine.step import Step
from penstock_server.pb import engine_pb2 as pb

logger = logging.getLogger(__name__)

_FOREVER_S = 1e9
_LONGEST_HELD_STEP_S = 2.0
_LOOK_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults to cause in this shard; none by default."""

    crash_on: int | None = None
    slow_on: int | None = None
    slow_s: float = 0.0
    no_kernel_on: int | None = None
    order_file: Path | None = None
    hold_file: Path | None = None
    hold_from: int = 0
    hold_blocks_file: Path | None = None

    def before_start(self) -> None:
        """Called once, before the shard says that it is ready."""
        _wait_while_there(self.hold_file, _FOREVER_S)

    def before_blocks(self) -> None:
        """Called before blocks are sent to another shard."""
        _wait_while_there(self.hold_blocks_file, _FOREVER_S)

    def before_step(self, plan: Plan) -> None:
        """Called with every plan that is about to run."""
        if any(span.start + span.length > self.hold_from for span in plan.spans):
            _wait_while_there(self.hold_file, _LONGEST_HELD_STEP_S)
        admitted = _admitted(plan)
        if self.crash_on in admitted:
            _die()
        if self.slow_on in admitted:
            time.sleep(self.slow_s)
        if self._ordered(("hang",)):
            time.sleep(_FOREVER_S)

    def before_sampling(self, plan: Plan) -> None:
        """Called when a plan is about to sample; raises what Triton does for a kernel that needs too much."""
        if self.no_kernel_on in _admitted(plan):
            from triton.runtime.errors import OutOfResources

            logger.warning("FAULT HOOK: kernel")
            raise OutOfResources(2, 1, "shared memory")

    def spoil(self, message: pb.Outcome) -> None:
        """Make an outcome wrong before it is sent, if that was ordered and the outcome has tokens."""
        if message.sampled_checksum and (kind := self._ordered(tuple(_SPOILERS))):
            _SPOILERS[kind](message)

    def _ordered(self, kinds: tuple[str, ...]) -> str | None:
        """The order in the file if it is one of these; it is carried out once."""
        if self.order_file is None or not self.order_file.exists():
            return None
        kind = self.order_file.read_text()
        if kind not in kinds:
            return None
        self.order_file.unlink()
        logger.warning("FAULT HOOK: %s", kind)
        return kind


class FaultyEngine(Engine):
    """An engine with faults."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        super().__init__(
            engine.model,
            engine.cache,
            engine.slots,
            engine.group,
            engine.description,
            engine.graphs,
            engine.prompt_graphs,
            engine.drafter,
        )
        # Such a step samples in C, where no fault comes before it.
        self._plain = None
        self._faults = faults
        self._plan = Plan(0, 0)
        faults.before_start()

    def launch(self, plan: Plan) -> Launched:
        self._faults.before_step(plan)
        self._plan = plan
        return super().launch(plan)

    def _sample(self, logits: torch.Tensor, step: Step, masks: GrammarMasks | None) -> Sampled:
        self._faults.before_sampling(self._plan)
        return super()._sample(logits, step, masks)


def wrapping(faults: Faults | None) -> Callable[[Engine], Engine]:
    """Returns a function that gives an engine these faults."""
    return (lambda engine: engine) if faults is None else (lambda engine: FaultyEngine(engine, faults))


def parse(specs: Sequence[str], rank: int) -> Faults:
    """`--fault` flags to what they mean for this rank."""
    faults = Faults()
    for spec in specs:
        kind, _, value = spec.partition(":")
        match kind, value.split(":"):
            case "crash-on-token", [token]:
                faults = replace(faults, crash_on=int(token))
            case "slow-on-token", [token, seconds]:
                faults = replace(faults, slow_on=int(token), slow_s=float(seconds))
            case "kernel-on-token", [token, *only] if str(rank) in only or not only:
                faults = replace(faults, no_kernel_on=int(token))
            case "kernel-on-token", [_, _]:
                pass
            case "hold", [path, position]:
                faults = replace(faults, hold_file=Path(path), hold_from=int(position))
            case "hold-blocks", [path]:
                faults = replace(faults, hold_blocks_file=Path(path))
            case "file", [path]:
                faults = replace(faults, order_file=Path(f"{path}-{rank}"))
            case _:
                raise StartError(f"--fault {spec}: there is no such fault hook")
    if specs:
        logger.warning("FAULT HOOKS are on: %s", " ".join(specs))
    return faults


def _wait_while_there(file: Path | None, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while file is not None and file.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _admitted(plan: Plan) -> set[int]:
    """Tokens of prompts. Generated ones do not count: after a replay, one drawn at random would cause the fault."""
    return {token for admit in plan.admitted for token in admit.token_ids[: admit.prompt_len]}


def _die() -> None:
    logger.warning("FAULT HOOK: crash")
    os.kill(os.getpid(), signal.SIGKILL)


def _drop_a_token(message: pb.Outcome) -> None:
    for column in (message.sampled_slots, message.sampled_ids, message.sampled_logprobs):
        del column[-1:]


def _set_logprob(message: pb.Outcome) -> None:
    message.sampled_logprobs[:1] = [float("nan")] * bool(message.sampled_logprobs)


def _leave_vocabulary(message: pb.Outcome) -> None:
    message.sampled_ids[:1] = [2**31] * bool(message.sampled_ids)


def _change_checksum(message: pb.Outcome) -> None:
    message.sampled_checksum ^= 1


def _age(message: pb.Outcome) -> None:
    message.epoch -= 1


_SPOILERS = {
    "count": _drop_a_token,
    "nan": _set_logprob,
    "vocabulary": _leave_vocabulary,
    "differ": _change_checksum,
    "epoch": _age,
}
