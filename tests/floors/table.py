"""The floors of every tree of sources, lowest first. A new file belongs to exactly one."""

from pathlib import Path

from floors.python_imports import read_python
from floors.tree import Floor, Tree

_ROOT = Path(__file__).parents[2]

SERVER = Tree(
    "server",
    _ROOT / "server" / "penstock_server",
    read_python,
    (
        Floor("base", ("__init__.py", "base/")),
        # Facts of models.
        Floor("architectures", ("architectures/",)),
        Floor("files", ("files/",)),
        Floor("network", ("network/",)),
        # `watermark` is also for users, who find the marks in texts: its path is documented.
        Floor("engine", ("engine/", "watermark.py")),
        Floor("load", ("load/",)),
        # Protobuf ends here.
        Floor("rpc", ("rpc/", "pb/")),
        # `python -m penstock_server` and `python -m penstock_server.resolve`.
        Floor("process", ("process/", "__main__.py", "resolve.py")),
    ),
)

TREES: tuple[Tree, ...] = (SERVER,)
