"""ControlNets of Z-Image (Fun-Controlnet-Union, 1 to 2.1): blocks beside the model's own, whose embeddings and refiners
they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.files import Kind
from lib_controlnet.flow_family import Call, Hint, Rest, blocks_of, placed
from lib_controlnet.nets import NOT_FITTING, NetFacts, OwnNames
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts
from modules.models.names.component import Component, on_meta

EMBEDDER = "control_all_x_embedder.2-1.weight"
REFINER = "control_noise_refiner."
BEFORE = f"{REFINER}0.before_proj.weight"
SHARED = (
    *("t_scale", "t_embedder", "all_x_embedder", "cap_embedder", "rope_embedder", "noise_refiner", "context_refiner"),
    *("x_pad_token", "cap_pad_token"),
)
"""What networks use of the model itself."""
PATCHES = 4  # latents that a token stands for


class ZImageNets:
    """A `FlowNets`."""

    kind = Kind.Z_IMAGE
    denoiser = "ZImageTransformer2DModel"

    def build(self, file: TensorSource, model: Any) -> AuxiliaryParts:
        from diffusers import ZImageControlNetModel

        width, patched = file.entries[EMBEDDER].shape
        layers = blocks_of(file.entries, "control_layers.")
        own = len(model.unet.layers)
        if width != model.unet.config.dim or not layers or own % layers:
            raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
        refiner = self._refiner(file, patched // PATCHES > model.unet.config.in_channels)
        with on_meta():
            net = ZImageControlNetModel(
                control_layers_places=list(range(0, own, own // layers)),
                control_refiner_layers_places=list(range(len(model.unet.noise_refiner))),
                control_in_dim=patched // PATCHES,
                add_control_noise_refiner=refiner,
                dim=width,
                n_refiner_layers=blocks_of(file.entries, REFINER) or len(model.unet.noise_refiner),
                n_heads=model.unet.config.n_heads,
                n_kv_heads=model.unet.config.n_kv_heads,
            )
        component = Component("control", net, OwnNames(), ("",), "", skip=(r"^control_all_x_embedder\.",))

        def is_unused(key: str) -> bool:
            return refiner == "control_layers" and key.startswith(REFINER)

        return AuxiliaryParts(component, is_unused, NetFacts(self.kind))

    @staticmethod
    def _refiner(file: TensorSource, is_second: bool) -> str | None:
        """How the network refines its image: the second version by its layers, its successor by blocks of its own. The
        files of the second version have such blocks too, without a use: the projection before them is 0."""
        if not is_second:
            return None
        has_own = BEFORE in file.entries and bool(file.read(BEFORE).float().any())
        return "control_noise_refiner" if has_own else "control_layers"

    def hint(self, net: Auxiliary, color: Tensor, mask: Tensor | None, model: Any) -> Hint:
        channels = net.module.config.control_in_dim
        values = color * 2.0 - 1.0
        latents = model.encode(values)
        if mask is not None and channels == 2 * latents.shape[1] + 1:
            kept = 1.0 - F.interpolate(mask, size=latents.shape[-2:])
            rest = torch.cat([kept.to(latents), model.encode(values * (1.0 - mask))], dim=1)
            return Hint(torch.cat([torch.zeros_like(latents), rest], dim=1))
        more = channels - latents.shape[1]
        return Hint(F.pad(latents, (0, 0, 0, 0, 0, more)))

    def outputs(
        self, net: Auxiliary, hint: Tensor, call: Call, control_type: int | None, weight: float, model: Any
    ) -> list[Tensor]:
        height, width = call.x[0].shape[-2:]
        hint = F.pad(hint, (0, width - hint.shape[3], 0, height - hint.shape[2]), mode="replicate").unsqueeze(2)
        time, texts = call.args
        with _sharing(net.module, model.unet):
            found = net.module([placed(each, net) for each in call.x], time, list(texts), list(hint), weight)
        return [output.to(call.x[0].device, call.x[0].dtype) / weight for output in found.values()]

    def places(self, net: Auxiliary, denoiser: Any) -> list[list[int]]:
        return [[place] for place in net.module.control_layers_places]

    def add(self, found: Mapping[int, Tensor], denoiser: Any, rest: Rest) -> None:
        rest["controlnet_block_samples"] = dict(found)

    def rows_of(self, call: Call, rows: Sequence[int]) -> Call:
        time, texts = call.args
        chosen = list(rows)
        return Call([call.x[row] for row in chosen], (time[chosen], [texts[row] for row in chosen]), call.rest)


Z_IMAGE = ZImageNets()


@contextmanager
def _sharing(net: Any, transformer: Any) -> Iterator[None]:
    """Inside, a network has the model's own parts, which are not its own to keep, count or stream."""
    before = {name: net.__dict__[name] for name in SHARED}
    net.__dict__.update({name: getattr(transformer, name) for name in SHARED})
    try:
        yield
    finally:
        net.__dict__.update(before)
