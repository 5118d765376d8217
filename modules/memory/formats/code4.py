"""`code4`: 4 bits per weight in blocks of 16, of which each has the best of four codebooks and of 32 scales.

A block's byte holds a sign, the power of the fourth root of 2 by which its scale is below the row's (5 bits), and the
codebook (2 bits). The codebooks are not symmetric; the sign turns one around, so that a block's largest weight
may be on either side. They were fitted once, by alternating between the choice for each block and the mean for each
code (Lloyd 1982), to blocks of Gaussian, Laplacian and trained weights; no weights or images are needed to store a
model. With the row's scale in float32 that is 4.5 bits per weight and 32 per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from modules.memory.formats.blocks import DECODED_AT_ONCE_ON_GPU, BlockFormat
from modules.memory.formats.format import Encoded, Rows, checked_slices, row_count, row_width

BLOCK = 16
SCALE_BYTES = 4
STEPS_PER_OCTAVE, LEVELS = 4, 32
HEADROOM = 2.0**0.125
"""Of the row's scale over its largest weight: a block's scale may be above its largest weight too."""
OFFSETS = (-1, 0, 1, 2)
"""Steps from the scale that puts a block's largest weight on 1 which are tried."""
DECODED_AT_ONCE = 1 << 17  # elements
ENCODED_AT_ONCE = 1 << 16
"""Elements: with the tables, what is on the way stays in a core's second-level cache."""
ENCODED_AT_ONCE_ON_GPU = 1 << 22
RANGE, CELLS_PER_ONE = 2.0, 1 << 12
"""Weights over their block's scale are below 1.6 in magnitude, see `OFFSETS`; looked up in so many cells per unit."""
CELLS = int(2 * RANGE * CELLS_PER_ONE)
SMALLEST_FACTOR = 2.0**-120
BOOKS = (
    *(-0.9048, -0.6667, -0.5199, -0.3957, -0.2863, -0.1854, -0.0936, -0.0108),
    *(0.07, 0.1585, 0.2551, 0.3532, 0.4503, 0.56, 0.6968, 0.9983),
    *(-0.8819, -0.7601, -0.6411, -0.5244, -0.4055, -0.2889, -0.1768, -0.0712),
    *(0.0221, 0.1091, 0.2014, 0.3046, 0.4273, 0.5628, 0.74, 0.9324),
    *(-0.921, -0.8249, -0.7217, -0.6057, -0.4853, -0.363, -0.239, -0.1165),
    *(0.0063, 0.1289, 0.2494, 0.3697, 0.495, 0.6302, 0.784, 0.9617),
    *(-0.7437, -0.5861, -0.4559, -0.3391, -0.2316, -0.1294, -0.0274, 0.0774),
    *(0.1876, 0.2984, 0.4108, 0.5293, 0.6532, 0.7787, 0.9144, 1.0076),
)
"""Four times 16 values."""


