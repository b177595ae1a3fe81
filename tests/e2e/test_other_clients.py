"""Clients that need an environment of their own, unmodified, against a real server: TGI's, LangChain's, LiteLLM,
Ollama's, OpenAI's for Node, and clients generated from the OpenAPI document. The scripts are in tests/clients; each
writes what it got as JSON.
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
    assert "`inputs` must have at most" in found["refusal"]


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


def installed_packages(folder: Path, *scripts: str) -> None:
    """Install the packages of Node in a folder, with copies of these scripts."""
    if not (shutil.which("node") and shutil.which("npm")):
        refuse("node and npm are not installed")
    for name in ("package.json", "package-lock.json", *scripts):
        shutil.copy(SCRIPTS / name, folder)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    if installed.returncode != 0:
        refuse(f"npm could not install the client: {installed.stderr}")


def run(command: list[str], folder: Path) -> str:
    """The output of a command, which must succeed."""
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_openai_for_node(demo: Launched, tmp_path: Path) -> None:
    installed_packages(tmp_path, "use_openai.mjs")
    found = results_of(["node", "use_openai.mjs", url(demo)], cwd=tmp_path)
    assert found["whole"] == found["streamed"] == found["response"] == asked_plainly(demo)
    assert found["tokens"] > 0
    assert found["call"] == CALL
    assert found["refusal"] == {"isKnown": True, "param": "top_p"}


@pytest.mark.timeout(3 * TIMEOUT_S)
def test_a_client_that_openapi_python_client_generates(demo: Launched, tmp_path: Path) -> None:
    if not (PYTHON.parent / "openapi-python-client").exists():
        refuse("no openapi-python-client in .venv-clients: `make clients` installs it")
    generate = [str(PYTHON), "-m", "openapi_python_client", "generate", "--meta=none", "--fail-on-warning"]
    run([*generate, f"--url={url(demo)}/openapi.json", "--output-path=penstock_client"], tmp_path)
    run([str(PYTHON), "-W", "error", "-m", "compileall", "-q", "penstock_client"], tmp_path)
    found = results_of([str(PYTHON), str(SCRIPTS / "use_generated.py"), url(demo), str(tmp_path)])
    plain = asked_plainly(demo)
    assert found["whole"] == found["response"] == found["message"] == plain
    assert found["tokens"] > 0
    assert found["call"] == CALL
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}}
    assert found["generated"] == demo.post("/generate", body)[1]["generated_text"]
    status, model, param = found["refusal"]
    assert model == f"PostV1ChatCompletionsResponse{status}"
    assert param == "top_p"


@pytest.mark.timeout(3 * TIMEOUT_S)
def test_types_that_openapi_typescript_generates(demo: Launched, tmp_path: Path) -> None:
    installed_packages(tmp_path, "use_generated.mts")
    # Fields with a default may be left out, as everywhere else.
    generate = ["npx", "openapi-typescript", f"{url(demo)}/openapi.json", "--default-non-nullable=false"]
    run([*generate, "--output=penstock.d.ts"], tmp_path)
    compiler = ["npx", "tsc", "--strict", "--target", "es2022", "--lib", "es2022,dom"]
    modules = ["--module", "nodenext", "--moduleResolution", "nodenext"]
    run([*compiler, *modules, "use_generated.mts"], tmp_path)
    found = results_of(["node", "use_generated.mjs", url(demo)], cwd=tmp_path)
    assert found["whole"] == found["streamed"] == asked_plainly(demo)
    assert found["tokens"] > 0
    assert found["call"] == CALL
    assert found["refusal"] == "top_p"


def test_the_lock_file_of_node_names_no_registry() -> None:
    packages = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
