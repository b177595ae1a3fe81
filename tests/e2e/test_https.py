"""HTTPS from end to end: the launcher's flags, its address, and files that are wrong."""

import ssl
from pathlib import Path
from urllib.request import urlopen

from e2e.conftest import Launch


def test_a_server_with_a_certificate_speaks_https(
    launch: Launch, model: Path, identity: tuple[Path, Path]
) -> None:
    cert, key = identity
    launched = launch(f"--model-id={model}", f"--tls-cert={cert}", f"--tls-key={key}").wait_until_serving()
    assert launched.address
    assert f"curl https://127.0.0.1:{launched.address[1]}/generate" in launched.stderr
    url = f"https://localhost:{launched.address[1]}/health"
    with urlopen(url, context=ssl.create_default_context(cafile=str(cert))) as response:
        assert response.status == 200


def test_a_key_that_does_not_fit_is_refused_in_one_line(
    launch: Launch, model: Path, identity: tuple[Path, Path]
) -> None:
    cert, _ = identity
    code, stderr = launch(f"--model-id={model}", f"--tls-cert={cert}", f"--tls-key={cert}").end()
    assert code == 2
    assert stderr.strip().splitlines()[-1].endswith(f"--tls-key {cert} holds no private key in PEM format")
