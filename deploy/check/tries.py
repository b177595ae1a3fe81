"""Checks of the containers of the images. Each is a function that raises CommandError where a container fails it."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from deploy.check.commands import CommandError, say
from deploy.check.container import Container, Start

# Loads the model on a machine that does other things, too.
_READY_SECONDS = 300.0
_END_SECONDS = 60.0
_LONG = {"inputs": "What is Penstock?", "parameters": {"max_new_tokens": 200, "details": True}}
_SHORT = {"inputs": "What is 12 + 30?", "parameters": {"max_new_tokens": 20}}

Opened = Callable[[Start], Container]


def serves(target: str, opened: Opened, data: Path) -> None:
    """The image's own health check, an answer, and SIGTERM while a stream runs."""
    with opened(Start(volumes={"/data": data})) as container:
        say(f"{target}: healthy after {_until(container, container.is_healthy):.1f} s")
        _expect_answer(container, 80)
        _expect_whole_stream(target, container)


def stops_while_it_starts(target: str, opened: Opened, data: Path) -> None:
    """SIGTERM before the model is loaded."""
    with opened(Start(volumes={"/data": data})) as container:
        container.wait_until_it_runs(_END_SECONDS)
        time.sleep(0.5)
        _expect_end(container, f"{target}, SIGTERM while it starts", {0})


def refuses_a_wrong_model(target: str, opened: Opened, data: Path) -> None:
    """A folder that is not there, with the reason."""
    wrong = Start(env={"MODEL_ID": "/data/not-there"}, volumes={"/data": data})
    with opened(wrong) as container:
        code = container.wait(_END_SECONDS)
        if code != 1 or "/data/not-there" not in container.log():
            raise CommandError(f"a wrong MODEL_ID gave exit code {code}:\n{container.log()}")
        say(f"{target}, MODEL_ID that is not there: exit code 1, {container.log().strip().splitlines()[-1]}")


def runs_two_shards(target: str, opened: Opened, data: Path) -> None:
    """Shards that exchange tensors, with the 64 MB of /dev/shm that containers have."""
    with opened(Start(("--num-shard", "2"), volumes={"/data": data})) as container:
        say(
            f"{target}, 2 shards, /dev/shm of 64 MB: healthy after {_until(container, container.is_healthy):.1f} s"
        )
        _expect_answer(container, 80)
        _end(container, f"{target}, 2 shards")


def runs_as_any_user(target: str, opened: Opened, data: Path) -> None:
    """A number that the image does not know, in group 0, as OpenShift has it."""
    with opened(Start(volumes={"/data": data}, user="1000770000:0")) as container:
        _until(container, container.is_healthy)
        _expect_answer(container, 80)
        _end(container, f"{target}, as user 1000770000")


def serves_on_sagemaker(target: str, opened: Opened, model: Path) -> None:
    """Started with `serve`, and with the variables that SageMaker sets on a machine without a GPU."""
    env = {"HF_MODEL_ID": "/opt/ml/model", "SM_NUM_GPUS": "0"}
    with opened(Start(("serve",), env=env, volumes={"/opt/ml/model": model})) as container:
        _until(container, lambda: _status(container, 8080, "/ping") == "200")
        answer = _post(container, 8080, "/invocations", _SHORT)
        _end(container, f"{target}: /ping, and /invocations gave {answer[:80]}")


def serves_on_vertex(target: str, opened: Opened, model: Path) -> None:
    """On the port and the routes that Vertex AI chooses."""
    env = {
        "AIP_HTTP_PORT": "8085",
        "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
        "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
        "AIP_STORAGE_URI": "/model",
    }
    with opened(Start(env=env, volumes={"/model": model})) as container:
        _until(container, lambda: _status(container, 8085, env["AIP_HEALTH_ROUTE"]) == "200")
        answer = _post(container, 8085, env["AIP_PREDICT_ROUTE"], {"instances": [_SHORT]})
        _end(container, f"{target}: health, and predict gave {answer[:80]}")


def serves_on_inference_endpoints(target: str, opened: Opened, model: Path) -> None:
    """The model of /repository."""
    with opened(Start(volumes={"/repository": model})) as container:
        _until(container, lambda: _status(container, 80, "/health") == "200")
        _expect_answer(container, 80)
        _end(container, f"{target}: the model of /repository")


def copy_demo_model(root: Path, to: Path) -> Path:
    """The demo model as a folder of its own."""
    shutil.copytree(next(root.glob("opt/penstock/lib/python3*/site-packages/penstock_server/demo_model")), to)
    return to


def _until(container: Container, is_true: Callable[[], bool]) -> float:
    """Seconds until it is."""
    start = time.monotonic()
    while True:
        if not container.is_running():
            raise CommandError(f"it ended:\n{container.log()}")
        try:
            if is_true():
                return time.monotonic() - start
        except CommandError:
            pass
        if time.monotonic() - start > _READY_SECONDS:
            raise CommandError(f"not ready after {_READY_SECONDS} s:\n{container.log()}")
        time.sleep(0.2)


def _status(container: Container, port: int, path: str) -> str:
    asked = container.curl(
        "--output", "/dev/null", "--write-out", "%{http_code}", f"http://127.0.0.1:{port}{path}"
    )
    return asked.communicate()[0]


def _post(container: Container, port: int, path: str, body: object) -> str:
    sent = container.curl(*_json(body), "--fail-with-body", f"http://127.0.0.1:{port}{path}")
    answer = sent.communicate()[0]
    if sent.returncode:
        raise CommandError(f"{path} answered {answer}\n{container.log()}")
    return answer


def _json(body: object) -> tuple[str, ...]:
    return ("--header", "Content-Type: application/json", "--data", json.dumps(body))


def _expect_answer(container: Container, port: int) -> None:
    asked = {"messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 40}
    answer = _post(container, port, "/v1/chat/completions", {"model": "tgi", **asked, "temperature": 0})
    content = json.loads(answer)["choices"][0]["message"]["content"]
    if "42" not in content:
        raise CommandError(f"12 + 30 is {content}")


def _expect_whole_stream(target: str, container: Container) -> None:
    stream = container.curl(*_json(_LONG), "http://127.0.0.1:80/generate_stream")
    assert stream.stdout is not None
    first = stream.stdout.readline()
    seconds = _expect_end(container, f"{target}, SIGTERM during a stream", {0})
    rest = stream.communicate()[0]
    if '"generated_text":null' not in first or '"finish_reason"' not in rest:
        raise CommandError(f"the stream broke after {seconds:.1f} s: {rest[-300:]}\n{container.log()}")
    say(f"{target}: the stream of {rest.count('data:') + 1} events was sent to its end")


def _end(container: Container, what: str) -> None:
    say(what)
    _expect_end(container, f"{what.split(':')[0].split(', ')[0]}, SIGTERM", {0})


def _expect_end(container: Container, what: str, codes: set[int]) -> float:
    start = time.monotonic()
    container.terminate()
    code = container.wait(_END_SECONDS)
    seconds = time.monotonic() - start
    if code not in codes:
        raise CommandError(f"{what}: exit code {code}\n{container.log()}")
    say(f"{what}: exit code {code} after {seconds:.2f} s")
    return seconds
