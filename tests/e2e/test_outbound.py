"""No connection to anywhere else, ever: serving in a network of its own, and every connect that is made."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from e2e.conftest import Launch
from e2e.launched import Launched

_LOOPBACK_ONLY = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
_CONNECT = re.compile(
    r"connect\(\d+, \{sa_family=(AF_INET6?), .*?(?:inet_addr\(|inet_pton\(AF_INET6, )\"([^\"]+)\""
)


def _is_permitted(command: tuple[str, ...]) -> bool:
    return (
        shutil.which(command[0]) is not None
        and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )


def _ask(launched: Launched, *prefix: str) -> str:
    """A completion, asked for from inside of the server's network."""
    assert launched.address
    host, port = launched.address
    script = (
        "import sys, urllib.request as r; q = r.Request(sys.argv[1], sys.argv[2].encode(), "
        "{'Content-Type': 'application/json'}); print(r.urlopen(q, timeout=60).read().decode())"
    )
    body = '{"prompt": "once", "max_tokens": 3}'
    command = [*prefix, "python3", "-c", script, f"http://{host}:{port}/v1/completions", body]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_it_serves_in_a_network_that_is_loopback_and_nothing_else(launch: Launch, model: Path) -> None:
    if not _is_permitted(_LOOPBACK_ONLY):
        pytest.skip("making a network namespace is not permitted here")
    launched = launch(f"--model-id={model}", "--num-shard=2", under=_LOOPBACK_ONLY).wait_until_serving()
    reply = _ask(launched, "nsenter", f"--target={launched.process.pid}", "--net")
    assert '"finish_reason":"length"' in reply


def test_no_process_connects_to_anything_but_loopback(launch: Launch, model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "connects"
    # Its own child traces, so that the process that was started is the launcher; only connects are stopped at.
    strace = ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect", "-o", str(trace))
    if not _is_permitted(strace):
        pytest.skip("strace is not permitted here")
    launched = launch(f"--model-id={model}", "--num-shard=2", under=strace).wait_until_serving()
    assert '"finish_reason":"length"' in _ask(launched)
    launched.process.terminate()
    launched.end()
    text = trace.read_text()
    assert "AF_UNIX" in text, "nothing was traced"
    addresses = {address for _, address in _CONNECT.findall(text)}
    assert {address for address in addresses if not address.startswith("127.") and address != "::1"} == set()
