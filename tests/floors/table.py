"""The floors of every tree of sources, lowest first. A new file belongs to exactly one."""

from pathlib import Path

from floors.python_imports import read_python
from floors.tree import Floor, Tree

_REPOSITORY = Path(__file__).parents[2]

TREES: tuple[Tree, ...] = (
    Tree(
        "kernels",
        _REPOSITORY / "kernels" / "penstock_kernels",
        read_python,
        (
            Floor("base", ("base/",)),
            Floor("reference", ("reference/",)),
            Floor("native", ("native/",)),
            Floor("gpu", ("gpu/",)),
            Floor("table", ("table.py",)),
            Floor("adapters", ("adapters/",)),
            Floor("ops", ("ops/",)),
            # What callers import, and their choice of who computes attention.
            Floor("package", ("__init__.py", "backends.py")),
        ),
    ),
)
