"""Clients that need an environment of their own, unmodified, against a real server: TGI's, LangChain's, LiteLLM,
Ollama's, and OpenAI's for Node. The scripts are in tests/clients; each writes what it got as JSON.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.launched import Launched

TESTS = Path(__file__).parents[1]
SCRIPTS = TESTS / "clients"
PYTHON = TESTS.parent / ".venv-clients" / "bin" / "python"
TIMEOUT_S = 100
CALL = ["get_weather", {"city": "Paris"}]


def url(server: Launched) -> str:
    assert server.address
    return "http://{}:{}".format(*server.address)


def refuse(reason: str) -> None:
    """A client that is not there is no reason to fail on a laptop, but one where nobody looks."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def results_of(command: list[str], cwd: Path | None = None) -> dict[str, Any]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def use(script: str, server: Launched) -> dict[str, Any]:
    if not PYTHON.exists():
        refuse("no .venv-clients: `make clients` installs it")
    return results_of([str(PYTHON), str(SCRIPTS / script), url(server)])


def asked_plainly(server: Launched) -> str:
    message = {"role": "user", "content": "What is the weather in Paris?"}
    status, answer = server.post(
        "/v1/chat/completions", {"messages": [message], "temperature": 0, "max_tokens": 40}
    )
    assert status == 200
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_the_client_of_tgi(demo: Launched) -> None:
    found = use("use_text_generation.py", demo)
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}}
    expected = demo.post("/generate", body)[1]["generated_text"]
    assert found["whole"] == found["streamed"] == expected
    assert found["async"] == [expected, expected]
    assert (found["finish_reason"], found["best_of"]) == ("length", 2)
    assert found["prefill"] == len(demo.post("/tokenize", body)[1])
    assert "`max_new_tokens`" in found["refusal"]


def test_langchain(demo: Launched) -> None:
    found = use("use_langchain.py", demo)
    assert found["whole"] == found["streamed"] == found["async"] == asked_plainly(demo)
    assert found["tokens"] > 0
    assert found["call"] == CALL
    assert found["place"]["city"] in ("Paris", "Rome")


def test_litellm(demo: Launched) -> None:
    found = use("use_litellm.py", demo)
    assert found["whole"] == found["streamed"] == found["async"] == asked_plainly(demo)
    assert found["tokens"] > 0


def test_ollama(demo: Launched) -> None:
    found = use("use_ollama.py", demo)
    assert found["whole"] == found["streamed"] == found["async"] == asked_plainly(demo)
    assert found["ends"] == ["stop", "stop", True, False]
    assert min(found["counts"]) > 0
    total, prompt, reply = found["durations"]
    assert 0 < prompt + reply <= total
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40}}
    assert found["raw"] == found["raw_streamed"] == demo.post("/generate", body)[1]["generated_text"]
    assert json.loads(found["place"])["city"] in ("Paris", "Rome")
    assert found["calls"] == [CALL]
    assert found["context_length"] == json.loads(demo.get("/info")[1])["max_total_tokens"]
    assert "tools" in found["capabilities"]
    assert found["loaded"] == [found["name"]]
    assert found["refusal"][0] == 404
    assert "some-other-model" in found["refusal"][1]


def test_openai_for_node(demo: Launched, tmp_path: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        refuse("node and npm are not installed")
    for name in ("package.json", "package-lock.json", "use_openai.mjs"):
        shutil.copy(SCRIPTS / name, tmp_path)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    if installed.returncode != 0:
        refuse(f"npm could not install the client: {installed.stderr}")
    found = results_of(["node", "use_openai.mjs", url(demo)], cwd=tmp_path)
    assert found["whole"] == found["streamed"] == found["response"] == asked_plainly(demo)
    assert found["tokens"] > 0
    assert found["call"] == CALL
    assert found["refusal"] == {"isKnown": True, "param": "top_p"}


def test_the_lock_file_of_node_names_no_registry() -> None:
    packages = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
