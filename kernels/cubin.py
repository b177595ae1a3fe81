"""What a compiled kernel takes of a GPU, by the tools that Triton brings."""

import re
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import triton

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Cubin:
    """A file with one kernel: its registers, the bytes of its stack, and its instructions."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        found = re.search(r"REG:(\d+) STACK:(\d+)", self._told("cuobjdump", "-res-usage"))
        assert found
        self.registers, self.stack_bytes = map(int, found.groups())

    @cached_property
    def code(self) -> str:
        """As text, which takes the tool up to a second."""
        return self._told("nvdisasm", "-c")

    @property
    def spill_bytes(self) -> int:
        """Bytes of registers in memory. Newer assemblers also give some kernels a stack that no instruction touches."""
        return self.stack_bytes if self.stack_bytes and re.search(r"\b(LDL|STL)\b", self.code) else 0

    def _told(self, tool: str, *arguments: str) -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self._content)
            file.flush()
            command = [str(_TOOLS / tool), *arguments, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
