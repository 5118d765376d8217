"""ControlNet-LLLite: small networks before the queries, keys and values of attention layers, each with the control
image scaled down to its level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.files import Kind, kind_of
from lib_controlnet.nets import NOT_FITTING, OwnNames
from lib_controlnet.running import check_whole, hint_of, is_on, region_of_tokens, size_of_level
from modules.errors import CheckpointError
from modules.memory.hook_chain import HookOrder
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.ldm_unet import UNetLayout, unet_keymap
from modules.processing.request.model_use import ModelUse

PREFIX = "lllite_unet_"


class Lite(nn.Module):
    """The network of one layer; sizes from its tensors."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        convolutions = sorted(
            (int(name.split(".")[1]), shape)
            for name, shape in shapes.items()
            if name.startswith("conditioning1.") and name.endswith(".weight")
        )
        layers: list[nn.Module] = []
        for place, (out, into, side, _) in convolutions:
            while len(layers) < place:
                layers.append(nn.ReLU())
            layers.append(nn.Conv2d(into, out, side, stride=side))
        self.conditioning1 = nn.Sequential(*layers)
        self.down = nn.Sequential(_linear(shapes["down.0.weight"]), nn.ReLU())
        self.mid = nn.Sequential(_linear(shapes["mid.0.weight"]), nn.ReLU())
        self.up = nn.Sequential(_linear(shapes["up.0.weight"]))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return what is added to tokens [N,T,C], for a condition [N,T,E] of their level."""
        found: Tensor = self.up(self.mid(torch.cat([condition, self.down(x)], dim=-1)))
        return found


def _linear(shape: tuple[int, ...]) -> nn.Linear:
    return nn.Linear(shape[1], shape[0])


def build_lllite(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder`."""
    if kind_of(file.entries, file.path) is not Kind.LLLITE:
        raise CheckpointError(f"{file.path.name} is no ControlNet-LLLite. Choose another file.")
    by_layer: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, entry in file.entries.items():
        layer, _, name = key.partition(".")
        by_layer.setdefault(layer, {})[name] = entry.shape
    with on_meta():
        net = nn.ModuleDict({layer: Lite(shapes) for layer, shapes in by_layer.items()})
    layers = layers_by_name(model)
    if not set(by_layer) <= set(layers):
        raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
    return AuxiliaryParts(Component("lllite", net, OwnNames(), (PREFIX,), ""))


def layers_by_name(model: Any) -> dict[str, Any]:
    """The denoiser's linear layers by the names that such files have for them."""
    sizes = model.architecture.unet_sizes
    names = unet_keymap(
        UNetLayout(sizes.levels, sizes.blocks_per_level, frozenset(sizes.attention_levels), sizes.middle_depth > 0), "~"
    )
    found = {}
    for path, layer in model.unet.named_modules():
        original = names.to_original(f"{path}.weight") if isinstance(layer, nn.Linear) else None
        if original is not None:
            found[PREFIX + original.removeprefix("~.").removesuffix(".weight").replace(".", "_")] = layer
    return found


def put_lllite(each: Any, pixels: Any, use: ModelUse) -> None:
    """Put the networks of a unit before their layers, for a pass."""
    lite = use.auxiliary(each.file.path, build_lllite)
    hint = (hint_of(pixels, is_inpaint=False) * 2.0 - 1.0).to(lite.device, lite.dtype)
    layers = layers_by_name(use.model)
    for name, net in lite.module.items():
        use.hook(layers[name], _before(each, lite, net, hint, use), HookOrder.OBSERVE)


def _before(each: Any, lite: Any, net: Lite, hint: Tensor, use: ModelUse) -> Callable[..., Any]:
    condition = net.conditioning1(hint)  # [1,E,h,w]

    def add(module: Any, inner: Callable[..., Any], /, x: Tensor, *args: Any) -> Any:
        if not is_on(each.unit, use):
            return inner(x, *args)
        check_whole(use.call, each.name, "a ControlNet-LLLite")
        height, width = size_of_level(x.shape[1], use)
        if height * width != x.shape[1]:  # tokens of a text
            return inner(x, *args)
        there = condition
        if there.shape[2:] != (height, width):  # sides that a level rounds up, and the network down
            there = F.interpolate(there, size=(height, width), mode="nearest")
        there = there.flatten(2).transpose(1, 2).expand(len(x), -1, -1)
        added = net(x.to(lite.device, lite.dtype), there).to(x) * each.unit.weight
        if each.unit.region is not None:
            added = added * region_of_tokens(each, x.shape[1], use).to(x)
        return inner(x + added, *args)

    return add
