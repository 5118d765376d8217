r"""Attention: `(more)`, `[less]`, `(word:1.3)`, and the word BREAK. One pass over the text, no recursion.

`(x)` multiplies by 1.1, `[x]` divides by 1.1, `(x:w)` multiplies by w; nesting multiplies; `\( \) \[ \] \\` are the
characters themselves, and a backslash before anything else vanishes. What is left open counts to the end of the text;
a closing bracket without a partner, or a colon without a number, is text.
"""

import math
import re
from itertools import groupby
from operator import itemgetter

BREAK = "BREAK"
# The weight of the marker for BREAK: the chunk ends here. Inside weighted brackets the marker is multiplied like any
# word, is then no marker any more, and the word itself is encoded: so the reference UI does it, and so must we.
BREAK_WEIGHT = -1.0

ROUND_FACTOR = 1.1
SQUARE_FACTOR = 1 / 1.1
# Brackets deeper than this are read but weigh nothing: 1.1 ** 128 is 200 000, beyond any use, and the bound keeps the
# work linear for text that is nothing but brackets.
MAX_DEPTH = 128

_TOKEN = re.compile(r"([^\\()\[\]:]+|\\[()\[\]\\]|\\|[()\[\]]|:(?:\s*([+-]?[.\d]+)\s*\))?)")
_SPECIAL = frozenset("\\()[]:")
_BREAK = re.compile(r"\bBREAK\b")

WeightedPiece = tuple[str, float]


class _Weighted:
    """The pieces found so far with their weights, and the brackets that are open."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.weights: list[float] = []
        self.round: list[int] = []
        self.square: list[int] = []

    def add(self, text: str, weight: float = 1.0) -> None:
        self.texts.append(text)
        self.weights.append(weight)

    def close(self, opened: list[int], factor: float) -> None:
        """Multiply everything since the innermost of the `opened` brackets, unless it lies too deep."""
        start = opened.pop()
        if len(self.round) + len(self.square) < MAX_DEPTH:
            self.scale(start, factor)

    def scale(self, start: int, factor: float) -> None:
        weights = self.weights
        for index in range(start, len(weights)):
            weights[index] *= factor


def parse_attention(text: str) -> list[WeightedPiece]:
    """Pieces of text with their weights, neighbours of equal weight merged; at least one piece; never fails.

    BREAK appears as the piece `("BREAK", -1)` with the spaces around it removed.
    """
    found = _Weighted()
    for token, number in _TOKEN.findall(text):
        if token[0] in _SPECIAL:
            _read(found, token, number)
        else:
            _add_plain(found, token)
    for start in found.round[:MAX_DEPTH]:
        found.scale(start, ROUND_FACTOR)
    for start in found.square[:MAX_DEPTH]:
        found.scale(start, SQUARE_FACTOR)
    return _merge(found) or [("", 1.0)]


def _read(found: _Weighted, token: str, number: str) -> None:
    first = token[0]
    if first == "(":
        found.round.append(len(found.texts))
    elif first == ":" and number and found.round:
        weight = _number(number)
        if weight is None:
            found.add(token[:-1])
        found.close(found.round, ROUND_FACTOR if weight is None else weight)
    elif first == ")" and found.round:
        found.close(found.round, ROUND_FACTOR)
    elif first == "[":
        found.square.append(len(found.texts))
    elif first == "]" and found.square:
        found.close(found.square, SQUARE_FACTOR)
    elif first == "\\":
        found.add(token[1:])
    else:
        _add_plain(found, token)


def _number(digits: str) -> float | None:
    """The weight, or None for what only looks like one ("1.2.3", or a number beyond the range of a float)."""
    try:
        weight = float(digits)
    except ValueError:
        return None
    return weight if math.isfinite(weight) else None


def _add_plain(found: _Weighted, token: str) -> None:
    if BREAK not in token:
        found.add(token)
        return
    parts = _BREAK.split(token)
    last = len(parts) - 1
    for index, part in enumerate(parts):
        if index > 0:
            found.add(BREAK, BREAK_WEIGHT)
            part = part.lstrip()
        found.add(part.rstrip() if index < last else part)


def _merge(found: _Weighted) -> list[WeightedPiece]:
    """Join neighbours of equal weight."""
    pieces = zip(found.weights, found.texts, strict=True)
    return [("".join(text for _, text in run), weight) for weight, run in groupby(pieces, key=itemgetter(0))]


def is_break(piece: WeightedPiece) -> bool:
    """Whether a piece is the marker that closes a chunk."""
    return piece[0] == BREAK and piece[1] == BREAK_WEIGHT
