"""Linear layers and convolutions that multiply in int8: weights stay as they are stored, inputs are rounded for it.

A Linear's input gets one scale per token, a 3x3 convolution's one per image; sums are int32 and exact, so that no
kernel, no slicing and no place of the weights changes a result. Scales and bias are applied to the sums in float32. A
rotated weight (`modules.memory.formats.convrot`) has its input rotated. A convolution gathers the 3x3 neighbours of
each place into a row, in slices, and is a product of matrices too: that costs some percent against a kernel of its own,
and needs no packed copy of the weight.

Rounding an input to 127 steps of its largest value loses about 1 % of a Gaussian one. That weighs more where a layer's
output hangs on small inputs; what each layer loses on made-up inputs with channels of very different size is measured
at its first use, and one that loses too much decodes from then on.

On the CPU inputs are rounded and sums are scaled in one pass each where compiled kernels are at hand, see
`modules.memory.kernels.product_support`; on GPUs inputs are rounded in one pass and sums are scaled inside the product,
see `modules.memory.kernels.gpu_products`. Elsewhere PyTorch's operations do both.

Layers that are given one input (query, key and value of an attention) share it rounded.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import first_line
from modules.memory.formats.convrot import RotatedRowFormat
from modules.memory.formats.format import StorageFormat
from modules.memory.formats.rotation import rotate
from modules.memory.kernels.gpu_products import INT8_PRODUCT, ROUNDING
from modules.memory.kernels.product_support import product_kernels
from modules.memory.layer import Stored, put_channels_last, stored_state, stored_tensors
from modules.memory.recovery import is_out_of_memory
from modules.memory.scratch import scratch

log = logging.getLogger(__name__)

LARGEST = 127.0
SMALLEST_PEAK = 1e-12
MIN_SIDE = 32
"""Inputs and outputs of a layer from which on it pays."""
MIN_TOKENS = {"cpu": 8, "cuda": 17}
"""Of one image, by device. Below, the weight is read for too few products; CUDA's kernel has its limit there. Vectors
without a dimension of tokens (a time embedding) never pay."""
MIN_PRODUCTS = 1 << 24
"""Of one image: a smaller layer is done before its input would be rounded."""
CUDA_MULTIPLE = 8
SLICE_SUMS = 1 << 20
"""Sums on the CPU that are made, scaled and written at a time: their int32 and float32 stay in the caches."""
SLICE_ROWS = 768
"""Inputs on the CPU that are multiplied at a time, or more than half as many. The kernel brings the weight into an
order of its own at each call, which costs as much as multiplying it with 20 to 70 of them; so the sums of a wide layer
are sliced by outputs, and its inputs are not cut into smaller slices."""
SLICE_OUTPUTS = 64
"""What slices of outputs are a multiple of, so that they end where PyTorch's vectors do."""
SLICE_COLUMNS = 1 << 23
"""Bytes of gathered neighbours at a time."""
MAX_ERROR = 0.05
PROBED_TOKENS, PROBED_ROWS, SPREAD = 32, 64, 0.5


@dataclass
class Told:
    """The messages about decoding layers of a model: each reason once, not for every layer."""

    reasons: set[str] = field(default_factory=set)

    def once(self, reason: str) -> None:
        """Log it, if it was not yet."""
        if reason not in self.reasons:
            self.reasons.add(reason)
            log.warning("int8 matmul: %s; it is decoded instead. Other layers like it are not named.", reason)


@dataclass(frozen=True)
class Rounded:
    """The input of a linear layer in int8 [M, in], and float32 [M, 1] that its rows are to be multiplied with."""

    data: Tensor
    factors: Tensor


