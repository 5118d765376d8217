"""A key map: how the tensors of an original file are called, and shaped, in the modules that we build."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModulePair:
    """A module's name in the original file and in ours. `squeeze`: a 1x1 convolution there is a Linear here."""

    original: str
    ours: str
    squeeze: bool = False


class KeyMap:
    """Pairs of modules, used in both directions. A parameter belongs to the pair with the longest matching prefix."""

    def __init__(self, pairs: Iterable[ModulePair]) -> None:
        self._pairs = tuple(pairs)
        self._by_original = {pair.original: pair for pair in self._pairs}
        self._by_ours = {pair.ours: pair for pair in self._pairs}
        if len(self._by_original) != len(self._pairs) or len(self._by_ours) != len(self._pairs):
            raise ValueError("a module stands twice in a key map")

    def to_ours(self, key: str) -> str | None:
        """Our name of an original tensor, or None when no module of the map holds it."""
        found = _longest_prefix(key, self._by_original)
        return f"{found[0].ours}.{found[1]}" if found else None

    def to_original(self, key: str) -> str | None:
        """The original name of one of our parameters, or None."""
        found = _longest_prefix(key, self._by_ours)
        return f"{found[0].original}.{found[1]}" if found else None

    def tensor_to_ours(self, key: str, tensor: Tensor) -> Tensor:
        """The tensor in the shape that our module has: [out, in, 1, 1] becomes [out, in] where `squeeze` says so."""
        return tensor.flatten(1) if self._is_squeezed(key, self._by_original) and tensor.ndim > 2 else tensor

    def tensor_to_original(self, key: str, tensor: Tensor) -> Tensor:
        """The inverse of `tensor_to_ours`; `key` is our name."""
        squeezed = self._is_squeezed(key, self._by_ours) and tensor.ndim == 2
        return tensor[:, :, None, None] if squeezed else tensor

    def shape_to_ours(self, key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape a tensor of this original key has in our module."""
        if self._is_squeezed(key, self._by_original) and shape[2:] == (1, 1):
            return shape[:2]
        return shape

    @staticmethod
    def _is_squeezed(key: str, pairs: Mapping[str, ModulePair]) -> bool:
        found = _longest_prefix(key, pairs)
        return found is not None and found[0].squeeze


def _longest_prefix(key: str, pairs: Mapping[str, ModulePair]) -> tuple[ModulePair, str] | None:
    """The pair that holds `key` and the rest of the key behind its name."""
    head, dot, _ = key.rpartition(".")
    while dot:
        if head in pairs:
            return pairs[head], key[len(head) + 1 :]
        head, dot, _ = head.rpartition(".")
    return None
