"""Corrections of what the denoiser predicts, towards the latents of a unit's image; and references, by which it looks
at the features of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.running import hint_of, is_on, tells_negatives
from lib_controlnet.units import ControlMode, Unit
from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.processing.request.model_use import INSIDE, ConditionedDenoise, ModelUse
from modules.settings.values import Settings

MASK_WINDOW, MASK_PADDING = 10, 1


@dataclass(eq=False)
class ImageLatents:
    """The scaled latents [1,4,h,w] of a unit's image; `painted` [1,1,h,w] is 1 where an inpaint map masks it."""

    unit: Unit
    latents: Tensor
    painted: Tensor | None


def encoded(unit: Unit, pixels: Any, use: ModelUse) -> ImageLatents:
    """A fitted map as latents, by the model's own autoencoder."""
    color = hint_of(pixels, is_inpaint=False)
    latents = use.model.encode(color * 2.0 - 1.0)
    painted = None
    if pixels.shape[2] == 4:
        mask = (torch.from_numpy(pixels[:, :, 3].copy()).float()[None, None] / 255.0 > 0.5).float()
        painted = F.max_pool2d(mask, MASK_WINDOW, stride=use.model.downscale, padding=MASK_PADDING)
    return ImageLatents(unit, latents, painted)


class Noise:
    """A model's own levels of noise, at whole timesteps."""

    def __init__(self, use: ModelUse) -> None:
        alphas = self._alphas_of(use)
        if alphas is None:
            raise InvalidValueError(
                f"This module works with models of whole timesteps only, not with {use.model.family.label}."
            )
        self._alphas = alphas.float()

    @staticmethod
    def _alphas_of(use: ModelUse) -> Any:
        model = use.model
        levels = model.family.noise.levels(model.architecture.noise_schedule, Settings(), use.latent_size)
        return getattr(levels, "alphas_cumprod", None)

    @classmethod
    def is_known(cls, use: ModelUse) -> bool:
        """Whether the model has such levels: models of flows have not."""
        return cls._alphas_of(use) is not None

    def at(self, timesteps: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """The shares of image and noise in noisy latents, [N,1,1,1] each."""
        places = timesteps.round().long().clamp(0, len(self._alphas) - 1).to(self._alphas.device)
        alphas = self._alphas[places].to(like).reshape(-1, 1, 1, 1)
        return alphas.sqrt(), (1.0 - alphas).sqrt()


def correct_predictions(prepared: Sequence[Any], use: ModelUse, pixels: dict[int, Any]) -> None:
    """Register on the model what works on its prediction: kept parts of inpaint maps, colors of tiles."""
    corrections: list[Callable[[Tensor, Tensor], Tensor]] = []
    for each in sorted(filter(_corrects, prepared), key=_keeps):  # what is kept is kept last
        image = encoded(each.unit, pixels[each.number], use)
        if not _keeps(each):
            corrections.append(_coloring(image, use.facts.is_hires and each.takes_part(True)))
        elif image.painted is not None:
            corrections.append(_keeping(image))
    if not corrections:
        return
    if not Noise.is_known(use):
        use.around_denoiser(partial(_corrected, corrections, use), INSIDE)
        return
    noise = Noise(use)
    is_v = use.model.architecture.prediction_type == "v_prediction"

    def correct(module: Any, inner: Callable[..., Any], /, sample: Tensor, timestep: Tensor, **rest: Any) -> Any:
        output = inner(sample, timestep, **rest)
        prediction, x = output[0].float(), sample[:, :4].float()
        signal, level = noise.at(timestep.expand(len(x)), x)
        is_prompt = torch.tensor([not negative for negative in use.call.is_negative], device=x.device)
        clean = signal * x - level * prediction if is_v else (x - level * prediction) / signal
        for change in corrections:
            clean = change(clean, is_prompt)
        eps = (x - signal * clean) / level
        prediction = signal * eps - level * clean if is_v else eps
        return (prediction.to(output[0].dtype), *output[1:])

    use.hook(use.model.unet, correct, HookOrder.OBSERVE)


def _keeps(each: Any) -> bool:
    """Return whether a unit keeps the part of its image that its mask does not cover."""
    return each.unit.module.name.startswith("inpaint_only") and not each.map.masks_itself


def _corrects(each: Any) -> bool:
    return each.unit.module.name.startswith("tile_colorfix") or _keeps(each)


def _corrected(
    corrections: Sequence[Callable[[Tensor, Tensor], Tensor]], use: ModelUse, denoise: ConditionedDenoise
) -> ConditionedDenoise:
    """A denoiser of flow models with what is corrected in its answers."""

    def corrected(x: Tensor, sigma: Tensor, context: Any) -> Tensor:
        clean = denoise(x, sigma, context)
        is_prompt = torch.tensor([not negative for negative in use.call.is_negative], device=clean.device)
        for change in corrections:
            clean = change(clean, is_prompt)
        return clean

    return corrected


def _keeping(image: ImageLatents) -> Callable[[Tensor, Tensor], Tensor]:
    strength = strength_of(image.unit)

    def keep(clean: Tensor, is_prompt: Tensor) -> Tensor:
        assert image.painted is not None
        painted, latents = image.painted.to(clean), image.latents.to(clean)
        kept = clean * painted + latents * (1.0 - painted)
        return kept if strength == 1.0 else kept * strength + clean * (1.0 - strength)

    return keep


def strength_of(unit: Unit) -> float:
    """Return how much of its correction a unit asks for, 0 to 1."""
    return min(1.0, max(0.0, unit.weight))


def _coloring(image: ImageLatents, doubles_reach: bool) -> Callable[[Tensor, Tensor], Tensor]:
    unit = image.unit
    reach = int(unit.threshold_a) * (2 if doubles_reach else 1)
    strength = strength_of(unit)
    detail = unit.threshold_b * 0.01 if unit.module.name.endswith("+sharp") else 0.0

    def color(clean: Tensor, is_prompt: Tensor) -> Tensor:
        fixed = clean - box_blurred(clean, reach) + box_blurred(image.latents.to(clean), reach)
        if detail:
            softer = detail * box_blurred(fixed, reach) + (1.0 - detail) * fixed
            fixed = torch.where(is_prompt[:, None, None, None], fixed, softer)
        return fixed * strength + clean * (1.0 - strength)

    return color


def box_blurred(latents: Tensor, reach: int) -> Tensor:
    """The mean of a square that reaches so many cells to each side; edges are repeated."""
    padded = F.pad(latents, (reach, reach, reach, reach), mode="replicate")
    return F.avg_pool2d(padded, 2 * reach + 1, stride=1)


# -- references --------------------------------------------------------------------------------------------------------

ATTENTION = ("reference_only", "reference_adain+attn")
STATISTICS = ("reference_adain", "reference_adain+attn")
EPSILON = 1e-6


@dataclass(eq=False)
class _Layer:
    """A layer that remembers what it saw of the reference; `rank` is the least weight above which it takes part."""

    rank: float
    memory: list[tuple[Any, float]]


class References:
    """The units of a pass that have the denoiser look at an image: at each call it sees the noisy image first, and then
    attends to what its layers saw of it, or takes over their statistics."""

    def __init__(
        self,
        images: Sequence[ImageLatents],
        fidelity: Sequence[float],
        generator: torch.Generator,
        use: ModelUse,
        tells_negatives: bool = True,
    ) -> None:
        self._use = use
        self._images = list(zip(images, fidelity, strict=True))
        self._noise = Noise(use)
        self._generator = generator
        self._tells_negatives = tells_negatives
        self._writing: tuple[Unit, float] | None = None
        self._put_on()

    def _put_on(self) -> None:
        use, unet = self._use, self._use.model.unet
        blocks = sorted(transformer_blocks(unet), key=lambda block: -block.norm1.normalized_shape[0])
        for place, block in enumerate(blocks):
            use.hook(block.attn1, self._attending(_Layer(place / len(blocks), [])), HookOrder.OBSERVE)
        for module, rank in blocks_with_ranks(unet):
            use.hook(module, self._normalizing(_Layer(rank, [])), HookOrder.OBSERVE)
        use.hook(unet, self._call, HookOrder.OBSERVE)

    def _call(self, module: Any, inner: Callable[..., Any], /, sample: Tensor, timestep: Tensor, **rest: Any) -> Any:
        x = sample[:, :4]
        signal, level = self._noise.at(timestep.expand(len(x)), x)
        plain = {name: rest[name] for name in ("encoder_hidden_states", "class_labels", "return_dict") if name in rest}
        for image, fidelity in self._images:
            if not is_on(image.unit, self._use):
                continue
            drawn = torch.randn(x.shape, generator=self._generator).to(x)
            noisy = signal * image.latents.to(x) + level * drawn
            self._writing = (image.unit, fidelity)
            try:
                inner(noisy if sample.shape[1] == 4 else torch.cat([noisy, sample[:, 4:]], dim=1), timestep, **plain)
            finally:
                self._writing = None
        return inner(sample, timestep, **rest)

    def _negatives(self, count: int) -> list[int]:
        if not self._tells_negatives:
            return []
        return [row for row, negative in enumerate(self._use.call.is_negative[:count]) if negative]

    def _attending(self, layer: _Layer) -> Callable[..., Any]:
        def attend(module: Any, inner: Callable[..., Any], /, hidden_states: Tensor, *args: Any, **rest: Any) -> Any:
            if self._writing is not None:
                unit, fidelity = self._writing
                if unit.module.name in ATTENTION and unit.weight > layer.rank:
                    layer.memory.append((hidden_states.detach().clone(), fidelity))
                return inner(hidden_states, *args, **rest)
            memory, layer.memory = layer.memory, []
            if not memory:
                return inner(hidden_states, *args, **rest)
            fidelity = sum(value for _, value in memory) / len(memory)
            context = torch.cat([hidden_states, *(seen for seen, _ in memory)], dim=1)
            free = inner(hidden_states, encoder_hidden_states=context)
            rows = self._negatives(len(hidden_states))
            if not rows or fidelity <= 1e-5:
                return free
            faithful = free.clone()
            faithful[rows] = inner(hidden_states[rows])
            return fidelity * faithful + (1.0 - fidelity) * free

        return attend

    def _normalizing(self, layer: _Layer) -> Callable[..., Any]:
        def normalize(module: Any, inner: Callable[..., Any], /, *args: Any, **rest: Any) -> Any:
            output = inner(*args, **rest)
            x = output[0] if isinstance(output, tuple) else output
            if self._writing is not None:
                unit, fidelity = self._writing
                if unit.module.name in STATISTICS and unit.weight > layer.rank:
                    layer.memory.append((torch.var_mean(x, dim=(2, 3), keepdim=True, correction=0), fidelity))
                return output
            memory, layer.memory = layer.memory, []
            if not memory:
                return output
            fidelity = sum(value for _, value in memory) / len(memory)
            variance, mean = torch.var_mean(x, dim=(2, 3), keepdim=True, correction=0)
            wanted_mean = sum(seen[1] for seen, _ in memory) / len(memory)
            wanted = (sum(seen[0] for seen, _ in memory) / len(memory)).clamp(min=EPSILON).sqrt()
            free = (x - mean) / variance.clamp(min=EPSILON).sqrt() * wanted + wanted_mean
            faithful = free.clone()
            rows = self._negatives(len(x))
            if rows and fidelity > 1e-5:
                faithful[rows] = x[rows]
            changed = (fidelity * faithful + (1.0 - fidelity) * free).to(x.dtype)
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return normalize


def transformer_blocks(unet: Any) -> list[Any]:
    """Blocks with self-attention, on the way down, in the middle, on the way up."""
    parts = (*unet.down_blocks, unet.mid_block, *unet.up_blocks)
    return [block for part in parts for block in part.modules() if type(block).__name__ == "BasicTransformerBlock"]


def blocks_with_ranks(unet: Any) -> list[tuple[Any, float]]:
    """The outputs whose statistics are taken over, with their ranks: what follows each residual block (its attention,
    where there is one) beyond the finest level, and the middle."""
    found = [(unet.mid_block, 0.0)]
    down = [end for block in unet.down_blocks[1:] for end in _ends(block)]
    found += [(end, 2.0 * (1.0 - place / len(down))) for place, end in enumerate(down)]
    blocks = list(unet.up_blocks)
    up = [end for block in blocks[:-1] for end in _ends(block)]
    count = 8 if len(blocks) == 4 else 6
    found += [(end, 2.0 * place / count) for place, end in enumerate(up[:count])]
    return found


def _ends(block: Any) -> list[Any]:
    attentions = getattr(block, "attentions", None) or [None] * len(block.resnets)
    ends = [
        attention if attention is not None else resnet
        for resnet, attention in zip(block.resnets, attentions, strict=True)
    ]
    if getattr(block, "upsamplers", None):
        ends[-1] = block.upsamplers[-1]  # what the original layout has in one block
    return ends


def refer(prepared: Sequence[Any], p: Any, use: ModelUse, pixels: dict[int, Any]) -> None:
    """Put the reference units that take part in a pass around its model; `prepared` are all units."""
    units = [each for each in prepared if each.is_reference and each.takes_part(use.facts.is_hires)]
    if not units:
        return
    fidelity = {ControlMode.PROMPT: 0.0, ControlMode.CONTROL: 1.0}
    images = [encoded(each.unit, pixels[each.number], use) for each in units]
    wanted = [fidelity.get(each.unit.control_mode, each.unit.threshold_a) for each in units]
    generator = torch.Generator().manual_seed(int(p.seeds[-1]) if p.seeds else int(p.seed))
    if p.iteration == 0:
        seen = [pixels[each.number][..., :3] for each in prepared if each.is_reference or _corrects(each)]
        for _ in {image.tobytes() for image in seen}:
            torch.randn(images[0].latents.shape, generator=generator)  # what sampled encodings would have drawn
    References(images, wanted, generator, use, tells_negatives(p, use))
