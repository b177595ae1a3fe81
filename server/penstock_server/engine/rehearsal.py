"""Runs the steps of `warm_up` before the engine serves, for real or in launches that only compile."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.graphed_drafter import GraphedDrafter
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.warm_up import Scene, first_scene, plans, scenes_of_kernels

logger = logging.getLogger(__name__)


class Rehearsal:
    """The rehearsal of one engine, which has no slots in use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.slots.limits

    def warm_up(self) -> None:
        """Run steps through the real path, so that the first request pays for no initialisation.

        On a GPU these are all that differ in what they launch, so that nothing is compiled while requests wait.
        """
        first = first_scene(self._limits)
        if first is not None:
            with self._prompts_free():  # it shows the ranks which sums a pass makes
                errors = self.play(first)
            for error in errors:
                raise StartError(f"the first step failed: {error.message}")
        if self._engine.slots.device.type == "cuda":
            for scene in self.scenes():
                for error in self.play(scene):
                    logger.warning(
                        "a step of the warm-up failed, and requests like it will: %s", error.message
                    )

    @torch.inference_mode()
    def compile(self) -> None:
        """Launch all that the warm-up and the graphs do. For a context in which launches only compile."""
        engine = self._engine
        with self._all_free():
            for scene in self.scenes():
                self.play(scene)
        for captured in engine.all_graphs():
            captured.rehearse()
        engine.drafter.rehearse()
        engine.slots.adapters.rehearse()

    def play(self, scene: Scene) -> list[SlotError]:
        """Run the steps of a scene; the errors of the first that has any."""
        with self._drafting_freely():
            for plan in plans(scene, self._limits):
                errors = self._engine.launch(plan).resolve().errors
                if errors:
                    break
            self._engine.clear()
        return errors

    def scenes(self) -> Iterator[Scene]:
        """The scenes that launch every variant of a kernel that this engine may need."""
        facts, can_draft = self._engine.model.facts, self._engine.slots.can_draft
        if not isinstance(facts, ModelSpec):
            return scenes_of_kernels(self._limits, False, can_draft)
        return scenes_of_kernels(self._limits, facts.moe is not None, can_draft, facts.num_chosen)

    @contextmanager
    def _drafting_freely(self) -> Iterator[None]:
        """Drafts are made in this context, whether they pay or not."""
        engine = self._engine
        limited, engine.drafter = engine.drafter, unlimited(engine.drafter)
        try:
            yield
        finally:
            engine.drafter = limited

    @contextmanager
    def _all_free(self) -> Iterator[None]:
        """All steps run op by op in this context, and so do the passes of what drafts."""
        engine, drafter = self._engine, unlimited(self._engine.drafter)
        graphs, engine.graphs = engine.graphs, None
        passes = drafter.graphs if isinstance(drafter, GraphedDrafter) else None
        try:
            if isinstance(drafter, GraphedDrafter):
                drafter.graphs = None
            with self._prompts_free():
                yield
        finally:
            engine.graphs = graphs
            if isinstance(drafter, GraphedDrafter):
                drafter.graphs = passes

    @contextmanager
    def _prompts_free(self) -> Iterator[None]:
        """Steps with prompts run op by op in this context."""
        engine = self._engine
        graphs, engine.prompt_graphs = engine.prompt_graphs, None
        try:
            yield
        finally:
            engine.prompt_graphs = graphs
