"""Checks of a replica of several machines that schemas cannot express: which pods serve, and who reaches whom."""

from collections.abc import Callable
from typing import Any

import yaml

from deploy.check.commands import CommandError

Document = dict[str, Any]
_IS_LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
_OF_ALL = {"nodes", "node-tls"}
_OF_THE_LEADER = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")


def check(render: Callable[..., str]) -> None:
    """Checks a documented set of values with several machines; `render` takes further values for it."""
    documents = _by_kind(render())
    _require("Deployment" not in documents, "a LeaderWorkerSet in place of the Deployment")
    nodes = documents["LeaderWorkerSet"]
    templates = nodes["spec"]["leaderWorkerTemplate"]
    _check_pods(templates["leaderTemplate"], templates["workerTemplate"])
    labels = templates["leaderTemplate"]["metadata"]["labels"]
    _require(labels == templates["workerTemplate"]["metadata"]["labels"], "the same labels of all pods")
    _check_service(documents["Service"], labels)
    _require(
        documents["Service"]["metadata"]["name"] != nodes["metadata"]["name"],
        "a name of the service that is not that of the controller's headless one",
    )
    _check_policy(documents["NetworkPolicy"], labels, True)
    _check_policy(_by_kind(render("--set", "networkPolicy.enabled=false"))["NetworkPolicy"], labels, False)
    _check_autoscaling(render, nodes)


def _by_kind(rendered: str) -> dict[str, Document]:
    return {document["kind"]: document for document in yaml.safe_load_all(rendered) if document}


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise CommandError(f"a replica of several machines has to have {what}")


def _check_pods(leader: Document, worker: Document) -> None:
    first, other = (template["spec"]["containers"][0] for template in (leader, worker))
    _require(all(name in first for name in _OF_THE_LEADER), f"a leader with {', '.join(_OF_THE_LEADER)}")
    _require(not any(name in other for name in _OF_THE_LEADER), "no port, probe or drain of a worker")
    _require(_secrets(worker) == _OF_ALL, "no secrets of a worker but those of the nodes")
    _require(_secrets(leader) == _OF_ALL | {"api-keys", "tls"}, "a leader with all secrets")
    differ = {argument.split("=")[0] for argument in {*first["args"]} ^ {*other["args"]}}
    _require(
        differ == {"--api-key-file", "--tls-cert", "--tls-key"}, "the same flags of all pods but for keys"
    )
    for container in (first, other):
        _require(
            "--replica-secret-file=/secrets/nodes/secret" in container["args"],
            "pods that know the secret of the nodes",
        )


def _secrets(template: Document) -> set[str]:
    mounted = {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    return {volume["name"] for volume in template["spec"]["volumes"] if "secret" in volume} & mounted


def _check_service(service: Document, labels: dict[str, str]) -> None:
    """A worker has no label with the number 0, so it is not selected."""
    selector = service["spec"]["selector"]
    _require(selector.items() >= _IS_LEADER.items(), "a service that selects leaders only")
    _require(labels.items() >= (selector.items() - _IS_LEADER.items()), "a service that selects its leaders")


def _check_policy(policy: Document, labels: dict[str, str], has_egress: bool) -> None:
    """All of its pods reach each other on every port; others reach the named ports, which only leaders have."""
    spec = policy["spec"]
    _require(labels.items() >= spec["podSelector"]["matchLabels"].items(), "a policy for its pods")
    _require(spec["policyTypes"] == ["Ingress", *["Egress"] * has_egress], "a policy of what comes in")
    pods = [{"podSelector": spec["podSelector"]}]
    _require({"from": pods} in spec["ingress"], "pods that hear each other on every port")
    _require(not has_egress or {"to": pods} in spec["egress"], "pods that reach each other on every port")
    others = [rule for rule in spec["ingress"] if rule != {"from": pods}]
    open_to_others = {port["port"] for rule in others for port in rule["ports"]}
    _require(open_to_others <= {"http", "grpc"}, "no port for other pods but those that serve")


def _check_autoscaling(render: Callable[..., str], nodes: Document) -> None:
    target = {"apiVersion": nodes["apiVersion"], "kind": nodes["kind"], "name": nodes["metadata"]["name"]}
    for kind, scaler in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        values = f"autoscaling.kind={kind},autoscaling.prometheusAddress=http://prometheus:9090"
        documents = _by_kind(render("--set", values))
        _require(documents[scaler]["spec"]["scaleTargetRef"] == target, f"{scaler} of its LeaderWorkerSet")
        _require(
            "replicas" not in documents["LeaderWorkerSet"]["spec"], "no number beside that of an autoscaler"
        )
