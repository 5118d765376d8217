"""The block types of GGUF files (ggml's `ggml-common.h` names them and lays them out), decoded and, where a type is
made in one pass, encoded as ggml does.

Numbers of 16 bits are little-endian. A block of 32 has one scale; a super-block of 256 has a scale in 16 bits and
scales of 4 to 8 bits for its parts. All functions take and give many blocks at once, uint8 [n, bytes] and float32
[n, weights], on any device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from modules.memory.formats.blocks import BlockFormat

SMALL, LARGE = 32, 256
NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 16 values of the IQ4 types."""
GATHER_BITS = sum(1 << (56 - 7 * place) for place in range(8))
"""Times this, the lowest bit of byte k becomes bit 56 + k; the other products miss the last byte or are beyond it."""


def _half(data: Tensor) -> Tensor:
    """Two bytes as a float16 number, widened [n, 1]."""
    return data.contiguous().view(torch.float16).float()


def _halves(data: Tensor) -> Tensor:
    """4-bit numbers of [n, k] bytes: the low ones of all, then the high ones [n, 2k]."""
    return torch.cat([data & 0x0F, data >> 4], dim=1)


def _bits(data: Tensor, width: int) -> Tensor:
    """Numbers of `width` bits: [n, k] bytes to [n, 8 / width, k], the lowest bits first."""
    mask = (1 << width) - 1
    return torch.stack([(data >> shift) & mask for shift in range(0, 8, width)], dim=1)


def _high_bits(data: Tensor) -> Tensor:
    """The 32 bits of 4 bytes [n, 32]."""
    return torch.stack([(data >> shift) & 1 for shift in range(8)], dim=2).reshape(len(data), -1)


def _small_scales(data: Tensor) -> tuple[Tensor, Tensor]:
    """8 scales and 8 minima of 6 bits each from 12 bytes, float32 [n, 8]."""
    low, middle, high = data[:, 0:4], data[:, 4:8], data[:, 8:12]
    scales = torch.cat([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], dim=1)
    minima = torch.cat([middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)], dim=1)
    return scales.float(), minima.float()


