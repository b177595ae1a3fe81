"""The chart of deploy/helm against the launcher, the router and the image. `make helm-check` renders it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.check.chart_flags import OF_THE_CHART, launcher_flags

REPOSITORY = Path(__file__).parents[1]
HELM = REPOSITORY / "deploy" / "helm"
CHART = HELM / "penstock"
TEMPLATES = {file.name: file.read_text(encoding="utf-8") for file in (CHART / "templates").iterdir()}
ALL_TEMPLATES = "\n".join(TEMPLATES.values())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
EXAMPLES = sorted((HELM / "examples").glob("*.yaml"))


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_every_flag_of_the_templates_is_one_of_the_launcher() -> None:
    named = set(re.findall(r"--([a-z][\w-]*)=", ALL_TEMPLATES))
    assert len(named) > 9
    assert named <= OF_THE_CHART
    assert not named - launcher_flags().keys()


def test_the_schema_takes_every_other_flag_and_no_unknown_one() -> None:
    # `make docs` writes them.
    assert (
        set(SCHEMA["properties"]["flags"]["propertyNames"]["enum"]) == launcher_flags().keys() - OF_THE_CHART
    )


def test_times_are_by_default_those_of_the_launcher() -> None:
    assert str(VALUES["startup"]["loadSeconds"]) == launcher_flags()["startup-timeout"]
    assert str(VALUES["drain"]["seconds"]) == launcher_flags()["graceful-termination-timeout"]


def test_every_variable_of_the_templates_is_read_by_the_launcher() -> None:
    named = set(re.findall(r"name: ([A-Z][A-Z_]+)\b", TEMPLATES["_pod.tpl"]))
    assert named == {"HF_TOKEN", "HF_HOME"}
    assert all(f'"{name}"' in text_of("launcher/src/tgi/variables.rs") for name in named)


def test_of_several_nodes_the_launcher_reads_what_their_controller_says() -> None:
    """Flags that the chart neither sets nor takes: a LeaderWorkerSet has a variable for each."""
    flags = set(re.findall(r'\("LWS_\w+", "([a-z-]+)"', text_of("launcher/src/args/stand_ins.rs")))
    assert flags == {"nnodes", "node-rank", "master-addr"}
    assert flags <= OF_THE_CHART
    assert not [flag for flag in flags if f"--{flag}=" in ALL_TEMPLATES]


def test_the_most_nodes_are_those_of_the_launcher() -> None:
    (most,) = re.findall(r"range\(1\.\.=(\d+)\)\)\]\n    pub nnodes", text_of("launcher/src/args/nodes.rs"))
    assert SCHEMA["properties"]["nodes"]["maximum"] == int(most)


def test_probes_and_metrics_are_routes_that_need_no_key() -> None:
    asked = set(re.findall(r"path: (/(?:health|metrics)[\w/]*)", ALL_TEMPLATES))
    assert asked == {"/health/ready", "/health/live", "/metrics"}
    routes = text_of("router/src/api/table.rs").split("Route::get(")
    are_open = {route.split('"')[1] for route in routes[1:] if ".open()" in route}
    assert asked <= are_open


def test_every_metric_of_the_templates_is_one_of_the_router() -> None:
    named = set(re.findall(r"\btgi_\w+", ALL_TEMPLATES))
    assert named
    sources = "\n".join(
        file.read_text(encoding="utf-8") for file in (REPOSITORY / "router/src").rglob("*.rs")
    )
    assert not [name for name in named if f'"{name}"' not in sources]


def test_user_and_folders_are_those_of_the_image() -> None:
    dockerfile = text_of("deploy/Dockerfile")
    pod = TEMPLATES["_pod.tpl"]
    assert "USER 1000\n" in dockerfile
    assert "runAsUser: 1000\n" in pod
    assert "HF_HOME=/data" in dockerfile
    assert "{name: HF_HOME, value: /data}" in pod
    assert "{name: data, mountPath: /data}" in pod
    assert "HOME=/tmp" in dockerfile
    assert "{name: tmp, mountPath: /tmp}" in pod


def test_the_version_is_that_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == tomllib.loads(text_of("Cargo.toml"))["workspace"]["package"]["version"]


def names(values: dict[str, Any], schema: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Paths of values, and those that a schema names; what the schema leaves open ends a path."""
    ours: set[str] = set()
    theirs: set[str] = set()
    for key in values.keys() | schema["properties"].keys():
        inner = schema["properties"].get(key, {})
        if key in values:
            ours.add(key)
        if inner:
            theirs.add(key)
        if "properties" in inner and isinstance(values.get(key), dict):
            below = names(values[key], inner)
            ours |= {f"{key}.{name}" for name in below[0]}
            theirs |= {f"{key}.{name}" for name in below[1]}
    return ours, theirs


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    ours, theirs = names(VALUES, SCHEMA)
    assert len(ours) > 60
    # `global` is of helm itself.
    assert ours == theirs - {"global"}


def test_every_value_is_used() -> None:
    assert not [
        name for name in VALUES if f".Values.{name}" not in ALL_TEMPLATES and f'"{name}"' not in ALL_TEMPLATES
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_every_example_is_documented_and_names_values(example: Path) -> None:
    assert f"deploy/helm/examples/{example.name}" in text_of("docs/deploying.md")
    ours, _ = names(yaml.safe_load(example.read_text(encoding="utf-8")), SCHEMA)
    assert not ours - names(VALUES, SCHEMA)[0]
