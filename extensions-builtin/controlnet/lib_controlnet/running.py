"""Control networks around the denoiser for one pass: when they are on, how strongly, and for which rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.files import Kind
from lib_controlnet.nets import NetFacts
from lib_controlnet.units import Unit
from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.models.loading.auxiliary import Auxiliary
from modules.processing.request.model_use import ModelCall, ModelUse

SOFTENING = 0.825
OUTPUTS = 13
LATENT_CELL = 8
"""Pixels of a latent's side, in all models with UNets."""
SOFT_ADAPTER = (0.25, 0.62, SOFTENING, 1.0)


def check_whole(call: ModelCall, name: str, what: str) -> None:
    """Raise `InvalidValueError` where the denoiser sees a part of the image at a time, as `what` cannot follow it."""
    if call.windows is not None:
        raise InvalidValueError(f"{name}: {what} does not work while an image is made in tiles. Turn one of them off.")


def tells_negatives(p: Any, use: ModelUse) -> bool:
    """Return whether units tell prompts from negative prompts. In the second pass the reference UI does so only where
    that pass takes over the encoded prompts of the first; images would not be the same otherwise."""
    return not use.facts.is_hires or bool(p.settings.compatibility.hires_fix_use_firstpass_conds)


def is_on(unit: Unit, use: ModelUse) -> bool:
    """Whether a unit counts now: by the share of the pass that the sampler has reported."""
    share = use.sampler.step / max(use.sampler.steps, 1)
    return unit.guidance_start <= share <= unit.guidance_end


