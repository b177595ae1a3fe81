"""Servers for the end-to-end tests. Those that only ask share one; those that start, stop or break have their own."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fork_client
import pytest
from e2e import launched
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.models import make_model
from e2e.oracle import Oracle

Launch = Callable[..., Launched]

# In these files every launcher has a fork server of its own, as all have that people start.
_WITH_OWN = {"test_battery", "test_chaos", "test_faults", "test_fork_server", "test_start", "test_stop"}


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fork_client.ForkServer]:
    """Stands in only for speed: each launcher would import torch for its shards. Where its shards would be others than
    those of a launcher's own, it says so, and the launcher starts that."""
    environment = launched.environment(tmp_path_factory.getbasetemp())
    with fork_client.ForkServer(tmp_path_factory.mktemp("fork"), environment) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def shared_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """The launchers of most files share what their shards import."""
    name = request.module.__name__.rpartition(".")[2]
    if name in _WITH_OWN:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_FORK_SERVER", str(request.getfixturevalue("fork_server").path))
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a launcher with these flags; whatever is left of it is killed after the test."""
    with ExitStack() as stack:
        yield lambda *flags, **options: stack.enter_context(Launched(tmp_path, *flags, **options))


@pytest.fixture
def identity(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days=2", "-subj=/CN=localhost"]
    # The certificate is not one of an authority: rustls accepts none of those as the certificate of a server.
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run([*command, *names, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module", params=[1, 2], ids=["1-shard", "2-shards"])
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    flags = (f"--model-id={model}", f"--num-shard={request.param}", "--dtype=float32")
    with Launched(tmp_path_factory.mktemp("run"), *flags) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def learned(request: pytest.FixtureRequest, server: Launched) -> Oracle:
    """Knows what each of the module's `BODIES` gets alone from its `server`."""
    oracle = Oracle(server, MAX_CONCURRENT)
    oracle.learn(request.module.BODIES)
    return oracle


@pytest.fixture
def oracle(learned: Oracle) -> Oracle:
    """Counts from the start of the test."""
    learned.begin()
    return learned


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("run")) as launched:
        yield launched.wait_until_serving()
