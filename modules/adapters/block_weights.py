"""Weights of an adapter by the blocks of a UNet, as `lbw=` of a tag gives them: a preset's name, or a number for each
block in one of four layouts (12, 17, 20 or 26 numbers, as UNets have blocks; the first is the text encoder's)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from modules.errors import InvalidValueError

BASE, MIDDLE = "BASE", "M00"


def _blocks(side: str, numbers: tuple[int, ...] | range) -> tuple[str, ...]:
    return tuple(f"{side}{number:02}" for number in numbers)


LAYOUTS: Mapping[int, tuple[str, ...]] = {
    12: (BASE, *_blocks("IN", (4, 5, 7, 8)), MIDDLE, *_blocks("OUT", range(6))),
    17: (BASE, *_blocks("IN", (1, 2, 4, 5, 7, 8)), MIDDLE, *_blocks("OUT", range(3, 12))),
    20: (BASE, *_blocks("IN", range(9)), MIDDLE, *_blocks("OUT", range(9))),
    26: (BASE, *_blocks("IN", range(12)), MIDDLE, *_blocks("OUT", range(12))),
}
"""Names of the blocks by how many numbers are given; a block that a layout does not name keeps its weight."""


def _of_17(*ones: int) -> tuple[float, ...]:
    return tuple(float(place in ones) for place in range(17))


PRESETS: Mapping[str, tuple[float, ...]] = {
    "NONE": _of_17(),
    "ALL": _of_17(*range(17)),
    "INS": _of_17(0, 1, 2),
    "IND": _of_17(0, 4, 5, 6),
    "INALL": _of_17(*range(7)),
    "MIDD": _of_17(0, *range(4, 12)),
    "OUTD": _of_17(0, *range(8, 12)),
    "OUTS": _of_17(0, *range(12, 17)),
    "OUTALL": _of_17(0, *range(8, 17)),
}
"""The presets that LoRA Block Weight has, in its layout of 17 numbers."""
_ORIGINAL = re.compile(r"(?:^|\.)(input_blocks|output_blocks|middle_block)\.(\d+)\.")
_SIDES = {"input_blocks": "IN", "output_blocks": "OUT"}


def block_of(original: str | None) -> str:
    """The block that a layer of a UNet is in, by its name in the original layout; "" for those outside of blocks."""
    found = _ORIGINAL.search(original or "")
    if found is None:
        return ""
    return MIDDLE if found[1] == "middle_block" else f"{_SIDES[found[1]]}{int(found[2]):02}"


@dataclass(frozen=True)
class BlockWeights:
    """`base` multiplies the text encoder's strength, `blocks` (name, factor) the UNet's."""

    base: float = 1.0
    blocks: tuple[tuple[str, float], ...] = ()

    def of(self, block: str) -> float:
        """The factor of a block; 1 for one that is not named."""
        return dict(self.blocks).get(block, 1.0)


NO_PRESETS: Mapping[str, str] = MappingProxyType({})


def looks_like_weights(text: str, own: Mapping[str, str] = NO_PRESETS) -> bool:
    """Whether a part of a tag without a name means block weights; `own` are the user's presets."""
    return "," in text or text.upper() in PRESETS or text.upper() in own


def _finite(word: str) -> float:
    value = float(word)
    if value != value or abs(value) == float("inf"):
        raise ValueError(word)
    return value


def read_block_weights(text: str, own: Mapping[str, str] = NO_PRESETS) -> BlockWeights:
    """The weights that a preset's name or comma-separated numbers mean; `own` are the user's presets, as text by their
    names in upper case, which count first. Raises `InvalidValueError`."""
    name = text.strip().upper()
    values = None if name in own else PRESETS.get(name)
    if name in own:
        text = f"{name}:{own[name]}"
    words = [word.strip() for word in own.get(name, text).split(",")]
    if values is None:
        try:
            values = tuple(_finite(word) for word in words)
        except ValueError as error:
            known = ", ".join(dict.fromkeys((*PRESETS, *own)))
            raise InvalidValueError(
                f"lbw={text}: neither numbers nor a preset ({known}); the tag was ignored."
            ) from error
    layout = LAYOUTS.get(len(values))
    if layout is None:
        counts = ", ".join(str(count) for count in LAYOUTS)
        raise InvalidValueError(
            f"lbw={text}: {len(values)} numbers are given; it must be one of {counts}. The tag was ignored."
        )
    return BlockWeights(values[0], tuple((name, value) for name, value in zip(layout[1:], values[1:], strict=True)))
