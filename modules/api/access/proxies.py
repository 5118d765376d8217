"""Headers of reverse proxies (X-Forwarded-For, -Proto, -Host), accepted only from addresses that a flag names.

Whoever sends such a header otherwise could choose the address that wrong passwords are counted by, and the names in the
page's own links.
"""

from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import Scope

from modules.errors import InvalidValueError

PREFIX = b"x-forwarded-"
OTHERS = (b"forwarded", b"x-real-ip")


class Proxies:
    """The addresses and networks of --trusted-proxy."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises `InvalidValueError` for what is no address."""
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in texts:
            try:
                self._networks.append(ip_network(text.strip(), strict=False))
            except ValueError as error:
                raise InvalidValueError(
                    f"--trusted-proxy {text} is no address: give one like 127.0.0.1, or a network like 10.0.0.0/8."
                ) from error

    def include(self, address: str) -> bool:
        """Whether a request comes from a proxy that is believed."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)

    def heard(self, scope: Scope, is_own_name: Callable[[str], bool]) -> Scope:
        """The request as it was sent to the proxy. From any other address such headers are left out; so is a host that
        is none of this server's names."""
        headers = Headers(scope=scope)
        client = scope.get("client")
        address = client[0] if client else ""
        if not self.include(address):
            return {**scope, "headers": [pair for pair in scope["headers"] if not _is_forwarded(pair[0])]}
        way = [part.strip() for part in ",".join(headers.getlist("x-forwarded-for")).split(",") if part.strip()]
        sender = next((hop for hop in reversed(way) if not self.include(hop)), way[0] if way else address)
        scheme = headers.get("x-forwarded-proto", "").strip().lower()
        found = {**scope, "client": (sender, 0) if sender != address else client}
        if scheme in ("http", "https"):
            found["scheme"] = scheme if scope["type"] == "http" else {"http": "ws", "https": "wss"}[scheme]
        host = headers.get("x-forwarded-host", "")
        if host and not is_own_name(host):
            found["headers"] = [pair for pair in scope["headers"] if pair[0].lower() != b"x-forwarded-host"]
        return found


def _is_forwarded(name: bytes) -> bool:
    return name.lower().startswith(PREFIX) or name.lower() in OTHERS
