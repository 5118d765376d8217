"""The control net while it learns: a copy of the UNet's encoder with changes of low rank, in the Control-LoRA form.

The block that reads the edges is set for the most part, not learnt: its first layers fold 4 x 4 pixels into 16 of their
channels, so that only the last two have to be trained, and the folding costs nothing in training.
"""

from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import ControlNetModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

HINT_CHANNELS = (16, 32, 96, 256)
RANK = 16
FOLD = 4
AFTER_ONE = 1 / (1 + 2.718281828459045**-1)  # SiLU of 1


class LowRank(nn.Module):
    """A frozen layer with a change of low rank: up @ down beside it."""

    def __init__(self, base: nn.Module, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        weight: Any = base.weight
        rank = min(rank, weight.shape[0], weight.shape[1])
        self.down = nn.Parameter(torch.randn(rank, *weight.shape[1:], generator=generator) / sqrt(weight[0].numel()))
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        base: Any = self.base
        if isinstance(base, nn.Conv2d):
            inner = F.conv2d(x, self.down, stride=base.stride, padding=base.padding)
            return base(x) + F.conv2d(inner, self.up[:, :, None, None])  # type: ignore[no-any-return]
        return base(x) + F.linear(F.linear(x, self.down), self.up)  # type: ignore[no-any-return]


class FoldedHint(nn.Module):
    """What the set layers and the two learnt ones make of an edge image [n, 1, 128, 128]: [n, width, 16, 16]."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.last, self.conv_out = block.blocks[-1], block.conv_out

    def forward(self, edges: Tensor) -> Tensor:
        folded = F.pixel_unshuffle(edges, FOLD) * AFTER_ONE
        weight = self.last.weight[:, : FOLD * FOLD]
        hidden = F.silu(F.conv2d(folded, weight, self.last.bias, stride=2, padding=1))
        return self.conv_out(hidden)  # type: ignore[no-any-return]


def new_net(unet: Any, rank: int = RANK, seed: int = 0) -> Any:
    """A control net on a frozen UNet: what it adds is zero; parameters with gradients are those to train."""
    generator = torch.Generator().manual_seed(seed)
    net: Any = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=HINT_CHANNELS)
    net.requires_grad_(False)
    block = net.controlnet_cond_embedding
    _set_hint(block, generator)
    for path, layer in list(net.named_modules()):
        if isinstance(layer, nn.Linear | nn.Conv2d) and not path.startswith("controlnet_"):
            parent, _, leaf = path.rpartition(".")
            setattr(net.get_submodule(parent), leaf, LowRank(layer, rank, generator))
    net.controlnet_down_blocks.requires_grad_(True)
    net.controlnet_mid_block.requires_grad_(True)
    for part in (block.blocks[-1], block.conv_out):
        part.requires_grad_(True)
    net.full_hint = [block]  # in a list: no part of the module
    net.controlnet_cond_embedding = FoldedHint(block)
    return net


@torch.no_grad()
def _set_hint(block: Any, generator: torch.Generator) -> None:
    """Fold [n, 3, 128, 128] into 16 of 96 channels of [n, 96, 32, 32], each pixel of 4 x 4 in a channel of its own, in
    the order of `pixel_unshuffle`. Edges of 0 and 1 are 0 and `AFTER_ONE` there."""
    layers = [block.conv_in, *block.blocks]
    for layer in layers:
        layer.weight.zero_()
        layer.bias.zero_()
    block.conv_in.weight[0, :, 1, 1] = 1 / 3
    again = 1 / AFTER_ONE
    block.blocks[0].weight[0, 0, 1, 1] = again
    for y in range(2):
        for x in range(2):
            block.blocks[1].weight[2 * y + x, 0, 1 + y, 1 + x] = again
    for channel in range(4):
        block.blocks[2].weight[channel, channel, 1, 1] = again
    for y in range(FOLD):
        for x in range(FOLD):
            inner = 2 * (y % 2) + x % 2
            block.blocks[3].weight[FOLD * y + x, inner, 1 + y // 2, 1 + x // 2] = again
    for channel in range(FOLD * FOLD):
        block.blocks[4].weight[channel, channel, 1, 1] = again
    last, out = block.blocks[5].weight, block.conv_out.weight
    last[:, : FOLD * FOLD] = torch.randn(last[:, : FOLD * FOLD].shape, generator=generator) * 0.35
    out.copy_(torch.randn(out.shape, generator=generator) / sqrt(out[0].numel()))
    block.conv_out.bias.zero_()


def trained(net: Any) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are trained."""
    return [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]


@torch.no_grad()
def write_net(net: Any, names: Any, path: Path, about: dict[str, str]) -> None:
    """Write the file in the Control-LoRA form, fp16: `names` maps our names to those of the original layout."""
    tensors: dict[str, Tensor] = {"lora_controlnet": torch.zeros(1)}
    state = dict(net.named_parameters())
    state = {name: value for name, value in state.items() if not name.startswith("controlnet_cond_embedding")}
    for name, value in net.full_hint[0].named_parameters():
        state[f"controlnet_cond_embedding.{name}"] = value
    for name, value in state.items():
        if name.endswith(".base.weight"):
            continue
        ours = name.replace(".base.bias", ".bias")
        stem, _, leaf = ours.rpartition(".")
        known = names.to_original(f"{stem}.weight" if leaf in ("up", "down") else ours)
        theirs = known.removesuffix("weight") + leaf if leaf in ("up", "down") else known
        tensors[theirs] = value.detach().to("cpu", torch.float16).contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file(tensors, unfinished, metadata=about)
    unfinished.replace(path)


def layer_names(net: Any) -> Any:
    """How the original layout names the layers of a control net, as the ControlNet extension reads them."""
    import recipes.control.edges  # noqa: F401 - makes the extension's folder known
    from lib_controlnet.nets import original_names

    config = net.config
    attention = [level for level, block in enumerate(config.down_block_types) if block.startswith("CrossAttn")]
    sizes = SimpleNamespace(
        levels=len(config.block_out_channels),
        blocks_per_level=config.layers_per_block,
        attention_levels=attention,
        middle_depth=1,
    )
    return original_names(SimpleNamespace(architecture=SimpleNamespace(unet_sizes=sizes)), "")
