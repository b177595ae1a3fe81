"""Penstock in Ray Serve: `serve run examples.ray_serve:app`, where Penstock and `ray[serve]` are installed.

Each replica of the deployment is a server of its own: a launcher whose flags are in the variable PENSTOCK_FLAGS, on a
Unix socket. Ray Serve passes requests and streams on to it, and starts and ends replicas by the requests that wait and
run in their queues, as each server counts them itself.
"""

import math
import os
import shlex
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve

FLAGS = shlex.split(os.environ.get("PENSTOCK_FLAGS", ""))
GPUS = int(os.environ.get("PENSTOCK_GPUS", "0"))
MAX_REPLICAS = int(os.environ.get("PENSTOCK_MAX_REPLICAS", "4"))
# Requests that one server is to have, running or waiting, before another is started.
REQUESTS_PER_REPLICA = int(os.environ.get("PENSTOCK_REQUESTS_PER_REPLICA", "16"))
OF_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
# What Ray Serve sends itself, with the id of the request that it passed on.
OF_RAY = {"date", "server", "x-request-id"}

http = FastAPI()


def by_queue(context: Any) -> tuple[int, dict[str, Any]]:
    """How many replicas there are to be, and no state."""
    requests = sum(context.aggregated_metrics.get("requests", {}).values())
    wanted = math.ceil(requests / REQUESTS_PER_REPLICA)
    return max(1, min(wanted, MAX_REPLICAS)), {}


# Ray Serve copies the class with what is defined above it.
def _kept(headers: Mapping[str, str], but: set[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in but}


async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for part in answer.content.iter_any():
            yield part


@serve.deployment(
    ray_actor_options={"num_cpus": 1, "num_gpus": GPUS},
    # Penstock has a queue of its own, with limits that it tells clients.
    max_ongoing_requests=1000,
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": MAX_REPLICAS,
        "upscale_delay_s": 5,
        "downscale_delay_s": 60,
        "metrics_interval_s": 1,
        "look_back_period_s": 2,
        "policy": {"policy_function": by_queue},
    },
)
@serve.ingress(http)
class Server:
    """One server, as long as its actor lives."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-serve-")
        self._socket = f"{self._folder.name}/http.sock"
        launcher = Path(sysconfig.get_path("scripts")) / "launcher"
        # It drains and ends when the actor ends, whatever ends that.
        self._launcher = subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", launcher, *FLAGS, f"--uds={self._socket}"]
        )
        while not self._listens():
            self.check_health()
            time.sleep(0.2)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(self._socket) == 0

    @cached_property
    def _client(self) -> aiohttp.ClientSession:
        """Made in the loop that serves requests."""
        connector, patience = aiohttp.UnixConnector(self._socket, limit=0), aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession("http://penstock", connector=connector, timeout=patience)

    def check_health(self) -> None:
        """Ray Serve replaces a replica for which this raises."""
        if (code := self._launcher.poll()) is not None:
            raise RuntimeError(f"the launcher ended with exit code {code}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray Serve asks each replica for, and gives to `by_queue`."""
        async with self._client.get("/stats") as answer:
            stats = await answer.json()
        return {"requests": stats["waiting"] + stats["running"]}

    @http.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def pass_on(self, request: Request) -> StreamingResponse:
        """The server's answer to a request, as it comes; a client that leaves ends it."""
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        body = await request.body()
        answer = await self._client.request(
            request.method, target, headers=_kept(request.headers, OF_CONNECTION), data=body
        )
        return StreamingResponse(_parts(answer), answer.status, _kept(answer.headers, OF_CONNECTION | OF_RAY))


app = Server.bind()  # type: ignore[attr-defined]
