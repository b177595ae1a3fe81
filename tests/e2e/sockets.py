"""The sockets that listen on TCP, from the tables of the system."""

import os
from pathlib import Path

Address = tuple[str, int]


def addresses(table: str) -> dict[str, Address]:
    """Address and port of the sockets that listen, by inode, of a table of IPv4 like /proc/net/tcp."""
    fields = [line.split() for line in table.splitlines()[1:]]
    return {it[9]: _address(it[1]) for it in fields if it[3] == "0A"}


def listening(pid: int) -> set[Address]:
    """The addresses on which one process listens; it must use IPv4 alone."""
    owned = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        owned.add(os.readlink(descriptor))
    table, other = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    others = [it for it in map(str.split, other.splitlines()[1:]) if it[3] == "0A"]
    assert not [it for it in others if f"socket:[{it[9]}]" in owned]
    return {address for inode, address in addresses(table).items() if f"socket:[{inode}]" in owned}


def _address(text: str) -> Address:
    number, port = text.split(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(number))), int(port, 16)
