"""The kinds of networks. A new kind is a file here and a line in `READERS`."""

from collections.abc import Callable

from modules.networks.kinds.adapter import Adapter, Factors
from modules.networks.kinds.full import read_full
from modules.networks.kinds.glora import read_glora
from modules.networks.kinds.ia3 import read_ia3
from modules.networks.kinds.loha import read_loha
from modules.networks.kinds.lokr import read_lokr
from modules.networks.kinds.lora import read_lora
from modules.networks.kinds.oft import read_oft

READERS: tuple[Callable[[Factors], Adapter | None], ...] = (
    read_lora,
    read_loha,
    read_ia3,
    read_lokr,
    read_full,
    read_glora,
    read_oft,
)


def read_adapter(factors: Factors) -> Adapter | None:
    """The change that a layer's tensors describe, or None for tensors of no known kind."""
    for read in READERS:
        adapter = read(factors)
        if adapter is not None:
            return adapter
    return None
