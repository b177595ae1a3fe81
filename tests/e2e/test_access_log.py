"""--access-log: lines on the launcher's stdout, apart from its other lines."""

import json
import signal
from pathlib import Path

from e2e.conftest import Launch


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_request_is_a_line_on_stdout(launch: Launch, tmp_path: Path) -> None:
    keys, stdout = tmp_path / "keys", tmp_path / "stdout"
    keys.write_text("# of the shop\nsecret-key tenant=shop\n")
    with stdout.open("w") as output:
        server = launch("--access-log=json", f"--api-key-file={keys}", stdout=output).wait_until_serving()
    mine = {"Authorization": "Bearer secret-key", "x-request-id": "mine"}
    status, _ = server.post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 3}}, headers=mine)
    assert status == 200
    with server.request("POST", "/generate", {"inputs": "a"}) as refused:
        assert refused.status == 401
        refused_id = refused.headers["x-request-id"]
    server.signal(signal.SIGTERM)
    code, stderr = server.end()
    assert code == 0, stderr
    lines = [json.loads(line) for line in _lines(stdout)]
    answered, unauthorized = (line for line in lines if line["route"] == "/generate")
    assert (answered["request_id"], answered["key"], answered["tenant"]) == ("mine", 1, "shop")
    assert (answered["status"], answered["error"], answered["generated_tokens"]) == (200, None, 3)
    assert 0 <= answered["queue_ms"] <= answered["first_token_ms"] <= answered["total_ms"]
    assert (unauthorized["request_id"], unauthorized["status"]) == (refused_id, 401)
    assert "secret-key" not in stdout.read_text() + stderr
    assert not [line for line in stderr.splitlines() if '"route"' in line]


def test_it_is_off_by_default_and_may_be_text(launch: Launch, tmp_path: Path) -> None:
    for flags, count in (((), 0), (("--access-log=text",), 1)):
        stdout = tmp_path / f"stdout-{count}"
        with stdout.open("w") as output:
            server = launch(*flags, stdout=output).wait_until_serving()
        assert server.get("/info")[0] == 200
        server.signal(signal.SIGTERM)
        assert server.end()[0] == 0
        lines = [line for line in _lines(stdout) if " route=/info status=200 " in line]
        assert (len(lines), len(_lines(stdout)) > 0) == (count, count > 0)
