"""How long somebody waits who guesses passwords: longer with each guess, by address, and by address and name."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

MAX_ENTRIES = 4096
MAX_NAME = 64
LONGEST_WAIT_S = 900.0
FORGOTTEN_AFTER_S = 3600.0


@dataclass(frozen=True)
class Limit:
    """So many wrong ones are free; from then on each doubles the wait, beginning with a second."""

    free: int

    def wait_s(self, failures: int) -> float:
        return 0.0 if failures < self.free else min(2.0 ** min(failures - self.free, 20), LONGEST_WAIT_S)


OF_PAIR = Limit(5)
OF_ADDRESS = Limit(20)  # with whatever names


class Throttle:
    """Counts wrong passwords, keys and tokens; memory stays bounded. Not thread safe: one event loop.

    Nobody is locked out by what others do: a name alone is not counted.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._addresses: _Table = OrderedDict()
        self._pairs: _Table = OrderedDict()

    def failed(self, address: str, name: str = "") -> None:
        """A wrong password, key or token came from there, for this name."""
        place = network(address)
        self._count(self._addresses, (place,))
        self._count(self._pairs, (place, name[:MAX_NAME]))

    def succeeded(self, address: str, name: str = "") -> None:
        """The right one came: what was wrong before was a slip. The address keeps what it had with other names."""
        self._pairs.pop((network(address), name[:MAX_NAME]), None)

    def wait_s(self, address: str, name: str = "") -> int:
        """Seconds until this address may try this name again; 0: now."""
        place = network(address)
        waits = (
            self._wait_s(self._addresses, (place,), OF_ADDRESS),
            self._wait_s(self._pairs, (place, name[:MAX_NAME]), OF_PAIR),
        )
        return int(max(waits) + 0.999)

    def _count(self, table: "_Table", key: tuple[str, ...]) -> None:
        now = self._now()
        failures, last = table.get(key, (0, now))
        table[key] = (1 if now - last > FORGOTTEN_AFTER_S else failures + 1, now)
        table.move_to_end(key)
        while len(table) > MAX_ENTRIES:
            table.popitem(last=False)

    def _wait_s(self, table: "_Table", key: tuple[str, ...], limit: Limit) -> float:
        failures, last = table.get(key, (0, 0.0))
        return max(last + limit.wait_s(failures) - self._now(), 0.0) if failures >= limit.free else 0.0


_Table = OrderedDict[tuple[str, ...], tuple[int, float]]
"""How many failures, and when the last one was."""


def network(address: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, which one machine has all addresses of."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(IPv6Address(int(found) >> 64 << 64))
