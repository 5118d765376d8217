"""ControlNet-LLLite for Anima (kohya-ss, sd-scripts pull request 2317): one network that sees the control image, and a
small one before each of the layers that a file names, which adds to the layer's input."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.flow_nets import check_denoiser, fitted_to_latents
from lib_controlnet.nets import NOT_FITTING
from lib_controlnet.running import check_whole, hint_of, is_on
from modules.errors import CheckpointError
from modules.memory.hook_chain import HookOrder
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.keymap import KeyMap, ModulePair
from modules.processing.request.model_use import ModelUse

DENOISER = "CosmosTransformer3DModel"
SEEING = "lllite_conditioning1"
LAYER = re.compile(r"^lllite_dit_blocks_(\d+)_(\w+)$")
LAYERS = {
    **{f"self_attn_{letter}_proj": f"attn1.to_{letter}" for letter in "qkv"},
    **{"cross_attn_q_proj": "attn2.to_q", "mlp_layer1": "ff.net.0.proj"},
}
"""Names of a block's layers, in files and in diffusers' transformer."""
DILATIONS = (1, 2, 4, 8)
CELL = 16
"""Pixels of a token's side."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LiteFacts:
    """`blanks`: what is to be painted is 0 in the image that the network for inpainting sees."""

    blanks: bool = False


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if width % groups == 0), width)


class Refined(nn.Module):
    """Two convolutions, around which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = _norm(width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return x + found


class Reaching(nn.Module):
    """Convolutions of several reaches, and the mean of all, side by side."""

    def __init__(self, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def layer(into: int, reach: int = 1, side: int = 1) -> nn.Sequential:
            conv = nn.Conv2d(into, width, side, padding=reach * (side // 2), dilation=reach)
            return nn.Sequential(conv, _norm(width), nn.SiLU())

        self.branches = nn.ModuleList(layer(width, reach, 1 if reach == 1 else 3) for reach in dilations)
        self.global_conv = layer(width)
        self.proj = layer(width * (len(dilations) + 1))

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch(x) for branch in self.branches]
        mean = self.global_conv(x.mean(dim=(2, 3), keepdim=True)).expand_as(parts[0])
        found: Tensor = self.proj(torch.cat([*parts, mean], dim=1))
        return found


class Seeing(nn.Module):
    """The network that sees the image; sizes from its tensors."""

    def __init__(self, shapes: Shapes, dilations: tuple[int, ...]) -> None:
        super().__init__()
        (half, channels, *_), (width, *_) = shapes["conv1.weight"], shapes["conv3.weight"]
        self.conv1, self.norm1 = nn.Conv2d(channels, half, 4, stride=4), _norm(half)
        self.conv2, self.norm2 = nn.Conv2d(half, half, 3, padding=1), _norm(half)
        self.conv3, self.norm3 = nn.Conv2d(half, width, 4, stride=4), _norm(width)
        count = len({name.split(".")[1] for name in shapes if name.startswith("resblocks.")})
        self.resblocks = nn.ModuleList(Refined(width) for _ in range(count))
        self.aspp = Reaching(width, dilations) if "aspp.proj.0.weight" in shapes else nn.Identity()
        embedding = shapes["proj.weight"][0]
        self.proj, self.out_norm = nn.Conv2d(width, embedding, 1), nn.LayerNorm(embedding)

    def forward(self, image: Tensor) -> Tensor:
        """An image [1,C,H,W] in -1..1 to what each token knows of it, [1,tokens,E]."""
        x = F.silu(self.norm1(self.conv1(image)))
        x = F.silu(self.norm2(self.conv2(x)))
        x = F.silu(self.norm3(self.conv3(x)))
        for block in self.resblocks:
            x = block(x)
        found: Tensor = self.out_norm(self.proj(self.aspp(x)).flatten(2).transpose(1, 2))
        return found


class Lite(nn.Module):
    """The network of one layer."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        sizes = (shapes[f"{name}.weight"] for name in ("down", "mid", "cond_to_film", "up"))
        self.down, self.mid, self.cond_to_film, self.up = (nn.Linear(size[1], size[0]) for size in sizes)
        self.depth_embed = nn.Parameter(torch.empty(shapes["depth_embed"]))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return what is added to tokens [N,T,C], for what they know of the image [1,T,E]."""
        known = (condition + self.depth_embed).expand(len(x), -1, -1)
        scale, shift = self.cond_to_film(known).chunk(2, dim=-1)
        inner = self.mid(torch.cat([known, F.silu(self.down(x))], dim=-1))
        found: Tensor = self.up(F.silu(inner * (1 + scale) + shift))
        return found


def build_anima_lllite(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder`. Raises `CheckpointError` for a file of a model with other layers."""
    by_part: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, entry in file.entries.items():
        part, _, name = key.partition(".")
        by_part.setdefault(part, {})[name] = entry.shape
    seeing, places = by_part.pop(SEEING), {part: LAYER.match(part) for part in by_part}
    blocks = {int(match[1]) for match in places.values() if match and match[2] in LAYERS}
    is_known = all(match and match[2] in LAYERS for match in places.values())
    if not is_known or blocks != set(range(len(model.unet.transformer_blocks))):
        raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
    told = file.metadata.get("lllite.aspp_dilations", "")
    dilations = tuple(int(number) for number in re.findall(r"\d+", told)) or DILATIONS
    with on_meta():
        lites = {part: Lite(shapes) for part, shapes in by_part.items()}
        net = nn.ModuleDict({"seeing": Seeing(seeing, dilations), "layers": nn.ModuleDict(lites)})
    pairs = [ModulePair(part, f"layers.{part}") for part in lites]
    component = Component("lllite", net, KeyMap([ModulePair(SEEING, "seeing"), *pairs]), ("lllite_",), "")
    blanks = file.metadata.get("lllite.inpaint_masked_input", "").lower() == "true"
    return AuxiliaryParts(component, facts=LiteFacts(blanks))


