"""A GPU that is not there: a shard loads, captures and steps on it, and every op is watched.

Tensors are fake (`watched_ops`). Kernels of Triton do not run on them: a launch only says which tensors it is given. So
the host's side of each op is the real one, and what a kernel computes is the subject of other tests. Graphs, events and
the memory of the device are stand-ins.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from driver import engine_config
from penstock_kernels.gpu.tiles import SHARED_HOPPER, processor
from penstock_server.engine.engine import Engine
from penstock_server.files.model_folder import open_folder
from penstock_server.load import load_engine, read_model
from penstock_server.network.weights import allocate
from torch._subclasses import FakeTensor, FakeTensorMode
from watched_ops import Captured, WatchedOps

_NUM_MULTIPROCESSORS = 132


class FakeGpu:
    """To be used as `with gpu.on():`; a shard and all its steps belong inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops = WatchedOps()
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
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(self.ops)
            yield
        processor.cache_clear()

    def engine(self, folder: Path, **options: Any) -> Engine:
        """A shard's engine, loaded as on a GPU; weights and outcomes have no numbers."""
        config = engine_config(folder, device="cuda", load_format="dummy", **options)
        engine = load_engine.load_engine(config, open_folder(folder, "dummy", config.model_impl))
        launch = engine.launch

        def watched(plan: Any) -> Any:
            with self.ops.stepping():
                pending = launch(plan)
                finish = pending.rest
                pending.rest = None if finish is None else self._watched(finish)
            return pending

        engine.launch = watched  # type: ignore[method-assign]
        return engine

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
        self._patch.setattr(read_model, "fill_with_noise", allocate)
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

        def run(_kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            given = [*args, *options.values()]
            self.ops.launch([value for value in given if isinstance(value, torch.Tensor)])

        self._patch.setattr(JITFunction, "run", run)

    def _set_cuda(self, name: str, value: Any) -> None:
        self._patch.setattr(torch.cuda, name, value)
