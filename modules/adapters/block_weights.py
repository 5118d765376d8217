"""Weights of an adapter by the blocks of a UNet, as `lbw=` of a tag gives them: a preset's name, or a number for each
block in one of four layouts (12, 17, 20 or 26 numbers, as UNets have blocks; the first is the text encoder's)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    def of(self, block: str, layer: str = "") -> float:
        """Return the factor of a layer in a block: that of the last element (`BLOCK:WORD`) whose word is in the layer's
        name, else that of the block; 1 for one that is not named."""
        found = dict(self.blocks).get(block, 1.0)
        for name, factor in self.blocks:
            at, _, word = name.partition(":")
            if word and at == block and word in layer:
                found = factor
        return found


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


ELEMENTS: Mapping[str, str] = {
    "ATTNDEEPON": "IN05-OUT05:attn:1",
    "ATTNDEEPOFF": "IN05-OUT05:attn:0",
    "PROJDEEPOFF": "IN05-OUT05:proj:0",
    "XYZ": "::1",
}
"""The presets that LoRA Block Weight has for `lbwe=`."""


def split_elements(items: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Take `lbwe=BLOCKS:ELEMENTS:FACTOR,...` out of a tag's parts, which end at the same colons. Returns the other
    parts and what follows the sign; "" where there is none."""
    place = next((at for at, item in enumerate(items) if item.lower().startswith("lbwe=")), None)
    if place is None:
        return tuple(items), ""
    end, text = place + 1, items[place][len("lbwe=") :]
    while text.upper() not in ELEMENTS and end + 1 < len(items) and (end == place + 1 or "," in items[end - 1]):
        text = ":".join([text, *items[end : end + 2]])
        end += 2
    return (*items[:place], *items[end:]), text


def read_elements(text: str) -> tuple[tuple[str, float], ...]:
    """Return the factors of layers by `BLOCK:WORD` that `lbwe=` means: a preset's name, or rules between commas, each
    blocks (`IN01 OUT03-OUT05`, empty: all), words of layers' names (`attn1 to_q`) and a factor. Raises
    `InvalidValueError`."""
    found: list[tuple[str, float]] = []
    for rule in ELEMENTS.get(text.strip().upper(), text).split(","):
        try:
            where, words, factor = rule.split(":")
            value = _finite(factor)
            blocks = [block for part in where.split() for block in _range(part)] or LAYOUTS[26]
        except (ValueError, IndexError) as error:
            raise InvalidValueError(
                f"lbwe={text}: {rule!r} is no rule such as IN05-OUT05:attn:0, and no preset ({', '.join(ELEMENTS)}); "
                "the tag was ignored."
            ) from error
        found += [(f"{block}:{word}", value) for block in blocks for word in words.split() or ["."]]
    return tuple(found)


def _range(part: str) -> tuple[str, ...]:
    """Return the blocks of `IN05-OUT05`, or of one name. Raises ValueError."""
    first, _, last = part.upper().replace("MID", MIDDLE).partition("-")
    begin = LAYOUTS[26].index(first)
    return LAYOUTS[26][begin : (LAYOUTS[26].index(last) if last else begin) + 1]