def put_anima_lllite(each: Any, pixels: Any, use: ModelUse) -> None:
    """Put the networks of a unit before their layers, for a pass. Raises `CheckpointError`."""
    check_denoiser(each, DENOISER, use.model)
    lite = use.auxiliary(each.file.path, build_anima_lllite)
    pixels = fitted_to_latents(each, pixels, use)
    image = hint_of(pixels, is_inpaint=False) * 2.0 - 1.0
    if lite.module["seeing"].conv1.in_channels == 4:
        if pixels.shape[2] != 4:
            raise CheckpointError(
                f"{each.file.path.name} is for inpainting and takes a mask. Choose the module "
                "inpaint_global_harmonious, and paint a mask."
            )
        mask = (torch.from_numpy(pixels[:, :, 3].copy())[None, None] > 127).float()
        image = torch.cat([image * (1.0 - mask) if lite.facts.blanks else image, mask * 2.0 - 1.0], dim=1)
    image = F.pad(image, (0, -image.shape[3] % CELL, 0, -image.shape[2] % CELL), mode="replicate")
    condition = lite.module["seeing"](image.to(lite.device, lite.dtype))
    for part, net in lite.module["layers"].items():
        match = LAYER.match(part)
        assert match is not None, "the builder has seen to it"
        block = use.model.unet.transformer_blocks[int(match[1])]
        use.hook(block.get_submodule(LAYERS[match[2]]), _before(each, lite, net, condition, use), HookOrder.OBSERVE)


def _before(each: Any, lite: Any, net: Lite, condition: Tensor, use: ModelUse) -> Callable[..., Any]:
    def add(module: Any, inner: Callable[..., Any], /, x: Tensor, *args: Any) -> Any:
        if not is_on(each.unit, use) or not each.unit.weight:
            return inner(x, *args)
        check_whole(use.call, each.name, "a ControlNet-LLLite")
        added = net(x.to(lite.device, lite.dtype), condition) * each.unit.weight
        if each.unit.region is not None:
            size = [-(-side // 2) for side in use.latent_size]
            region = torch.from_numpy(each.unit.region.copy())[None, None].to(added) / 255.0
            added = added * F.interpolate(region, size=size, mode="bilinear").reshape(1, -1, 1)
        return inner(x + added.to(x), *args)

    return add