@dataclass(eq=False)
class NetControl:
    """One network in one pass. `hint` [1,C,H,W] is its image, `region` [1,1,h,w] where it counts (None: everywhere);
    `softens`: its outputs fall off towards the coarse end."""

    unit: Unit
    net: Auxiliary
    facts: NetFacts
    hint: Tensor
    region: Tensor | None = None
    softens: bool = False
    control_type: int | None = None  # of a union network
    drops_negatives: bool = False  # counts for prompts only
    adapters: Any = None  # what a Control-LoRA's first step does without
    _embedded: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, init=False)

    def embedded(self, embed: Callable[[Tensor], Tensor], hint: Tensor) -> Tensor:
        """The features [B,C,h,w] of `hint` [B,3,H,W], whose rows are equal: worked out once in a pass, for one row."""
        key = (hint.device, hint.dtype)
        if key not in self._embedded:
            self._embedded = {key: embed(hint[:1])}
        return self._embedded[key].expand(len(hint), -1, -1, -1)

    def scales(self, count: int) -> list[float]:
        """Return the scale of each of `count` outputs."""
        weights = self.unit.layer_weights
        if weights is not None:
            return list(weights[:count])
        if not self.softens:
            return [self.unit.weight] * count
        if self.facts.kind is Kind.T2I:
            return [self.unit.weight * value for value in SOFT_ADAPTER][:count]
        return [self.unit.weight * SOFTENING ** (OUTPUTS - 1 - place) for place in range(count)]

    def rows(self, call: ModelCall) -> list[int]:
        """The rows of a call that it counts for."""
        return [row for row, negative in enumerate(call.is_negative) if not (self.drops_negatives and negative)]

    def outputs(self, call: ModelCall, x: Tensor, timesteps: Tensor, context: Tensor, vector: Any) -> list[Tensor]:
        """Return what is added to the features, finest first, each with a row for each of the call; rows that it does
        not count for are 0."""
        rows = self.rows(call)
        if not rows:
            return []
        device, dtype = self.net.device, self.net.dtype
        x, context = x[rows, :4].to(device, dtype), context[rows].to(device, dtype)
        timesteps = timesteps.expand(len(call.images))[rows].to(device)
        vector = None if vector is None else vector[rows].to(device, dtype)
        with self._without_adapters(call):
            found = self._outputs(x, timesteps, context, vector, self._hints(call, rows, x))
        if self.facts.is_averaged:
            found = [output.mean(dim=(2, 3), keepdim=True) for output in found]
        scaled = []
        for output, scale in zip(found, self.scales(len(found)), strict=True):
            if scale != 1.0:
                output = output * scale
            if self.region is not None:
                output = output * self._region_of(output, call, rows)
            if len(rows) < len(call.images):
                whole = output.new_zeros(len(call.images), *output.shape[1:])
                whole[rows] = output
                output = whole
            scaled.append(output)
        return scaled

    def _region_of(self, output: Tensor, call: ModelCall, rows: Sequence[int]) -> Tensor:
        """Where it counts [1 or rows,1,h,w], in an output's size and for the part of the image that a row shows."""
        assert self.region is not None
        region = self.region.to(output)
        if call.windows is not None:
            sides = [side // LATENT_CELL for side in self.hint.shape[2:]]
            whole = F.interpolate(region, size=sides, mode="bilinear", align_corners=False)
            parts = [call.windows[row] for row in rows]
            region = torch.cat([whole[:, :, top : top + h, left : left + w] for left, top, w, h in parts])
        return F.interpolate(region, size=output.shape[2:], mode="bilinear", align_corners=False)

    @contextmanager
    def _without_adapters(self, call: ModelCall) -> Iterator[None]:
        shared = self.facts.shared
        if shared is None or self.adapters is None or call.step > 0:
            yield
            return
        before, shared.around = shared.around, self.adapters.taken_off
        try:
            yield
        finally:
            shared.around = before

    def _hints(self, call: ModelCall, rows: Sequence[int], x: Tensor) -> Tensor:
        hint = self.hint.to(x)
        if call.windows is None:
            return hint.expand(len(rows), *hint.shape[1:])
        parts = []
        for row in rows:
            left, top, width, height = call.windows[row]
            across, down = hint.shape[3] // x.shape[3], hint.shape[2] // x.shape[2]
            scale = max(8, min(across, down)) if across == down else 8
            parts.append(hint[:, :, top * scale : (top + height) * scale, left * scale : (left + width) * scale])
        return torch.cat(parts)

    def _outputs(self, x: Tensor, timesteps: Tensor, context: Tensor, vector: Any, hint: Tensor) -> list[Tensor]:
        if self.facts.kind is Kind.T2I:
            adapter = self.net.module.adapter
            scale = adapter.unshuffle.downscale_factor
            channels = adapter.conv_in.in_channels // scale**2
            return _in_sizes_of(x, self.net.module(hint[:, :channels]), scale > 8)
        if self.facts.kind is Kind.UNION:
            kinds = torch.zeros(len(x), self.net.module.config.num_control_type, device=x.device, dtype=x.dtype)
            place = self.control_type if self.control_type is not None else 0
            kinds[:, place] = 1.0
            down, middle = self.net.module(
                x,
                timesteps,
                context,
                [hint],
                control_type=kinds,
                control_type_idx=[place],
                class_labels=vector,
                return_dict=False,
            )
        else:
            down, middle = self.net.module(x, timesteps, context, hint, class_labels=vector, return_dict=False)
        return [*down, middle]


HALVINGS, LARGE_HALVINGS = (0, 1, 2, 3), (1, 1, 2, 2)
"""How often the sides of each of an adapter's features are half those of the latents, for SD1 and SDXL."""


def _in_sizes_of(x: Tensor, features: Sequence[Tensor], is_large: bool) -> list[Tensor]:
    """An adapter's features in the sizes that the denoiser's have at its levels: sides are halved upwards there."""
    found = []
    for feature, count in zip(features, LARGE_HALVINGS if is_large else HALVINGS, strict=True):
        height, width = x.shape[2:]
        for _ in range(count):
            height, width = -(-height // 2), -(-width // 2)
        found.append(F.interpolate(feature, size=(height, width), mode="nearest"))
    return found


def put_around(use: ModelUse, controls: Sequence[NetControl], before: Callable[[], None] = lambda: None) -> None:
    """Have these networks add their outputs to the features of the pass's denoiser."""
    computing: list[NetControl] = []  # at most one

    def embed(module: Any, inner: Callable[..., Any], /, hint: Tensor) -> Tensor:
        return computing[0].embedded(inner, hint) if use.call.windows is None else inner(hint)

    def control(module: Any, inner: Callable[..., Any], /, sample: Tensor, timestep: Tensor, **rest: Any) -> Any:
        call = use.call
        context, vector = rest["encoder_hidden_states"], rest.get("class_labels")
        nets: list[Tensor] = []
        adapters: list[Tensor] = []
        for each in controls:
            if not is_on(each.unit, use):
                continue
            computing[:] = [each]
            outputs = each.outputs(call, sample, timestep, context, vector)
            outputs = [output.to(sample.device, sample.dtype) for output in outputs]
            if each.facts.kind is Kind.T2I:
                adapters = _added(adapters, outputs)
            else:
                nets = _added(nets, outputs)
        if nets:
            down = list(rest.pop("down_block_additional_residuals", ()) or ())
            middle = rest.pop("mid_block_additional_residual", None)
            rest["down_block_additional_residuals"] = _added(nets[:-1], down)
            rest["mid_block_additional_residual"] = nets[-1] if middle is None else nets[-1] + middle
        if adapters:
            own = list(rest.pop("down_intrablock_additional_residuals", ()) or ())
            rest["down_intrablock_additional_residuals"] = _added(adapters, own)
        return inner(sample, timestep, **rest)

    use.hook(use.model.unet, control, HookOrder.OBSERVE)
    embeddings = [getattr(each.net.module, "controlnet_cond_embedding", None) for each in controls]
    for module in dict.fromkeys(module for module in embeddings if module is not None):
        use.hook(module, embed, HookOrder.OBSERVE)


def _added(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    if not first or not second:
        return first or second
    return [one + other for one, other in zip(first, second, strict=True)]


def size_of_level(tokens: int, use: ModelUse) -> tuple[int, int]:
    """Height and width of the level of a UNet with so many tokens, whose sides are halved upwards."""
    height, width = use.latent_size
    while height * width > tokens:
        height, width = -(-height // 2), -(-width // 2)
    return height, width


def region_of_tokens(each: Any, tokens: int, use: ModelUse) -> Tensor:
    """Where a unit counts, as [1,tokens,1] of a level of a UNet."""
    check_whole(use.call, each.name, "effective_region_mask of its model")
    height, width = size_of_level(tokens, use)
    values = torch.from_numpy(each.unit.region.copy()).float()[None, None] / 255.0
    return F.interpolate(values, size=(height, width), mode="bilinear").reshape(1, -1, 1)


def hint_of(pixels: Any, is_inpaint: bool) -> Tensor:
    """A fitted map [H,W,C] as [1,3,H,W] in 0..1; what an inpaint map masks is -1."""
    values = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255.0
    color = values[:, :3]
    if not is_inpaint or values.shape[1] < 4:
        return color
    mask = (values[:, 3:] > 0.5).float()
    return color * (1.0 - mask) - mask
