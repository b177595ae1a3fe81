"""llama.cpp's tests of its server, from the source distribution of its Python bindings, for the routes
that we have, too.

The suite has a mode for a server that runs already. A plugin (llama_cpp_plugin.py) puts `/v1` before the routes of
OpenAI; the assertions are theirs. They start their server with other options, and with a model whose words they know.
"""

import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import urlsplit

from peers.llama_cpp_reasons import reason_of
from peers.suite import ROOT, Found, Served, run

FILES = ["basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "infill", "template",
         "tokenize"]  # fmt: skip
INSIDE = "/vendor/llama.cpp/tools/server/tests/"


def measure(served: Served, folder: Path) -> Found:
    """Runs their files for the routes that we have."""
    archive = _archive(folder)
    suite = _unpack(archive, folder)
    shutil.copy(Path(__file__).with_name("llama_cpp_plugin.py"), suite)
    report = folder / "report.xml"
    files = [f"unit/test_{name}.py" for name in FILES]
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "llama_cpp_plugin",
        f"--junitxml={report}",
    ]
    port = str(urlsplit(served.url).port)
    run([*command, *files], suite, may_fail=True, DEBUG_EXTERNAL="1", PORT=port, PYTHONPATH=str(suite))
    found = Found("llama.cpp's tests of its server", archive.name.split("-")[-1].removesuffix(".tar.gz"))
    for case in ET.parse(report).iter("testcase"):
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        if case.find("skipped") is None:
            found.note(failure is None, reason_of(str(case.get("classname")), str(case.get("name"))))
    return found


def _archive(folder: Path) -> Path:
    listed = ROOT / "tests" / "peers" / "suites.requirements.txt"
    download = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-r",
        str(listed),
        "-d",
        str(folder),
    ]
    subprocess.run([sys.executable, "-m", "pip", *download], check=True)
    return next(folder.glob("llama_cpp_python-*.tar.gz"))


def _unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, [member for member in tar if INSIDE in f"/{member.name}"], filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / INSIDE.strip("/")
