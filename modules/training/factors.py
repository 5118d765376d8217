"""The trained part: a pair of factors for each chosen layer, under kohya's names.

While training they compute as a finished LoRA does when images are made: as `Branches` (modules/memory/changes.py)
that are added to the layer's output. So the base may be stored in 8 bits, it is never written, and removing the hooks
gives it back.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from modules.adapters.adapter_file import AdapterFile
from modules.adapters.algorithms.lora import Lora
from modules.memory.changes import Branches
from modules.memory.hook_chain import HookHandle, HookOrder, register_hook
from modules.memory.layer import shape_of
from modules.training.options import LoraOptions, TrainingError

UNET, TEXT = "lora_unet", "lora_te_text_model"
ATTENTION, CONVOLUTIONS = ".attentions.", (".resnets.", ".downsamplers.", ".upsamplers.")
TEXT_LAYERS = "encoder.layers."


@dataclass(frozen=True)
class Factors:
    """One layer's LoRA: `down` [rank, in, *kernel] and `up` [out, rank, *ones], float32 and trainable."""

    name: str  # kohya's: "lora_unet_mid_block_attentions_0_proj_in"
    layer: nn.Module
    down: nn.Parameter
    up: nn.Parameter
    alpha: float

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return self.down.shape[0]

    @property
    def is_text(self) -> bool:
        """Whether the layer is the text encoder's."""
        return self.name.startswith(TEXT)


def factors_for(unet: nn.Module, text_encoder: nn.Module, options: LoraOptions, device: torch.device) -> list[Factors]:
    """New factors for the layers that the options choose, with an `up` of zeros: a change of nothing.

    `down` is drawn uniformly within 1 / sqrt(inputs), as Hu et al. (arXiv:2106.09685) have it.
    """
    generator = torch.Generator().manual_seed(options.seed)
    made = []
    for name, layer, rank in (*_unet_layers(unet, options), *_text_layers(text_encoder, options)):
        shape = shape_of(layer, "weight")
        assert shape is not None
        rank = min(rank, shape[0], shape[1:].numel())
        down = (torch.rand((rank, *shape[1:]), generator=generator) * 2 - 1) / sqrt(shape[1:].numel())
        up = torch.zeros((shape[0], rank, *(1,) * (len(shape) - 2)))
        made.append(
            Factors(
                name,
                layer,
                nn.Parameter(down.to(device)),
                nn.Parameter(up.to(device)),
                float(options.alpha if options.alpha is not None else rank),
            )
        )
    return made


def take_over(factors: Sequence[Factors], start: AdapterFile, name: str) -> None:
    """Begin with the factors of a LoRA file instead of new ones.

    Raises `TrainingError` where its layers, ranks or alphas are not those that are trained here.
    """
    for each in factors:
        known = start.adapters.get(each.name)
        if not isinstance(known, Lora) or known.down.shape != each.down.shape or known.up.shape != each.up.shape:
            raise TrainingError(
                f"{name} cannot be resumed from: {each.name} has another rank there, or is missing. "
                "Choose the ranks that it was trained with."
            )
        if known.alpha != each.alpha:
            raise TrainingError(
                f"{name} cannot be resumed from: its alpha is {known.alpha}, not {each.alpha:g}. Choose that alpha."
            )
    if len(start.adapters) != len(factors):
        raise TrainingError(
            f"{name} cannot be resumed from: it has {len(start.adapters)} layers, and {len(factors)} would be trained. "
            "Choose the ranks that it was trained with."
        )
    with torch.no_grad():
        for each in factors:
            known = start.adapters[each.name]
            assert isinstance(known, Lora)
            each.down.copy_(known.down)
            each.up.copy_(known.up)


def attach(factors: Sequence[Factors]) -> list[HookHandle]:
    """Make them effective; returns handles whose `remove()` takes each off again."""
    return [register_hook(each.layer, _Adding(each), HookOrder.ADAPTER) for each in factors]


class _Adding:
    """Adds a layer's factors, applied to its input, to its output."""

    def __init__(self, factors: Factors) -> None:
        scale = torch.full((factors.rank,), factors.alpha / factors.rank, device=factors.down.device)
        self._branch = Branches(factors.down, factors.up, scale)

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Tensor:
        return self._branch.add_to_output(module, args[0], inner(*args, **kwargs))


def _unet_layers(unet: nn.Module, options: LoraOptions) -> Iterator[tuple[str, nn.Module, int]]:
    for path, layer in _weighted(unet):
        if ATTENTION in path:
            rank = options.rank
        elif any(part in path for part in CONVOLUTIONS):
            rank = options.conv_rank
        else:  # first and last layer, time embedding: as trainers do, left alone
            continue
        if rank:
            yield f"{UNET}_{path.replace('.', '_')}", layer, rank


def _text_layers(text_encoder: nn.Module, options: LoraOptions) -> Iterator[tuple[str, nn.Module, int]]:
    for path, layer in _weighted(text_encoder):
        _, found, rest = path.partition(TEXT_LAYERS)
        if found and options.text_rank:
            yield f"{TEXT}_{(TEXT_LAYERS + rest).replace('.', '_')}", layer, options.text_rank


def _weighted(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, layer in module.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            yield path, layer