class SharedInput:
    """The last input of some layers, rounded, for those of them that are given it next. It is known by its identity and
    version, held weakly, and given to each layer once: tensors of inference mode do not count their changes, and what
    comes to a layer a second time may have been changed in between."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._kept: tuple[weakref.ref[Tensor], int | None, int, Rounded] | None = None
        self._taken: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedInput:
        return SharedInput(self._layers)

    def get(self, layer: nn.Module, x: Tensor, group: int) -> Rounded | None:
        """`x` rounded, rotated in groups of so many (0: not); None: it is another input, or the layer had it."""
        kept = self._kept
        if kept is None or kept[0]() is not x or kept[1:3] != (_version(x), group) or id(layer) in self._taken:
            return None
        self._take(layer)
        return kept[3]

    def put(self, layer: nn.Module, x: Tensor, group: int, rounded: Rounded) -> None:
        """Keep it, made for `layer`."""
        self._taken = set()
        self._kept = (weakref.ref(x, self._forget), _version(x), group, rounded)
        self._take(layer)

    def _take(self, layer: nn.Module) -> None:
        self._taken.add(id(layer))
        if len(self._taken) >= self._layers:
            self._kept = None

    def _forget(self, reference: weakref.ref[Tensor]) -> None:
        if self._kept is not None and self._kept[0] is reference:
            self._kept = None


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def share_inputs(module: nn.Module) -> None:
    """Have the linear layers inside one module that multiply in int8 and have inputs of one width share them."""
    for parent in module.modules():
        by_width: dict[int, list[Int8Product]] = {}
        for layer in parent.children():
            state = stored_state(layer)
            if isinstance(layer, nn.Linear) and state is not None and isinstance(state.product, Int8Product):
                by_width.setdefault(layer.in_features, []).append(state.product)
        for products in by_width.values():
            shared = SharedInput(len(products)) if len(products) > 1 else None
            for product in products:
                product.shared = shared


def multiply_in_int8(layer: nn.Module, told: Told | None = None) -> bool:
    """Have a managed layer multiply in int8 where it can; False for one whose weights or geometry do not allow it.
    `told` is shared by the layers of a model."""
    state = stored_state(layer)
    if state is None or "weight" not in state.formats:
        return False
    weight = layer._parameters["weight"]
    if weight is None or state.formats["weight"].dtype != torch.int8 or not _fits(layer, weight):
        return False
    if not weight.is_meta:
        # The order in which neighbours are gathered; else the weight would be brought into it at each use.
        put_channels_last(layer)
    state.product = Int8Product(told or Told())
    return True


def _fits(layer: Any, weight: Tensor) -> bool:
    if len(weight) < MIN_SIDE or weight.shape[1] < MIN_SIDE:
        return False
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.Conv2d) or (layer.groups, layer.padding_mode) != (1, "zeros"):
        return False
    side = layer.kernel_size[0]
    plain = layer.kernel_size == (side, side) and side in (1, 3) and tuple(layer.dilation) == (1, 1)
    return plain and layer.padding == (side // 2, side // 2) and (side == 3 or tuple(layer.stride) == (1, 1))


@dataclass
class Int8Product:
    """The `Product` of one layer. `error`: what it loses on made-up inputs, relative; None until its first use.
    `fails`: the kernel refused its shapes once, and is not asked again. `shared`: see `share_inputs`."""

    told: Told = field(default_factory=Told)
    error: float | None = None
    fails: bool = False
    shared: SharedInput | None = None

    def __call__(self, layer: nn.Module, state: Stored, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """See `Product`. None where the weight must be decoded: while something is trained, where an adapter changes
        the weight itself, for few inputs, for inputs that are not finite, and for a layer that would lose too much."""
        if state.changes or torch.is_grad_enabled() or torch.compiler.is_compiling() or not _is_large(layer, x):
            return None
        if self.fails:
            return None
        try:
            return self._product(layer, state, x, bias)
        except RuntimeError as error:  # as builds without a kernel for such shapes say so
            if is_out_of_memory(error):  # others deal with that
                raise
            self.fails = True
            self.told.once(f"the product of a layer does not work here ({first_line(error)})")
            return None

    def _product(self, layer: Any, state: Stored, x: Tensor, bias: Tensor | None) -> Tensor | None:
        data, scale = state.fetch(layer, "weight") if state.fetch is not None else stored_tensors(layer, "weight")
        storage = state.formats["weight"]
        if data.dtype != torch.int8 or scale is None:  # the layer was moved to another dtype
            return None
        device = state.device or data.device
        if device.type == "cuda" and any(side % CUDA_MULTIPLE for side in data.shape[:2]):
            return None
        data, scale = data.to(device, non_blocking=True), scale.to(device, torch.float32).reshape(-1)
        if self.error is None:
            self.error = measured_error(data, scale, storage)
            if self.error > MAX_ERROR:
                log.info("A layer %s is decoded: in int8 it would lose %.1f %%.", tuple(data.shape), 100 * self.error)
        if self.error > MAX_ERROR:
            return None
        if len(scale) == 1:
            scale = scale.expand(len(data))
        extra = None if bias is None else bias.float()
        if isinstance(layer, nn.Linear):
            group = storage.group if isinstance(storage, RotatedRowFormat) else 0
            rounded = None if self.shared is None else self.shared.get(layer, x, group)
            if self.shared is not None and rounded is None and (rounded := _rounded(x, group)) is not None:
                self.shared.put(layer, x, group, rounded)
            made = _linear(x, data, scale, extra, state.compute_dtype, group, rounded)
        elif data.shape[2] == 1:
            made = _linear(x.permute(0, 2, 3, 1), data.flatten(1), scale, extra, state.compute_dtype)
            made = None if made is None else made.permute(0, 3, 1, 2)
        else:
            made = _convolution(layer, x, data, scale, extra, state.compute_dtype)
        if made is None:
            self.told.once("the input of a layer holds NaN or infinite values")
        return made


def _is_large(layer: Any, x: Tensor) -> bool:
    """Whether there are enough inputs; by one image's, so that it does not depend on the batch."""
    if not x.numel():
        return False
    if isinstance(layer, nn.Linear):
        tokens, width = (x.shape[-2] if x.ndim >= 3 else 0), layer.in_features * layer.out_features
    else:
        places = x.shape[2] * x.shape[3] if x.ndim == 4 else 0
        tokens = places // math.prod(layer.stride)
        width = layer.in_channels * layer.out_channels * math.prod(layer.kernel_size)
    least = MIN_TOKENS.get(x.device.type, MIN_TOKENS["cuda"])
    return bool(tokens >= least and tokens * width >= MIN_PRODUCTS)


