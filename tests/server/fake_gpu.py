"""A GPU that is not there: a shard loads, captures and steps on it, and every op is watched.

Tensors are fake (`watched_ops`). Kernels of Triton do not run on them: a launch only says which tensors it is given. So
the host's side of each op is the real one, and what a kernel computes is the subject of other tests. Graphs, events and
the memory of the device are stand-ins.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from driver import engine_config, opened_both
from kernel_variants.recorder import SERVED
from kernel_variants.variant import Variant, variant_of
from penstock_kernels.gpu.tiles import SHARED_HOPPER, processor
from penstock_server.engine.engine import Engine
from penstock_server.engine.pending import PendingOutcome
from penstock_server.load import eagle, load_engine, medusa, mtp, read_model
from penstock_server.network.weights import allocate
from quick_fakes import QuickFakeMode
from torch._subclasses import FakeTensor
from watched_ops import Captured, WatchedOps

_NUM_MULTIPROCESSORS = 132


@dataclass(frozen=True)
class _Address:
    """The attributes that Triton reads of a tensor: memory of its own begins at 0."""

    dtype: torch.dtype
    place: int

    def data_ptr(self) -> int:
        return self.place


def _standing_in(value: Any) -> Any:
    """For a tensor, which has no address."""
    if not isinstance(value, torch.Tensor):
        return value
    return _Address(value.dtype, int(value.storage_offset()) * value.element_size())


class FakeGpu:
    """To be used as `with gpu.on():`; a shard and all its steps belong inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops = WatchedOps()
        # The variants of launches that only compile, and those of all other launches.
        self.compiled: set[Variant] = set()
        self.launched: set[Variant] = set()
        self._patch = monkeypatch
        self._replace_memory()
        self._replace_graphs()
        self._replace_launches()
        self._replace_numpy()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Every op from here on is watched."""
        processor.cache_clear()
        with ExitStack() as stack:
            stack.enter_context(QuickFakeMode())
            stack.enter_context(self.ops)
            yield
        processor.cache_clear()
        SERVED.update(self.compiled, self.launched)

    def engine(self, folder: Path, is_compiled: bool = False, **options: Any) -> Engine:
        """A shard's engine, loaded as on a GPU; weights and outcomes have no numbers.

        `is_compiled`: its kernels are compiled first, for `check_variants`; half of the time that it takes.
        """
        config = engine_config(folder, device="cuda", **options)
        with self._patch.context() as patch:
            if not is_compiled:
                patch.setattr(load_engine, "compile_kernels", lambda *_: None)
            engine = load_engine.load_engine(config, *opened_both(config))
        launch = engine.launch

        def watched(plan: Any) -> Any:
            with self.ops.stepping():
                pending = launch(plan)
                assert isinstance(pending, PendingOutcome)
                finish = pending.rest
                pending.rest = None if finish is None else self._watched(finish)
            return pending

        engine.launch = watched  # type: ignore[method-assign]
        return engine

    def check_variants(self) -> None:
        """Nothing was compiled when it was needed."""
        assert self.compiled, "the engine was compiled"
        late = sorted(variant.label for variant in self.launched - self.compiled)
        assert not late, "\n".join(late)

    def _watched(self, finish: Any) -> Any:
        def run() -> None:
            with self.ops.stepping():
                finish()

        return run

    def _replace_memory(self) -> None:
        set_cuda = self._set_cuda
        set_cuda("current_device", lambda: 0)
        memory = self.ops.memory
        set_cuda("mem_get_info", lambda _device=None: (memory.total - memory.allocated, memory.total))
        set_cuda("memory_allocated", lambda _device=None: memory.allocated)
        set_cuda("max_memory_allocated", lambda _device=None: memory.peak)
        set_cuda("reset_peak_memory_stats", lambda _device=None: memory.reset_peak())
        set_cuda("empty_cache", lambda: None)
        set_cuda("get_device_capability", lambda _device=None: (9, 0))
        properties = SimpleNamespace(
            multi_processor_count=_NUM_MULTIPROCESSORS,
            shared_memory_per_block_optin=SHARED_HOPPER,
            name="none",
        )
        set_cuda("get_device_properties", lambda _device: properties)
        # Where torch was told that there is a GPU, it would ask the driver for it.
        self._patch.setattr(load_engine, "choose_device", lambda _config: torch.device("cuda", 0))
        for module in (read_model, eagle, medusa, mtp):
            self._patch.setattr(
                module, "load_weights", lambda model, _file, device, *_: allocate(model, device)
            )
        self._patch.setattr(read_model, "fill_with_noise", allocate)
        self._patch.setattr(eagle, "_token_ids", lambda head, _size: torch.arange(head.draft_vocab_size))
        plain = torch.tensor

        def tensor(values: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            made = plain(values, **options)
            return made.pin_memory() if pin_memory else made

        self._patch.setattr(torch, "tensor", tensor)

    def _replace_numpy(self) -> None:
        plain = torch.Tensor.numpy

        def numpy(tensor: torch.Tensor) -> Any:
            if not isinstance(tensor, FakeTensor):
                return plain(tensor)
            assert tensor.device.type == "cpu", "numbers of a GPU are copied to the host first"
            return np.array(tensor.tolist())

        self._patch.setattr(torch.Tensor, "numpy", numpy)

    def _replace_graphs(self) -> None:
        ops = self.ops

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.mark = 0

            def record(self) -> None:
                self.mark = ops.mark()

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                ops.wait(self.mark)

            def elapsed_time(self, _other: Any) -> float:
                return 0.0

        class Graph:
            def __init__(self) -> None:
                self.captured: Captured | None = None

            def pool(self) -> str:
                return "pool"

            def replay(self) -> None:
                assert self.captured is not None, "it was captured"
                ops.replay(self.captured)

            def reset(self) -> None:
                self.captured = None

        @contextmanager
        def capture(graph: Graph, pool: Any = None) -> Iterator[None]:
            with ops.capturing() as graph.captured:
                yield

        self._set_cuda("Event", Event)
        self._set_cuda("CUDAGraph", Graph)
        self._set_cuda("graph", capture)
        self._set_cuda("synchronize", lambda _device=None: ops.wait_for_all())

    def _replace_launches(self) -> None:
        from triton.runtime.jit import JITFunction

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            # A tensor descriptor has its tensor inside.
            given = [getattr(value, "base", value) for value in (*args, *options.values())]
            self.ops.launch([value for value in given if isinstance(value, torch.Tensor)])
            seen = self.compiled if warmup else self.launched
            seen.add(variant_of(kernel, tuple(map(_standing_in, args)), options))

        self._patch.setattr(JITFunction, "run", run)

    def _set_cuda(self, name: str, value: Any) -> None:
        self._patch.setattr(torch.cuda, name, value)
