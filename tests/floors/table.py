"""The floors of every tree of sources, lowest first. A new file belongs to exactly one."""

from pathlib import Path

from floors.python_imports import read_python
from floors.rust_imports import read_rust
from floors.tree import Floor, Tree

_ROOT = Path(__file__).parents[2]

SCHEDULER = Tree(
    "scheduler",
    _ROOT / "router" / "scheduler" / "src",
    read_rust,
    (
        # The words of its interface.
        Floor("words", ("request.rs", "plan.rs", "event.rs", "load.rs", "placement.rs", "config.rs")),
        # The data types from which the parts are made.
        Floor(
            "data",
            (
                *("window.rs", "step_time.rs", "queue.rs", "sent_plan.rs", "prefix_index.rs", "lru.rs"),
                *("snapshots.rs", "block_table.rs", "row.rs", "promises.rs", "keyed_tokens.rs"),
                *("cache_event.rs", "sequence.rs", "block_pool/", "running.rs", "output_lengths.rs"),
            ),
        ),
        # The parts of a scheduler, each with its own invariants, and of a plan that is being made.
        Floor(
            "parts",
            (
                *("adapters.rs", "backlog.rs", "sequences.rs", "memory/", "slots.rs", "pipeline.rs"),
                *("suspects.rs", "transfers.rs", "draft.rs", "pace.rs"),
            ),
        ),
        Floor(
            "scheduler",
            (
                *("scheduler.rs", "beside.rs", "admission.rs", "spans.rs", "groups.rs", "step.rs"),
                *("outcome.rs", "trial.rs", "rest.rs"),
            ),
        ),
        # Between schedulers.
        Floor("several", ("hand_over.rs", "leaving.rs", "pass_on.rs")),
        Floor("root", ("lib.rs",)),
    ),
)

ROUTER = Tree(
    "router",
    _ROOT / "router" / "src",
    read_rust,
    (
        Floor("base", ("base/",)),
        Floor("observe", ("observe/",)),
        Floor("block_events", ("block_events/",)),
        Floor("engine", ("engine/",)),
        Floor("text", ("text/",)),
        Floor("grammar", ("grammar/",)),
        Floor("chat", ("chat/",)),
        Floor("inference", ("inference/",)),
        Floor("http", ("http/",)),
        Floor("api", ("api/",)),
        # Over whole servers, in the place of shards.
        Floor("proxy", ("proxy/",)),
        # Protobuf of the API ends here.
        Floor("grpc", ("grpc/",)),
        Floor("admin", ("admin/",)),
        Floor(
            "root",
            (
                *("config.rs", "supervised.rs", "live_state.rs", "replica_groups.rs", "scheduler_config.rs"),
                *("serve_error.rs", "start.rs", "lib.rs"),
            ),
        ),
    ),
)

LAUNCHER = Tree(
    "launcher",
    _ROOT / "launcher" / "src",
    read_rust,
    (
        # What knows no flag: the machine, child processes, and the supervisor, which only decides.
        Floor(
            "base",
            (
                *("argv.rs", "hardware.rs", "last_error.rs", "layout.rs", "parent_pipe.rs", "ports.rs"),
                *("console.rs", "child.rs", "signals.rs", "supervisor/"),
            ),
        ),
        # The command line, with TGI's.
        Floor(
            "args",
            (
                *("args/", "tgi/accept.rs", "tgi/flags.rs", "tgi/storage.rs", "tgi/variables.rs"),
                *("words.rs", "flags_page.rs"),
            ),
        ),
        Floor("model", ("places.rs", "resolve.rs", "environment.rs")),
        # What flags mean for the processes.
        Floor("plan", ("plan/",)),
        Floor("processes", ("preflight.rs", "watch.rs", "forking/", "process.rs", "processes.rs")),
        # Several machines.
        Floor("nodes", ("nodes/",)),
        # Several models, as the loop sees them.
        Floor(
            "models",
            (
                "fleet/command_lines.rs",
                "fleet/devices.rs",
                "fleet/error.rs",
                "fleet/names.rs",
                "fleet/roster.rs",
            ),
        ),
        Floor("loop", ("report.rs", "runner.rs")),
        # The tasks of a launcher.
        Floor(
            "tasks",
            (
                *("start.rs", "fleet/mod.rs", "fleet/admin.rs", "fleet/launch.rs", "ray_driver.rs"),
                *("tgi/mod.rs", "tgi/check/"),
            ),
        ),
        Floor("root", ("main.rs",)),
    ),
)

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
        # Machines of a Ray cluster; it starts launchers, and imports nothing of a shard.
        Floor("cluster", ("cluster/",)),
    ),
)

KERNELS = Tree(
    "kernels",
    _ROOT / "kernels" / "penstock_kernels",
    read_python,
    (
        Floor("base", ("base/",)),
        Floor("reference", ("reference/",)),
        Floor("native", ("native/",)),
        Floor("gpu", ("gpu/",)),
        Floor("table", ("table.py",)),
        Floor("adapters", ("adapters/",)),
        Floor("ops", ("ops/",)),
        # The modules that callers import, and their choice of who computes attention.
        Floor("package", ("__init__.py", "backends.py")),
    ),
)

TREES: tuple[Tree, ...] = (SCHEDULER, ROUTER, LAUNCHER, SERVER, KERNELS)
