"""Seeded stochastic rounding: a weight between two storable numbers becomes either, with the chance of its nearness.

The mean of what is stored is then the weight itself, so small deltas survive; the price is noise. The seed makes it
repeatable. Source of the idea for adapters on fp8 weights: ComfyUI's LoRA patching.
"""

from dataclasses import replace

import torch
from torch import Tensor

from modules.memory.formats.blocks import is_packed
from modules.memory.formats.codes import CodesFormat
from modules.memory.formats.convrot import RotatedRowFormat
from modules.memory.formats.format import Encoded, StorageFormat, by_row

MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}
SMALLEST_EXPONENT = {torch.float8_e4m3fn: -6, torch.float8_e5m2: -14}


def encode_stochastic(storage: StorageFormat, weight: Tensor, seed: int) -> Encoded:
    """Like `storage.encode`, for 8-bit formats; other formats, packed ones among them, round to nearest as always."""
    if isinstance(storage, CodesFormat):
        return storage.codes_of(encode_stochastic(storage.floats, weight.cpu(), seed), weight.device)
    encoded = storage.encode(weight)
    if encoded.data.element_size() > 1 or is_packed(storage):
        return encoded
    if isinstance(storage, RotatedRowFormat):
        weight = storage.rotated(weight)
    numbers = weight.float() if encoded.scale is None else weight.float() / by_row(encoded.scale, weight.ndim)
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(weight.shape, generator=generator).to(weight.device)
    if not storage.dtype.is_floating_point:
        rounded = torch.floor(numbers + chance).clamp_(-127, 127)
        return replace(encoded, data=rounded.to(storage.dtype))
    largest = torch.finfo(storage.dtype).max
    numbers = numbers.clamp(-largest, largest)
    exponent = torch.frexp(numbers).exponent - 1
    step = torch.exp2((exponent.clamp(min=SMALLEST_EXPONENT[storage.dtype]) - MANTISSA_BITS[storage.dtype]).float())
    rounded = (torch.floor(numbers / step + chance) * step).clamp_(-largest, largest)
    return replace(encoded, data=rounded.to(storage.dtype))
