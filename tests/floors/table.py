"""The floors of every tree of sources, lowest first. A new file belongs to exactly one."""

from pathlib import Path

from floors.python_imports import read_python
from floors.tree import Floor, Tree

_REPOSITORY = Path(__file__).parents[2]

TREES: tuple[Tree, ...] = (
    Tree(
        "server",
        _REPOSITORY / "server" / "penstock_server",
        read_python,
        (
            Floor("base", ("__init__.py", "base/")),
            # Facts of models.
            Floor("architectures", ("architectures/",)),
            Floor("files", ("files/",)),
            Floor("network", ("network/",)),
            # The watermark is for those who read texts, too: its path is documented.
            Floor("engine", ("engine/", "watermark.py")),
            Floor("load", ("load/",)),
            # Protobuf ends here.
            Floor("rpc", ("rpc/", "pb/")),
            # `python -m penstock_server` and `python -m penstock_server.resolve`.
            Floor("process", ("process/", "__main__.py", "resolve.py")),
        ),
    ),
)
