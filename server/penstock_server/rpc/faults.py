"""FAULT HOOKS: what tests make a shard do wrong on purpose. Nothing here runs unless `--fault` was given.

`--fault crash-on-token:ID` kills the process when a plan admits a sequence whose prompt holds this token.
`--fault slow-on-token:ID:SECONDS` makes a step that admits this token take so long.
`--fault file:PATH` does, once, what the file `PATH-RANK` says when it appears, and removes it: `count`, `nan`,
`vocabulary`, `differ` and `epoch` spoil the next outcome that has tokens, `hang` stops stepping for good.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.pending import PendingOutcome
from penstock_server.engine.plan import Plan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.service import EngineService
from penstock_server.rpc.step_loop import StepLoop

logger = logging.getLogger(__name__)

_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Faults:
    """What is to go wrong in this shard; nothing by default."""

    crash_on: int | None = None
    slow_on: int | None = None
    slow_s: float = 0.0
    order_file: Path | None = None

    def before_step(self, plan: Plan) -> None:
        """Called with every plan that is about to run."""
        # Generated tokens do not count: after a replay a token drawn at random would otherwise cause the fault.
        admitted = {token for admit in plan.admitted for token in admit.token_ids[: admit.prompt_len]}
        if self.crash_on in admitted:
            _die()
        if self.slow_on in admitted:
            time.sleep(self.slow_s)
        if self._ordered(("hang",)):
            time.sleep(_FOREVER_S)

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
            engine.model, engine.cache, engine.slots, engine.group, engine.description, engine.graphs
        )
        self._faults = faults

    def launch(self, plan: Plan) -> PendingOutcome:
        self._faults.before_step(plan)
        return super().launch(plan)


class FaultyService(EngineService):
    """A service with faults in what it sends."""

    def __init__(self, loop: StepLoop, faults: Faults) -> None:
        super().__init__(loop)
        self._faults = faults

    def Run(self, plans: Iterator[pb.Plan], context: grpc.ServicerContext) -> Iterator[pb.Outcome]:
        for outcome in super().Run(plans, context):
            self._faults.spoil(outcome)
            yield outcome


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
            case "file", [path]:
                faults = replace(faults, order_file=Path(f"{path}-{rank}"))
            case _:
                raise StartError(f"--fault {spec}: there is no such fault hook")
    if specs:
        logger.warning("FAULT HOOKS are on: %s", " ".join(specs))
    return faults


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
