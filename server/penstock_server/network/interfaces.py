"""Which network interface of this machine has an address: gloo and NCCL listen on one that is named."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
# struct ifreq: 16 bytes of a name, then a socket address, whose number of four bytes follows family and port.
_REQUEST = struct.Struct("16s24x")
_NUMBER = slice(20, 24)


def interface_with(address: str) -> str:
    """The name of the interface with this IPv4 address; raises OSError where there is none."""
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _number, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked, _SIOCGIFADDR, _REQUEST.pack(name.encode()))
            except OSError:
                continue  # it has no such address
            if found[_NUMBER] == wanted:
                return name
    raise OSError(f"no interface of this machine has the address {address} as its first")