def _scaled(numbers: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """Each part of a block [n, parts, k] times its scale [n, parts], less its minimum; [n, parts * k]."""
    wide = numbers.float().mul_(scales[:, :, None])
    if minima is not None:
        wide.sub_(minima[:, :, None])
    return wide.flatten(1)


def _q4_0(data: Tensor) -> Tensor:
    return _halves(data[:, 2:]).float().sub_(8).mul_(_half(data[:, :2]))


def _q4_1(data: Tensor) -> Tensor:
    return _halves(data[:, 4:]).float().mul_(_half(data[:, :2])).add_(_half(data[:, 2:4]))


def _q5_0(data: Tensor) -> Tensor:
    numbers = _halves(data[:, 6:]) | (_high_bits(data[:, 2:6]) << 4)
    return numbers.float().sub_(16).mul_(_half(data[:, :2]))


def _q5_1(data: Tensor) -> Tensor:
    numbers = _halves(data[:, 8:]) | (_high_bits(data[:, 4:8]) << 4)
    return numbers.float().mul_(_half(data[:, :2])).add_(_half(data[:, 2:4]))


def _q8_0(data: Tensor) -> Tensor:
    return data[:, 2:].view(torch.int8).float().mul_(_half(data[:, :2]))


def _q2_k(data: Tensor) -> Tensor:
    scales, numbers = data[:, :16], data[:, 16:80]
    factor, minimum = _half(data[:, 80:82]), _half(data[:, 82:84])
    values = _bits(numbers.reshape(-1, 32), 2).reshape(-1, 16, 16)
    return _scaled(values, factor * (scales & 0x0F).float(), minimum * (scales >> 4).float())


def _q3_k(data: Tensor) -> Tensor:
    high, numbers, scales, factor = data[:, :32], data[:, 32:96], data[:, 96:108], _half(data[:, 108:110])
    lower = _halves(scales[:, :8])
    upper = _bits(scales[:, 8:], 2).reshape(-1, 16)
    parts = (lower | (upper << 4)).float() - 32
    values = _bits(numbers.reshape(-1, 32), 2).reshape(-1, 16, 16).float()
    missing = (1 - _bits(high, 1).reshape(-1, 16, 16).float()) * 4
    return _scaled(values - missing, factor * parts)


def _q4_k(data: Tensor) -> Tensor:
    scales, minima = _small_scales(data[:, 4:16])
    values = _bits(data[:, 16:].reshape(-1, 32), 4).reshape(-1, 8, 32)
    return _scaled(values, _half(data[:, :2]) * scales, _half(data[:, 2:4]) * minima)


def _q5_k(data: Tensor) -> Tensor:
    scales, minima = _small_scales(data[:, 4:16])
    high = _bits(data[:, 16:48], 1)
    values = _bits(data[:, 48:].reshape(-1, 32), 4).reshape(-1, 8, 32) | (high << 4)
    return _scaled(values, _half(data[:, :2]) * scales, _half(data[:, 2:4]) * minima)


def _q6_k(data: Tensor) -> Tensor:
    low, high, scales, factor = data[:, :128], data[:, 128:192], data[:, 192:208], _half(data[:, 208:210])
    lower = _bits(low.reshape(-1, 64), 4).reshape(-1, 8, 32)
    upper = _bits(high.reshape(-1, 32), 2).reshape(-1, 8, 32)
    values = (lower | (upper << 4)).reshape(-1, 16, 16).float() - 32
    return _scaled(values, factor * scales.view(torch.int8).float())


def _looked_up(codes: Tensor) -> Tensor:
    return torch.tensor(NON_LINEAR, dtype=torch.float32, device=codes.device)[codes.long()]


def _iq4_nl(data: Tensor) -> Tensor:
    return _looked_up(_halves(data[:, 2:])).mul_(_half(data[:, :2]))


def _iq4_xs(data: Tensor) -> Tensor:
    factor, upper, lower, codes = _half(data[:, :2]), data[:, 2:4], data[:, 4:8], data[:, 8:]
    low = torch.stack([lower & 0x0F, lower >> 4], dim=2).flatten(1)
    # The upper two bits of 8 scales: a little-endian number of 16 bits, so byte after byte from the lowest bits.
    high = torch.stack([(upper >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)
    values = _looked_up(_bits(codes.reshape(-1, 16), 4).reshape(-1, 8, 32))
    return _scaled(values, factor * ((low | (high << 4)).float() - 32))


# -- encoding, as ggml's reference does it ----------------------------------------------------------------------------


def _joined(codes: Tensor) -> Tensor:
    """4-bit numbers [n, 2k] to bytes [n, k], the first half in the low bits."""
    half = codes.shape[1] // 2
    return codes[:, :half] | (codes[:, half:] << 4)


def _as_bytes(number: Tensor) -> Tensor:
    """Numbers [n] as float16, two bytes each [n, 2]."""
    return number.to(torch.float16).reshape(-1, 1).view(torch.uint8)


def _inverse(number: Tensor) -> Tensor:
    return torch.where(number == 0, torch.zeros_like(number), 1 / number)


def _signed_peak(blocks: Tensor) -> Tensor:
    """The number of the largest magnitude of each block, with its sign [n]; the first one where two are equal."""
    low, high = blocks.amin(dim=1), blocks.amax(dim=1)
    peak = torch.where(high > -low, high, low)
    equal = (high == -low).nonzero()[:, 0]  # seldom: and to search each block costs as much as all the rest
    if len(equal):
        rows = blocks[equal]
        peak[equal] = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))[:, 0]
    return peak


def _high_bytes(codes: Tensor) -> Tensor:
    """Bit 4 of 32 numbers as 4 bytes: eight are one integer, whose product has all eight bits in its last byte."""
    bits = (codes >> 4).contiguous().view(torch.int64)  # numbers below 32: each byte is 0 or 1
    return (bits * GATHER_BITS >> 56).to(torch.uint8)  # of the copies of the sign only the lowest byte is taken


def _to_q8_0(blocks: Tensor) -> Tensor:
    scale = blocks.abs().amax(dim=1) / 127
    scaled = blocks * _inverse(scale)[:, None]
    codes = torch.trunc(scaled + torch.sign(scaled) * 0.5).to(torch.int8)  # halves away from zero, as C rounds
    return torch.cat([_as_bytes(scale), codes.view(torch.uint8)], dim=1)


def _to_q4_0(blocks: Tensor) -> Tensor:
    scale = _signed_peak(blocks) / -8
    codes = torch.trunc(blocks * _inverse(scale)[:, None] + 8.5).clamp(0, 15).to(torch.uint8)
    return torch.cat([_as_bytes(scale), _joined(codes)], dim=1)


def _to_q4_1(blocks: Tensor) -> Tensor:
    low, high = torch.aminmax(blocks, dim=1)
    scale = (high - low) / 15
    codes = torch.trunc((blocks - low[:, None]) * _inverse(scale)[:, None] + 0.5).clamp(0, 15).to(torch.uint8)
    return torch.cat([_as_bytes(scale), _as_bytes(low), _joined(codes)], dim=1)


def _to_q5_0(blocks: Tensor) -> Tensor:
    scale = _signed_peak(blocks) / -16
    codes = torch.trunc(blocks * _inverse(scale)[:, None] + 16.5).clamp(0, 31).to(torch.uint8)
    return torch.cat([_as_bytes(scale), _high_bytes(codes), _joined(codes & 0x0F)], dim=1)


def _to_q5_1(blocks: Tensor) -> Tensor:
    low, high = torch.aminmax(blocks, dim=1)
    scale = (high - low) / 31
    codes = torch.trunc((blocks - low[:, None]) * _inverse(scale)[:, None] + 0.5).clamp(0, 31).to(torch.uint8)
    return torch.cat([_as_bytes(scale), _as_bytes(low), _high_bytes(codes), _joined(codes & 0x0F)], dim=1)


Q8_0 = BlockFormat("gguf_q8_0", SMALL, 34, _q8_0, _to_q8_0)
Q5_1 = BlockFormat("gguf_q5_1", SMALL, 24, _q5_1, _to_q5_1)
Q5_0 = BlockFormat("gguf_q5_0", SMALL, 22, _q5_0, _to_q5_0)
Q4_1 = BlockFormat("gguf_q4_1", SMALL, 20, _q4_1, _to_q4_1)
Q4_0 = BlockFormat("gguf_q4_0", SMALL, 18, _q4_0, _to_q4_0)
GGUF_BLOCKS: Mapping[str, BlockFormat] = {
    form.name: form
    for form in (
        *(Q8_0, Q5_1, Q5_0, Q4_1, Q4_0),
        BlockFormat("gguf_iq4_nl", SMALL, 18, _iq4_nl),
        BlockFormat("gguf_iq4_xs", LARGE, 136, _iq4_xs),
        BlockFormat("gguf_q6_k", LARGE, 210, _q6_k),
        BlockFormat("gguf_q5_k", LARGE, 176, _q5_k),
        BlockFormat("gguf_q4_k", LARGE, 144, _q4_k),
        BlockFormat("gguf_q3_k", LARGE, 110, _q3_k),
        BlockFormat("gguf_q2_k", LARGE, 84, _q2_k),
    )
}
"""By our name. Those that can be written are storage formats that one may choose."""
