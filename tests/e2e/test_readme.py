"""The README's curl commands, as they stand but for the port, against the demo model."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from e2e.launched import Launched

_README = Path(__file__).parents[2] / "README.md"
_BLOCKS = re.findall(r"```sh\n(.*?)```", _README.read_text(), re.DOTALL)
CURLS = [block.strip() for block in _BLOCKS if block.startswith("curl")]


def test_there_is_one_for_each_way_to_ask() -> None:
    routes = [re.search(r"3000(\S+)", command)[1] for command in CURLS]  # type: ignore[index]
    assert routes == ["/generate", "/generate_stream", "/v1/chat/completions"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", CURLS, ids=["generate", "generate_stream", "chat"])
def test_a_curl_of_the_readme_works(demo: Launched, command: str) -> None:
    assert demo.address
    command = command.replace("localhost:3000", f"127.0.0.1:{demo.address[1]}").replace(
        "curl", "curl -sS --fail", 1
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    last = done.stdout.strip().splitlines()[-1].removeprefix("data:")
    reply = json.loads(last)
    text = reply["choices"][0]["message"]["content"] if "choices" in reply else reply["generated_text"]
    assert "42" in text or "Penstock" in text
