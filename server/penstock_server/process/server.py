"""Composition root of a shard process: engine, step loop, gRPC server, until a signal stops it."""

import gc
import logging
import time

from penstock_server.base.config import ServerConfig
from penstock_server.files.folders import Folders
from penstock_server.load.residence import Residence
from penstock_server.process.stop_pipe import StopPipe
from penstock_server.rpc import faults as faulty
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.changes import Changes
from penstock_server.rpc.conversion import Encoding, awake_bytes_to_pb, description_to_pb
from penstock_server.rpc.endpoint import open_endpoint
from penstock_server.rpc.listeners import Listeners
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.stepping_thread import SteppingThread
from penstock_server.rpc.transfer.block_server import BlockServer
from penstock_server.rpc.transfer.fetching import Fetcher
from penstock_server.rpc.transfer.roles import check_role

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 1.0


def serve(config: ServerConfig, folders: Folders, begun: float) -> int:
    """Load and serve until SIGTERM; returns the exit code. `begun`: perf_counter at the start, for the log."""
    faults = faulty.parse(config.faults, config.group.rank) if config.faults else None
    thread = SteppingThread()
    residence = thread.call(Residence, config, folders, faulty.wrapping(faults))
    description = residence.description
    check_role(config.role, description)
    stop_pipe = StopPipe()
    stop_pipe.install_signals(has_parent=config.parent_pipe_fd is not None)
    encoding = Encoding(config.group.tells_tokens, None if faults is None else faults.spoil)
    described = description_to_pb(description)
    described.role = config.role
    described.awake_bytes.CopyFrom(awake_bytes_to_pb(residence.awake_bytes))
    blocks = None
    if config.blocks is not None:
        hold = faulty.Faults().before_blocks if faults is None else faults.before_blocks
        blocks = BlockServer(config.blocks, config.tls, hold)
        described.block_source.CopyFrom(blocks.source)
    changes = Changes(residence, described)
    calls = Calls(residence, changes, Fetcher(config.tls))
    listeners = Listeners(config.uds_path, config.tcp)
    endpoint = open_endpoint(config.endpoint, listeners, described, encoding, calls)
    loop = StepLoop(residence.engine, endpoint.streams, stop_pipe.stop, thread)
    changes.begin(loop, endpoint.describe)
    calls.begin(loop)
    loop.start()
    if blocks is not None:
        blocks.start(loop)
    endpoint.start()
    limits = description.limits
    logger.info(
        "ready after %.2f s: %s, %s on %s, rank %d of %d, %d blocks of %d",
        time.perf_counter() - begun, folders.model.model_type, description.dtype, description.device,
        config.group.rank, config.group.world_size, limits.num_blocks, limits.block_size,
    )  # fmt: skip
    # The objects that exist now stay: without this, the garbage collector took 6% of a busy shard's time to visit them.
    gc.freeze()
    stop_pipe.wait()
    if blocks is not None:
        blocks.close()
    endpoint.stop(_STOP_GRACE_S)
    config.uds_path.unlink(missing_ok=True)
    if loop.failure is not None:
        raise loop.failure
    _close(residence, thread)
    logger.info("stopped")
    return 0


def _close(residence: Residence, thread: SteppingThread) -> None:
    """When the last step is computed. One that hangs is not waited for: the process ends anyway."""
    try:
        thread.start(residence.close).result(_STOP_GRACE_S)
    except TimeoutError:
        logger.warning("a step still runs")