def quantized(x: Tensor, peak: Tensor) -> Tensor:
    """`x` over its `peak` (float32, broadcast) in 127 steps, as whole float32 numbers."""
    return (x * (LARGEST / peak)).round_()


def row_peaks(rows: Tensor) -> Tensor:
    """The largest magnitude of each row [M, 1], float32; NaN where a row holds one."""
    if rows.dtype == torch.float32:  # without a copy of the rows, which is quicker in 16 bits
        peaks = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_())
    else:
        peaks = rows.abs().amax(1, keepdim=True).float()
    return peaks.clamp_min_(SMALLEST_PEAK)


def _linear(
    x: Tensor,
    data: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    group: int = 0,
    rounded: Rounded | None = None,
) -> Tensor | None:
    """`x` [..., in], which may have been `rounded` before, times int8 `data` [out, in]: [..., out] in `dtype`; None if
    an input is not finite. `group`: that x is rotated in, 0 for none."""
    rows = x.reshape(-1, x.shape[-1])
    outputs = len(data)
    out = torch.empty(len(rows), outputs, dtype=dtype, device=x.device)
    factor = data.t()
    high, wide = _slices(rows, outputs)
    for where in _spans(len(rows), high):
        if rounded is None:
            part = _empty_like(rows[where], is_slice=rows.device.type == "cpu")
            if not _round_into(part, rows[where], group):
                return None
        else:
            part = Rounded(rounded.data[where], rounded.factors[where])
        for columns in _spans(outputs, wide):
            added = None if bias is None else bias[columns]
            _multiply_into(out[where, columns], part.data, factor[:, columns], part.factors, scale[columns], added)
    return out.view(*x.shape[:-1], outputs)


