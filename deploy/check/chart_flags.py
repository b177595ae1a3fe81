"""Writes the launcher's flags of docs/flags.md into the chart's schema, which refuses others; a part of `make docs`."""

import json
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SCHEMA = _ROOT / "deploy" / "helm" / "penstock" / "values.schema.json"
# Flags that the chart sets from values of their own, or replaces by them; `env` is a question to the launcher.
OF_THE_CHART = {
    *("hostname", "port", "grpc-port", "model-id", "revision", "device", "num-shard", "sharded"),
    *(
        "startup-timeout",
        "graceful-termination-timeout",
        "api-key",
        "api-key-file",
        "tls-cert",
        "tls-key",
        "env",
        # Its shards are as many as the pod has GPUs; more of the model are more pods.
        "num-replicas",
        "replica",
        "replica-policy",
        "replica-secret-file",
        "replica-tls-cert",
        "replica-tls-key",
        "replica-tls-ca",
        # LeaderWorkerSet sets their variables.
        "nnodes",
        "node-rank",
        "master-addr",
        # A pod has one model, and its port is probed.
        "model",
        "max-models",
        "max-awake-models",
        "max-awake-gb",
        "sleep-level",
        "min-awake-time",
        "uds",
    ),
}


def launcher_flags() -> dict[str, str]:
    """The flags of the launcher that have an effect, with their defaults."""
    page = (_ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    ours = page.split("## Flags of text-generation-inference")[0]
    rows = re.findall(r"^\| (?:`-\w`, )?`--([\w-]+)`[^|]*\|[^|]*\|([^|]*)\|", ours, re.MULTILINE)
    return {name: default.strip(" `") for name, default in rows}


def main() -> None:
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    names = schema["properties"]["flags"]["propertyNames"]
    names["enum"] = sorted(launcher_flags().keys() - OF_THE_CHART)
    _SCHEMA.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
