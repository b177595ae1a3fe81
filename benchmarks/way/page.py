"""The files that docs/life-of-a-request.md lists."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "life-of-a-request.md"


def listed_files(text: str) -> list[str]:
    """The files in the first cells of tables. A name alone is of the folder of the one before it."""
    files: list[str] = []
    for line in text.splitlines():
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("| `") else []:
            files.append(name if "/" in name else f"{files[-1].rpartition('/')[0]}/{name}")
    return files
