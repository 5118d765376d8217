"""Which addresses of the network are the Internet's, and not this machine's or its neighbors'."""

import ipaddress
import socket
from collections.abc import Callable, Sequence

NAT64 = ipaddress.ip_network("64:ff9b::/96")  # holds an IPv4 address in its last 32 bits (RFC 6052)
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""What IANA gives to the Internet. Python's own `is_global` takes NAT64 for local use (64:ff9b:1::/48), site-local
addresses (fec0::/10) and IPv4 addresses in ::/96 for public ones, each version others."""

Resolve = Callable[[str, int], Sequence[str]]
"""(host, port) -> its addresses; raises `OSError` where there are none."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve by the system."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(text: str) -> bool:
    """Whether an address is one of the Internet's: not private, loopback, link-local, shared, reserved or multicast,
    also where an IPv6 address holds an IPv4 one."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        held = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64:
            held.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(inner is not None and not is_public(str(inner)) for inner in held):
            return False
        if address.ipv4_mapped is not None or address in NAT64:
            return True
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast


def is_loopback(text: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False
