"""The way back: weighted pieces as a prompt that parses to the same pieces."""

import re
from collections.abc import Sequence
from decimal import Decimal

from modules.prompting.attention import BREAK, WeightedPiece

_NEEDS_ESCAPE = re.compile(r"[\\()\[\]]")
# A backslash before an ordinary character vanishes in parsing: it keeps neighbours apart that would mean something.
_GUARD = "\\"


def print_attention(pieces: Sequence[WeightedPiece]) -> str:
    """A prompt for which `parse_attention` gives `pieces`, for any result of `parse_attention` with finite weights.

    Weights are printed with all their digits and without exponents, which the prompt syntax doesn't know.
    """
    if list(pieces) == [("", 1.0)]:
        return ""
    printed: list[str] = []
    index = 0
    while index < len(pieces):
        end = _end_of_breaks(pieces, index)
        printed.append(_print_group(pieces[index:end]))
        index = end
    return "".join(printed)


def _end_of_breaks(pieces: Sequence[WeightedPiece], start: int) -> int:
    """Where the run text, BREAK, text, BREAK ... text that begins at `start` ends: its words share their brackets."""
    weight = pieces[start][1]
    end = start + 1
    while end + 1 < len(pieces) and pieces[end] == (BREAK, -weight) and pieces[end + 1][1] == weight:
        end += 2
    return end


def _print_group(group: Sequence[WeightedPiece]) -> str:
    weight = group[0][1]
    texts = [text for text, _ in group[::2]]
    last = len(texts) - 1
    inner = f" {BREAK} ".join(
        _print_text(text, after_break=index > 0, before_break=index < last) for index, text in enumerate(texts)
    )
    if weight == 1.0 and inner:
        return inner
    return f"({inner or _GUARD}:{_print_number(weight)})"


def _print_text(text: str, *, after_break: bool, before_break: bool) -> str:
    """Escape brackets and backslashes, split the word BREAK, and keep the space next to a real BREAK."""
    printed = _NEEDS_ESCAPE.sub(r"\\\g<0>", text).replace(BREAK, BREAK[0] + _GUARD + BREAK[1:])
    if after_break and text[:1].isspace():
        printed = _GUARD + printed
    if before_break and text[-1:].isspace():
        printed += _GUARD
    return printed


def _print_number(weight: float) -> str:
    return format(Decimal(repr(weight)), "f")
