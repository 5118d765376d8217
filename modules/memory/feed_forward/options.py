"""Into how many pieces a feed-forward is cut: fixed ones, or what a budget of bytes asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from modules.errors import InvalidValueError

MIN_TOKENS = 512  # a budget does not cut tokens finer than this: matrix products on fewer rows are slow
MAX_SPLITS = 64
ALIGNMENT = 64  # slices of a wide hidden dimension begin at multiples of this

Bytes = int | Callable[[torch.device], int]


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How feed-forwards are cut.

    `num_splits` slices of the hidden dimension (not more than it has units; sizes may differ), and, if given,
    `token_chunk` tokens at a time. Slices of tokens give the values of the whole; slices of the hidden dimension
    give the same up to rounding, and also limit how much of a stored weight is decoded at once.

    `budget_bytes` (a number, or a function of the device asked at each call) takes their place: what activations and
    decoded weights of one feed-forward may take in addition to its input and output. Tokens are cut first. What
    cannot be made to fit is cut as far as it makes sense.

    `fp32_accumulation` adds the slices up in float32 and rounds once, to the layer's dtype. Calls whose hidden
    activations take less than `least_bytes` are left whole. `few_pieces` computes only the two largest slices and the
    first tokens of calls without gradients, for those who ask what memory it takes. Raises `InvalidValueError`.
    """

    num_splits: int = 1
    token_chunk: int | None = None
    budget_bytes: Bytes | None = None
    fp32_accumulation: bool = False
    least_bytes: int = 0
    few_pieces: bool = False

    def __post_init__(self) -> None:
        if self.num_splits < 1:
            raise InvalidValueError(f"num_splits is {self.num_splits}. A feed-forward has at least 1 slice.")
        if self.token_chunk is not None and self.token_chunk < 1:
            raise InvalidValueError(f"token_chunk is {self.token_chunk}. Give 1 or more tokens, or None for all.")
        if isinstance(self.budget_bytes, int) and self.budget_bytes < 1:
            raise InvalidValueError(f"budget_bytes is {self.budget_bytes}. Give a positive number of bytes.")
        if self.budget_bytes is not None and (self.num_splits != 1 or self.token_chunk is not None):
            raise InvalidValueError(
                "budget_bytes chooses num_splits and token_chunk by itself. Give either a budget, or the numbers."
            )


@dataclass(frozen=True, kw_only=True)
class CallSize:
    """The memory and size of one call of a feed-forward.

    `bytes_per_activation` is for one hidden unit of one token, with all that is alive at the same time; `whole_bytes`
    the same where the hidden dimension is not sliced. `weight_bytes` is 0 for weights that need not be decoded.
    An activation takes `extra_bytes` more for each hidden unit of each token, but no more than `max_extra_bytes`.
    """

    tokens: int
    hidden: int
    bytes_per_activation: int
    whole_bytes: int
    weight_bytes: int = 0
    extra_bytes: int = 0
    max_extra_bytes: int = 0

    def peak_bytes(self, pieces: Pieces) -> int:
        """Predicted bytes in addition to input and output: the activations of one piece, and its decoded weights."""
        widest = max(stop - start for start, stop in hidden_slices(self.hidden, pieces.splits))
        weights = self.weight_bytes * widest // max(1, self.hidden)
        each = self.whole_bytes if pieces.splits == 1 else self.bytes_per_activation
        activations = min(self.tokens, pieces.chunk) * widest
        return activations * each + min(self.max_extra_bytes, activations * self.extra_bytes) + weights


@dataclass(frozen=True)
class Pieces:
    """`splits` slices of the hidden dimension, `chunk` tokens at a time."""

    splits: int
    chunk: int


def pieces_for(options: SplitOptions, size: CallSize, device: torch.device) -> Pieces:
    """How one call is cut."""
    whole = Pieces(1, max(1, size.tokens))
    if size.tokens * size.hidden * size.whole_bytes < options.least_bytes:
        return whole
    if options.budget_bytes is None:
        chunk = options.token_chunk or whole.chunk
        return Pieces(max(1, min(options.num_splits, size.hidden)), min(chunk, whole.chunk))
    budget = options.budget_bytes if isinstance(options.budget_bytes, int) else options.budget_bytes(device)
    return _within(budget, size)


def _within(budget: int, size: CallSize) -> Pieces:
    """The fewest slices of the hidden dimension that fit with a sensible number of tokens, then the most tokens."""
    minimum = min(MIN_TOKENS, max(1, size.tokens))
    finest = Pieces(1, minimum)
    for splits in range(1, min(MAX_SPLITS, size.hidden) + 1):
        finest = Pieces(splits, minimum)
        if size.peak_bytes(finest) <= budget:
            per_token = size.peak_bytes(Pieces(splits, 2)) - size.peak_bytes(Pieces(splits, 1))
            most = (budget - size.peak_bytes(Pieces(splits, 1))) // max(1, per_token) + 1
            chunk = min(size.tokens, most)
            even = -(-size.tokens // -(-size.tokens // max(1, chunk))) if size.tokens else 1  # of equal length
            return Pieces(splits, max(minimum, min(even, chunk)))
    return finest


def hidden_slices(hidden: int, splits: int) -> list[tuple[int, int]]:
    """Start and stop of each slice, as equal as possible; at multiples of 64 where there is room for that."""
    step = ALIGNMENT if hidden >= 2 * ALIGNMENT * splits else 1
    cuts = [min(hidden, round(hidden * i / splits / step) * step) for i in range(splits)] + [hidden]
    return [(start, stop) for start, stop in pairwise(cuts) if stop > start]
