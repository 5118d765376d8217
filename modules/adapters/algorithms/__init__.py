"""The algorithms of adapters. A new one is a file here and a line in `ALGORITHMS`."""

from collections.abc import Callable

from modules.adapters.algorithms import full, glora, ia3, loha, lokr, lora, oft
from modules.adapters.algorithms.adapter import COMMON_ENDS, Adapter, Factors
from modules.errors import InvalidValueError

ALGORITHMS: tuple[tuple[Callable[[Factors], Adapter | None], frozenset[str]], ...] = (
    (lora.read_lora, lora.ENDS),
    (loha.read_loha, loha.ENDS),
    (ia3.read_ia3, ia3.ENDS),
    (lokr.read_lokr, lokr.ENDS),
    (glora.read_glora, glora.ENDS),
    (oft.read_oft, oft.ENDS),
    (full.read_full, full.ENDS),  # last: a change of the bias may stand alongside any other kind
)
"""How each is read, and the ends of its tensors' names."""


def read_adapter(factors: Factors) -> Adapter | None:
    """The change that a layer's tensors describe, or None for tensors of no known kind.

    Raises `InvalidValueError` for factors that cannot be, and for tensors alongside a known kind that mean nothing
    here: without them the change would be another one than was trained.
    """
    for read, ends in ALGORITHMS:
        adapter = read(factors)
        if adapter is None:
            continue
        unread = sorted(factors.keys() - ends - COMMON_ENDS)
        if unread:
            raise InvalidValueError(f"{', '.join(unread)} beside it means nothing here")
        return adapter
    return None
