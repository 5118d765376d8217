"""ControlNets of transformers that predict a flow, for one pass: what each family's networks compute is added to the
tokens of the denoiser's blocks. How a family's networks are built and called is in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.files import Kind, kind_of
from lib_controlnet.flow_family import Call, FlowNets, Hint
from lib_controlnet.flux_nets import FLUX
from lib_controlnet.qwen_nets import QWEN
from lib_controlnet.running import OUTPUTS, SOFTENING, NetControl, check_whole, hint_of, is_on
from lib_controlnet.sd3_nets import SD3
from lib_controlnet.units import check_layer_weights
from lib_controlnet.z_image_nets import Z_IMAGE
from modules.errors import CheckpointError
from modules.memory.hook_chain import HookOrder
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.processing.request.model_use import ModelCall, ModelUse

NETS: Mapping[Kind, FlowNets] = {each.kind: each for each in (FLUX, SD3, Z_IMAGE, QWEN)}
"""All families with such networks."""


def build_flow_net(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder` of the networks of all these families."""
    return NETS[kind_of(file.entries, file.path)].build(file, model)


def check_denoiser(each: Any, denoiser: str, model: Any) -> None:
    """Raise `CheckpointError` where the file of a unit is for another class of denoisers: also for one that is in
    memory, as what another model has used."""
    if type(model.unet).__name__ != denoiser:
        raise CheckpointError(
            f"{each.file.path.name} is {each.kind.value}, and the model is of the family {model.family.label}. Choose "
            "a control model that was made for it."
        )


@dataclass(eq=False)
class FlowControl(NetControl):
    """One network in one pass; see `NetControl`, whose `hint` it does not use."""

    nets: Any = None
    image: Hint | None = None

    def scales(self, count: int) -> list[float]:
        """Return the scale of each of `count` outputs. Softened ones fall off from the last to the first as those of a
        UNet do."""
        if self.unit.layer_weights is not None or not self.softens:
            return super().scales(count)
        steps = (OUTPUTS - 1) / max(count - 1, 1)
        return [self.unit.weight * SOFTENING ** ((count - 1 - place) * steps) for place in range(count)]

    def add_to(self, found: dict[int, Tensor], call: ModelCall, whole: Call, use: ModelUse) -> None:
        """Add this network's outputs to what each block gets."""
        rows = self.rows(call)
        if not rows:
            return
        weight = self.unit.weight if self.unit.layer_weights is None else 1.0
        if not weight:
            return
        own = self.nets.rows_of(whole, rows)
        outputs = self.nets.outputs(self.net, self.image_of(call, rows), own, self.control_type, weight, use.model)
        places = self.nets.places(self.net, use.model.unet)
        for output, scale, blocks in zip(outputs, self.scales(len(outputs)), places, strict=True):
            output = self._masked(output * scale, call, use)
            if len(rows) < len(call.images):
                every = output.new_zeros(len(call.images), *output.shape[1:])
                every[rows] = output
                output = every
            for block in blocks:
                found[block] = found[block] + output if block in found else output

    def image_of(self, call: ModelCall, rows: Sequence[int]) -> Tensor:
        """The hint for some rows of a call, [rows,C,h,w]: of the parts that they show."""
        assert self.image is not None
        values, cell = self.image.values.to(self.net.device, self.net.dtype), self.image.cell
        if call.windows is None:
            return values.expand(len(rows), *values.shape[1:])
        parts = []
        for row in rows:
            left, top, width, height = (side * cell for side in call.windows[row])
            parts.append(values[:, :, top : top + height, left : left + width])
        return torch.cat(parts)

    def _masked(self, output: Tensor, call: ModelCall, use: ModelUse) -> Tensor:
        """Where the unit counts; the tokens of a text behind those of the image count nowhere then."""
        if self.region is None:
            return output
        check_whole(call, self.net.path.name, "effective_region_mask of its model")
        height, width = (-(-side // 2) for side in use.latent_size)
        mask = F.interpolate(self.region.to(output), size=(height, width), mode="bilinear", align_corners=False)
        tokens = mask.reshape(1, -1, 1)[:, : output.shape[1]]
        return output * F.pad(tokens, (0, 0, 0, output.shape[1] - tokens.shape[1]))


def fitted_to_latents(each: Any, pixels: Any, use: ModelUse) -> Any:
    """A unit's map in the size that the latents of a pass stand for."""
    height, width = (side * use.model.downscale for side in use.latent_size)
    return pixels if pixels.shape[:2] == (height, width) else each.map.fitted(width, height)


def flow_control(each: Any, pixels: Any, region: Tensor | None, softens: bool, drops: bool, use: ModelUse) -> Any:
    """A unit's network for a pass. Raises `CheckpointError` where it is of another family, or takes another image."""
    nets = NETS[each.kind]
    check_denoiser(each, nets.denoiser, use.model)
    net = use.auxiliary(each.file.path, build_flow_net)
    check_layer_weights(each.unit, len(nets.places(net, use.model.unet)), each.name)
    pixels = fitted_to_latents(each, pixels, use)
    color = hint_of(pixels, is_inpaint=False)
    mask = None
    if pixels.shape[2] == 4:
        mask = (torch.from_numpy(pixels[:, :, 3].copy()).float()[None, None] / 255.0 > 0.5).float()
    image = nets.hint(net, color, mask, use.model)
    return FlowControl(each.unit, net, net.facts, color, region, softens, None, drops, nets=nets, image=image)


def put_around_transformer(use: ModelUse, controls: Sequence[FlowControl]) -> None:
    """Have these networks add their outputs to the tokens of the pass's denoiser."""

    def control(module: Any, inner: Callable[..., Any], /, x: Any, *args: Any, **rest: Any) -> Any:
        call, whole = use.call, Call(x, args, dict(rest))
        found: dict[int, Tensor] = {}
        for each in controls:
            if is_on(each.unit, use):
                each.add_to(found, call, whole, use)
        if found:
            controls[0].nets.add(found, module, rest)
        return inner(x, *args, **rest)

    use.hook(use.model.unet, control, HookOrder.OBSERVE)