@cache
def _books(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(BOOKS, device=device).view(4, 16)


@cache
def _pairs(device: torch.device) -> Tensor:
    """For each codebook and byte both of its numbers, as the bits of one: int64 [1024]."""
    with torch.inference_mode(False):
        codes = torch.arange(256, device=device)
        books = _books(device)
        return torch.stack([books[:, codes & 15], books[:, codes >> 4]], dim=2).contiguous().view(torch.int64).view(-1)


@cache
def _scales(device: torch.device) -> Tensor:
    """Return the factor of each byte of a block on the row's scale, float32 [256]."""
    with torch.inference_mode(False):
        codes = torch.arange(256, device=device)
        below = torch.exp2(-((codes >> 2) & 31).float() / STEPS_PER_OCTAVE)
        return torch.where(codes >> 7 == 1, -below, below)


def _no_blocks(data: Tensor) -> Tensor:
    raise AssertionError("a row has a scale of its own: it is decoded as a whole")


@dataclass(frozen=True)
class Code4Format(BlockFormat):
    """A `BlockFormat` whose rows begin with their scale, then the blocks' bytes, then all codes (the first of two in
    the lower bits)."""

    def row_bytes(self, shape: tuple[int, ...]) -> int:
        """See `BlockFormat`."""
        return SCALE_BYTES + row_width(shape) // BLOCK * self.block_bytes

    def encode_rows(self, rows: Rows) -> Encoded:
        """See `StorageFormat`; raises as `BlockFormat` does."""
        self.check(rows.shape)
        count, row_bytes = row_count(rows.shape), self.row_bytes(rows.shape)
        data = torch.empty((count, row_bytes), dtype=torch.uint8, device=rows.device)
        at_once = ENCODED_AT_ONCE if rows.device.type == "cpu" else ENCODED_AT_ONCE_ON_GPU
        step = max(1, at_once // row_width(rows.shape))
        for where, part, _ in checked_slices(rows):
            target = data[where]
            for begin in range(0, len(part), step):
                target[begin : begin + step] = _encoded(part[begin : begin + step].float())
        return Encoded(data)

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """See `StorageFormat`."""
        assert scale is None, f"{self.name} holds its scales in its rows"
        wide = out.view(len(data), -1)
        blocks = wide.shape[1] // BLOCK
        at_once = DECODED_AT_ONCE if data.device.type == "cpu" else DECODED_AT_ONCE_ON_GPU
        step = max(1, at_once // max(1, wide.shape[1]))
        for begin in range(0, len(data), step):
            part = data[begin : begin + step]
            top = part[:, :SCALE_BYTES].contiguous().view(torch.float32)
            heads, codes = part[:, SCALE_BYTES : SCALE_BYTES + blocks], part[:, SCALE_BYTES + blocks :]
            factors = _scales(data.device).index_select(0, heads.reshape(-1).int()).view(len(part), blocks) * top
            places = (heads & 3).int().mul_(256)[:, :, None] + codes.reshape(len(part), blocks, BLOCK // 2)
            values = _pairs(data.device).index_select(0, places.view(-1)).view(torch.float32)
            wide[begin : begin + step] = values.view(len(part), blocks, BLOCK).mul_(factors[:, :, None]).flatten(1)
        return out


@cache
def _error_pairs(device: torch.device) -> tuple[Tensor, Tensor]:
    """The squared errors of the two first and of the two last codebooks in each cell, as the bits of one number:
    int64 [CELLS] each."""
    with torch.inference_mode(False):
        values = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS_PER_ONE - RANGE
        distances = values[:, None, None] - torch.tensor(BOOKS, dtype=torch.float64).view(4, 16)
        errors = distances.square().amin(dim=2).float().to(device)  # [CELLS, 4]
        first, last = (errors[:, books].contiguous().view(torch.int64).view(-1) for books in (slice(2), slice(2, 4)))
        return first, last


@cache
def _codes_of_cells(device: torch.device) -> tuple[Tensor, Tensor]:
    """For each codebook and cell the code at its lower end, uint8 [4 * CELLS], and from where in it on the next one is
    nearer, float32 [4 * CELLS]: no cell is wide enough for two such bounds."""
    with torch.inference_mode(False):
        books = torch.tensor(BOOKS).view(4, 16)
        bounds = torch.nn.functional.pad((books[:, 1:] + books[:, :-1]) / 2, (0, 1), value=torch.inf)
        # The cell of a number is computed with a rounding, so each begins a little lower than it should.
        ends = ((torch.arange(CELLS, dtype=torch.float64) - 0.01) / CELLS_PER_ONE - RANGE).float()
        codes = torch.stack([torch.bucketize(ends, own[:-1]) for own in bounds])
        limits = bounds.gather(1, codes)
        return codes.to(device, torch.uint8).view(-1), limits.to(device).view(-1)


def _encoded(weights: Tensor) -> Tensor:
    """Rows [n, width] as bytes: for each block the codebook and scale with the smallest squared error.

    The errors are looked up in cells that are much narrower than the distance between two codes, those of two codebooks
    at once; the codes are then the nearest ones."""
    count, device = len(weights), weights.device
    blocks = weights.reshape(-1, BLOCK).t().contiguous()  # [16, blocks]: sums over a block add whole vectors
    low, high = blocks.amin(dim=0), blocks.amax(dim=0)
    peak = torch.maximum(high, -low)
    top = peak.view(count, -1).amax(dim=1, keepdim=True) * HEADROOM
    tops = top.expand(count, len(peak) // count).reshape(-1)
    is_turned = high < -low
    share = (peak / tops).nan_to_num_(0.0).clamp_min_(2.0**-20)
    level = share.log2_().mul_(-STEPS_PER_OCTAVE).round_()
    below = (level + torch.tensor(OFFSETS, device=device)[:, None]).clamp_(0, LEVELS - 1)  # [offsets, blocks]
    factors = torch.exp2(below / -STEPS_PER_OCTAVE).mul_(torch.where(is_turned, -tops, tops))
    # Of rows that are next to nothing the inverse would be infinite: their codes are those of zeros.
    inverse = torch.where(factors.abs() < SMALLEST_FACTOR, torch.zeros_like(factors), 1 / factors)
    places = inverse * CELLS_PER_ONE
    middle = torch.tensor(RANGE * CELLS_PER_ONE, device=device)
    errors = torch.empty((len(OFFSETS), len(peak), 4), device=device)
    for number in range(len(OFFSETS)):
        cells = torch.addcmul(middle, blocks, places[number]).int().view(-1)
        for books, pairs in zip((slice(2), slice(2, 4)), _error_pairs(device), strict=True):
            found = pairs.index_select(0, cells).view(torch.float32)
            errors[number, :, books] = found.view(BLOCK, -1, 2).sum(dim=0)
    errors.mul_(torch.exp2(below * (-2 / STEPS_PER_OCTAVE))[:, :, None])  # of the row's scale, which all have
    # The lowest bits of an error say whose it is, so that the smallest error brings that along.
    candidates = torch.arange(4 * len(OFFSETS), dtype=torch.int32, device=device).view(-1, 1, 4)
    best = errors.view(torch.int32).bitwise_and_(-len(OFFSETS) * 4).bitwise_or_(candidates).amin(dim=0).amin(dim=1)
    offset, book = ((best >> 2) & 3).long()[None], best & 3
    scaled = blocks * inverse.gather(0, offset)
    cells = torch.add(middle, scaled, alpha=CELLS_PER_ONE).int().add_(book * CELLS).view(-1)
    codes_of_cells, limits = _codes_of_cells(device)
    codes = codes_of_cells.index_select(0, cells).add_(scaled.view(-1) > limits.index_select(0, cells))
    codes = codes.view(BLOCK, -1)
    packed = (codes[::2] | (codes[1::2] << 4)).t().reshape(count, -1)
    chosen = below.gather(0, offset)[0].to(torch.uint8)
    heads = (is_turned.to(torch.uint8) << 7) | (chosen << 2) | book.to(torch.uint8)
    return torch.cat([top.contiguous().view(torch.uint8), heads.view(count, -1), packed], dim=1)


CODE4 = Code4Format("code4", BLOCK, 1 + BLOCK // 2, _no_blocks)
