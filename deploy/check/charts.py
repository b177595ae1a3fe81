"""`make helm-check`: renders the chart with helm for every documented set of values, and has kubeconform check it.

Both are Go modules, built at the versions below. The schemas of Kubernetes come from a Python package, those of
LeaderWorkerSet, and of Prometheus' and KEDA's kinds, from their Go modules. Wrong values must be refused by name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from deploy.check import chart_nodes
from deploy.check.commands import CommandError, run, say

_ROOT = Path(__file__).parents[2]
CHART = _ROOT / "deploy" / "helm" / "penstock"
EXAMPLES = _ROOT / "deploy" / "helm" / "examples"

_HELM = "helm.sh/helm/v3/cmd/helm@v3.19.5"
_KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
_SCHEMAS = "kubernetes-validate==1.37.0"
# The oldest that the chart names, and the newest that there are schemas of.
_KUBERNETES = ("1.27.0", "1.37.0")


@dataclass(frozen=True)
class Definition:
    """Where the schema of a kind lies that is not Kubernetes' own."""

    module: str
    file: str


_DEFINITIONS = (
    Definition(
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    Definition("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    Definition("github.com/kedacore/keda/v2@v2.20.2", "config/crd/bases/keda.sh_scaledobjects.yaml"),
)

# Values that are wrong, and what the error has to name.
_WRONG = (
    ("gpu=1", "'gpu'"),
    ("gpus=two", "/gpus"),
    ("flags.max-modle=1", "'max-modle'"),
    ("flags.api-key=secret", "'api-key'"),
    ("port=80", "/port"),
    ("listen=everywhere", "/listen"),
    ("sharedMemory=lots", "/sharedMemory"),
    ("model.volume.accessMode=x", "/model/volume/accessMode"),
    ("model.volume.kind=persistentVolumeClaim,replicas=2", "model.volume.accessMode"),
    ("autoscaling.kind=keda", "autoscaling.prometheusAddress"),
    ("autoscaling.kind=hpa,autoscaling.minReplicas=9", "autoscaling.minReplicas"),
    ("strategy.maxSurge=0", "strategy"),
    ("nodes=0", "/nodes"),
    ("nodes=65", "/nodes"),
    ("flags.nnodes=2", "'nnodes'"),
    ("flags.master-port=1", "flags.master-port"),
    ("nodes=2", "nodeSecret.existingSecret"),
    ("nodeSecret.existingSecret=nodes", "nodeSecret.existingSecret"),
    ("nodeTls.existingSecret=nodes", "nodeTls.existingSecret"),
    ("nodes=2,nodeSecret.existingSecret=nodes,flags.executor=ray", "flags.executor"),
    (
        "nodes=2,nodeSecret.existingSecret=nodes,model.volume.kind=persistentVolumeClaim",
        "model.volume.accessMode",
    ),
)
# A misspelt field of a documented set of values, which the schemas have to refuse.
_MISSPELT = (
    ("one-gpu.yaml", "fsGroup:", "fsGruppe:"),
    ("keda.yaml", "maxReplicaCount:", "maxReplicas:"),
    ("keda.yaml", "interval:", "intervall:"),
    ("hpa.yaml", "stabilizationWindowSeconds:", "stabilisationWindowSeconds:"),
    ("two-nodes.yaml", "workerTemplate:", "followerTemplate:"),
    ("two-nodes.yaml", "terminationGracePeriodSeconds:", "terminationSeconds:"),
)


class Tools:
    """helm, kubeconform and the schemas, below `folder`; what is there already is used."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._packages = folder / "packages"
        self._kinds = folder / "kinds"
        for name, module in (("helm", _HELM), ("kubeconform", _KUBECONFORM)):
            if not (self._bin / name).exists():
                say(f"building {module}")
                run("go", "install", module, env={"GOBIN": str(self._bin.resolve())})
        if not self._packages.exists():
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
            run(*pip, "--target", self._packages, _SCHEMAS)
        self._kinds.mkdir(exist_ok=True)
        for kubernetes in _KUBERNETES:
            _copy_schemas(self._packages, kubernetes, self._kinds / kubernetes)
        for definition in _DEFINITIONS:
            _write_schemas(definition, self._kinds)

    def render(self, kubernetes: str, *values: str | Path) -> str:
        return run(
            *(self._bin / "helm", "template", "release", CHART, "--namespace", "llm"),
            *("--kube-version", kubernetes, *values),
        )

    def lint(self) -> None:
        run(self._bin / "helm", "lint", "--strict", "--kube-version", _KUBERNETES[-1], CHART)

    def check(self, kubernetes: str, manifests: str) -> str:
        """Returns the output of kubeconform; raises an error where it refuses something or knows no schema."""
        name = "{{.ResourceKind}}{{.KindSuffix}}.json"
        places = (f"{self._kinds.resolve()}/{kubernetes}/{name}", f"{self._kinds.resolve()}/{name}")
        locations = [part for place in places for part in ("-schema-location", place)]
        line = [str(self._bin / "kubeconform"), "-strict", "-summary", *locations, "-"]
        done = subprocess.run(line, input=manifests, capture_output=True, text=True)
        if done.returncode:
            raise CommandError(f"kubeconform for Kubernetes {kubernetes}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()


def _copy_schemas(packages: Path, kubernetes: str, folder: Path) -> None:
    """They refer to one file as it lies on a web server; here it lies beside them."""
    folder.mkdir(exist_ok=True)
    schemas = packages / "kubernetes_validate" / "kubernetes-json-schema" / f"v{kubernetes}-local-strict"
    for file in schemas.glob("*.json"):
        text = file.read_text(encoding="utf-8").replace('"/api/_definitions.json', '"_definitions.json')
        schema = {key: value for key, value in json.loads(text).items() if key != "$id"}
        (folder / file.name).write_text(json.dumps(schema), encoding="utf-8")


def _write_schemas(definition: Definition, folder: Path) -> None:
    """A file for each version of the kind, as kubeconform names them."""
    at = Path(json.loads(run("go", "mod", "download", "-json", definition.module))["Dir"])
    spec = yaml.safe_load((at / definition.file).read_text(encoding="utf-8"))["spec"]
    for version in spec["versions"]:
        kind, group = spec["names"]["kind"].lower(), spec["group"].split(".")[0]
        schema = _closed(version["schema"]["openAPIV3Schema"])
        (folder / f"{kind}-{group}-{version['name']}.json").write_text(json.dumps(schema))


def _closed(schema: Any) -> Any:
    """The schema, which now refuses fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items()}
    is_open = "x-kubernetes-preserve-unknown-fields" in schema or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        closed["additionalProperties"] = False
    if schema.get("type") == "object" and "properties" not in schema and not is_open:
        # The schema of `metadata`, which Kubernetes itself checks.
        closed["additionalProperties"] = True
    return closed


def _values() -> Iterator[tuple[str, tuple[str | Path, ...]]]:
    yield "the chart's own values", ()
    for file in sorted(EXAMPLES.glob("*.yaml")):
        yield file.name, ("--values", file)


def _check_refusals(tools: Tools) -> None:
    for values, name in _WRONG:
        try:
            tools.render(_KUBERNETES[-1], "--set", values)
        except CommandError as error:
            if name not in str(error).split("\n", 1)[1]:
                raise CommandError(f"--set {values}: the error does not name {name}:\n{error}") from error
        else:
            raise CommandError(f"--set {values} is accepted")
        say(f"refused by name: {values}")


def _check_schemas(tools: Tools) -> None:
    for example, field, misspelt in _MISSPELT:
        rendered = tools.render(_KUBERNETES[-1], "--values", EXAMPLES / example)
        try:
            tools.check(_KUBERNETES[-1], rendered.replace(field, misspelt))
        except CommandError:
            say(f"refused by its schema: {misspelt} in {example}")
        else:
            raise CommandError(f"{misspelt} in {example} is accepted")


def main() -> None:
    folder = Path(os.environ.get("HELM_CHECK", _ROOT / "target" / "helm"))
    folder.mkdir(parents=True, exist_ok=True)
    tools = Tools(folder)
    tools.lint()
    for name, values in _values():
        for kubernetes in _KUBERNETES:
            say(
                f"{name}, Kubernetes {kubernetes}: {tools.check(kubernetes, tools.render(kubernetes, *values))}"
            )
    chart_nodes.check(partial(tools.render, _KUBERNETES[-1], "--values", EXAMPLES / "two-nodes.yaml"))
    _check_schemas(tools)
    _check_refusals(tools)
    say("The chart is right.")


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        sys.exit(f"error: {error}")