def _slices(rows: Tensor, outputs: int) -> tuple[int, int]:
    """How many of `rows` [M, in] are multiplied at a time, and for how many outputs; all slices are about alike, so
    that none is left with few."""
    count = max(1, len(rows))
    if rows.device.type != "cpu":
        return count, outputs
    high = _even(count, max(SLICE_ROWS, SLICE_SUMS // max(outputs, rows.shape[1])))
    wide = _even(outputs, max(1, SLICE_SUMS // high))
    return high, -(-wide // SLICE_OUTPUTS) * SLICE_OUTPUTS


def _even(count: int, most: int) -> int:
    """How large slices are if there are as few as can be of `most`."""
    return -(-count // -(-count // most))


def _spans(count: int, step: int) -> Iterator[slice]:
    return (slice(begin, begin + step) for begin in range(0, count, step))


def _rounded(x: Tensor, group: int) -> Rounded | None:
    """All of `x` [..., in] rounded; None if a value is not finite."""
    rows = x.reshape(-1, x.shape[-1])
    made = _empty_like(rows)
    return made if _round_into(made, rows, group) else None


def _empty_like(rows: Tensor, is_slice: bool = False) -> Rounded:
    """For `rows` [M, in]; for a slice of them in memory that the next slice uses again."""
    if is_slice:
        data = scratch(tuple(rows.shape), torch.int8, "rounded")
    else:
        data = torch.empty(rows.shape, dtype=torch.int8, device=rows.device)
    return Rounded(data, torch.empty(len(rows), 1, device=rows.device))


def _round_into(made: Rounded, rows: Tensor, group: int) -> bool:
    """Round `rows` [M, in] into `made`; False if a value is not finite, which is only looked for on the CPU."""
    on_cpu = rows.device.type == "cpu"
    step = max(64, SLICE_SUMS // rows.shape[1]) if on_cpu else max(1, len(rows))
    for where in _spans(len(rows), step):
        some = rotate(rows[where].float(), group) if group else rows[where]
        data, factors = made.data[where], made.factors[where]
        rounding = None if on_cpu else ROUNDING.on(some.device)
        if rounding is not None and rounding.round(some, data, factors, LARGEST, SMALLEST_PEAK):
            continue
        kernels = product_kernels(some.device, some.dtype, some.numel())
        if kernels is not None and some.stride(1) == 1:
            if not kernels.round_rows(some, data, factors):
                return False
            continue
        peaks = row_peaks(some)
        if on_cpu and not bool(torch.isfinite(peaks).all()):
            return False
        data.copy_(quantized(some, peaks))
        torch.mul(peaks, 1 / LARGEST, out=factors)
    return True


def _multiply_into(
    out: Tensor, left: Tensor, right: Tensor, factors: Tensor | None, scale: Tensor, bias: Tensor | None
) -> None:
    """Write the int8 product of `left` [M, in] and `right` [in, out], its rows times `factors` [M, 1] and its columns
    times `scale` [out], plus `bias`, into `out` [M, out].

    On the CPU the sums come to lie in memory that is used again. Without a compiled kernel they are widened where they
    stay: to multiply int32 with float32, PyTorch makes two more copies of them."""
    if out.device.type != "cpu":
        product = INT8_PRODUCT.on(out.device)
        if product is not None and product.multiply(left, right.t(), factors, scale, bias, out):
            return
        sums = torch._int_mm(left, right)
        numbers = sums.float() if factors is None else sums * factors
    else:
        sums = scratch((len(left), right.shape[1]), torch.int32, "sums")
        torch._int_mm(left, right, out=sums)
        if (kernels := product_kernels(out.device, out.dtype, out.numel())) is not None and out.stride(1) == 1:
            kernels.scale_sums(sums, factors, scale.contiguous(), bias, out)
            return
        numbers = out if out.dtype == torch.float32 else scratch(tuple(out.shape), torch.float32, "sums")
        numbers.copy_(sums)
        if factors is not None:
            numbers.mul_(factors)
    if bias is None:
        numbers.mul_(scale)
    else:
        torch.addcmul(bias, numbers, scale, out=numbers)
    if numbers is not out:
        out.copy_(numbers)


def _convolution(
    layer: Any, x: Tensor, data: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """`x` [B, in, h, w] through a 3x3 kernel `data` [out, in, 3, 3] with padding 1: [B, out, h', w'] in `dtype`, as
    channels last; None if an input is not finite."""
    batch, channels, height, width = x.shape
    rows_step, columns_step = layer.stride
    out_height, out_width = (height - 1) // rows_step + 1, (width - 1) // columns_step + 1
    outputs, on_cpu = len(data), x.device.type == "cpu"
    pixels = x.permute(0, 2, 3, 1)
    kernel = data.permute(0, 2, 3, 1).reshape(outputs, -1).t()
    out = torch.empty(batch, out_height, out_width, outputs, dtype=dtype, device=x.device)
    padded = torch.zeros(height + 2, width + 2, channels, dtype=torch.int8, device=x.device)
    line = (width + 2) * channels
    per_line = out_width * max(9 * channels, 4 * outputs)
    lines = max(1, SLICE_COLUMNS // per_line) if on_cpu else out_height
    for image in range(batch):
        peak = _round_image(padded[1:-1, 1:-1], pixels[image])
        if peak is None:
            return None
        factor = scale * (peak / LARGEST)
        for top in range(0, out_height, lines):
            count = min(lines, out_height - top)
            gathered = padded.as_strided(
                (count, out_width, 3, 3 * channels),
                (rows_step * line, columns_step * channels, line, 1),
                padded.storage_offset() + top * rows_step * line,
            )
            if on_cpu:
                gathered = scratch(tuple(gathered.shape), torch.int8, "neighbours").copy_(gathered)
            neighbours = gathered.reshape(count * out_width, 9 * channels)
            _multiply_into(out[image, top : top + count].view(-1, outputs), neighbours, kernel, None, factor, bias)
    return out.permute(0, 3, 1, 2)


def _round_image(made: Tensor, pixels: Tensor) -> Tensor | None:
    """Round `pixels` [h, w, in] into int8 `made` [h, w, in], whose lines are contiguous, and return their peak [1] in
    float32; None if a value is not finite, which is only looked for on the CPU."""
    height, width, channels = pixels.shape
    is_by_line = pixels.stride()[1:] == (channels, 1)
    kernels = product_kernels(pixels.device, pixels.dtype, pixels.numel()) if is_by_line else None
    if kernels is not None:
        lines = pixels.as_strided((height, width * channels), (pixels.stride(0), 1))
        peak = torch.tensor([kernels.peak_of(lines)])
    else:
        in_order = pixels.permute(2, 0, 1)  # as it lies in memory, else a copy would be made
        peak = row_peaks((in_order if in_order.is_contiguous() else pixels).reshape(1, -1)).view(1)
    if pixels.device.type == "cpu" and not math.isfinite(peak.item()):
        return None
    peak = peak.clamp(min=SMALLEST_PEAK)
    if kernels is not None:
        to_lines = made.as_strided((height, width * channels), (made.stride(0), 1))
        kernels.round_by(lines, (LARGEST / peak).item(), to_lines)
    else:
        made.copy_(quantized(pixels, peak))  # a peak without a dimension would leave it in 16 bits
    return peak


def measured_error(data: Tensor, scale: Tensor, storage: StorageFormat) -> float:
    """The relative error of the product with made-up inputs: Gaussian, their channels' sizes log-normally spread. They
    are the same for every layer of a width, and some of the layer's outputs stand for all."""
    generator = torch.Generator().manual_seed(data.shape[1])
    spread = torch.randn(data.shape[1], generator=generator).mul_(SPREAD).exp_()
    x = torch.randn(PROBED_TOKENS, data.shape[1], generator=generator) * spread
    if data.ndim == 4:
        x = x.repeat_interleave(data[0, 0].numel(), dim=1)
    x = x.to(data.device)
    picked = slice(0, None, max(1, len(data) // PROBED_ROWS))
    some, scales = data[picked].contiguous(), scale if len(scale) == 1 else scale[picked]
    weight = storage.decode(some, scales, torch.empty(some.shape, device=data.device)).flatten(1)
    true = F.linear(x, weight)
    rows = x
    if isinstance(storage, RotatedRowFormat):
        rows = rotate(x, storage.group)
    per_image = data.ndim == 4 and data.shape[2] > 1
    peaks = rows.abs().amax().reshape(1, 1) if per_image else row_peaks(rows)
    rounded = quantized(rows, peaks) * (peaks / LARGEST)
    if isinstance(storage, RotatedRowFormat):
        rounded = rotate(rounded, storage.group)
    norm = float(true.norm())
    return float((F.linear(rounded, weight) - true).norm()) / norm if norm else 0.0
