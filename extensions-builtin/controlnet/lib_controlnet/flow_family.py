"""ControlNets of a family of flow transformers, as `flow_nets` sees them, and what several families share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.files import Kind
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts

Rest = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of the denoiser for some of its rows: `x` is its first argument, `args` and `rest` are the others."""

    x: Any
    args: tuple[Any, ...]
    rest: Rest


@dataclass(frozen=True)
class Hint:
    """The image of a unit as a network takes it, [1,C,h,w]: `cell` values a latent along one side."""

    values: Tensor
    cell: int = 1


class FlowNets(Protocol):
    """The networks of one family."""

    @property
    def kind(self) -> Kind: ...

    @property
    def denoiser(self) -> str:
        """The class of the family's transformer."""

    def build(self, file: TensorSource, model: Any) -> AuxiliaryParts:
        """See `Builder`."""

    def hint(self, net: Auxiliary, color: Tensor, mask: Tensor | None, model: Any) -> Hint:
        """Return the hint of an image [1,3,H,W] in 0..1, and where it is to be painted [1,1,H,W]."""

    def outputs(
        self, net: Auxiliary, hint: Tensor, call: Call, control_type: int | None, weight: float, model: Any
    ) -> list[Tensor]:
        """Return what a network computes, [rows,tokens,width] each; the image's tokens come first. `weight` is for
        those that add some of it to what they see themselves; the outputs are without it."""

    def places(self, net: Auxiliary, denoiser: Any) -> list[list[int]]:
        """The blocks of the denoiser that each output is added to, counted through."""

    def add(self, found: Mapping[int, Tensor], denoiser: Any, rest: Rest) -> None:
        """Put what is added to each block into the denoiser's arguments."""

    def rows_of(self, call: Call, rows: Sequence[int]) -> Call:
        """Some rows of a call."""


def inpaint_hint(net: Auxiliary, values: Tensor, mask: Tensor | None, model: Any) -> Hint:
    """Latents of an image [1,3,H,W] in -1..1 without what is to be painted, and beside them [1,1,h,w] what is kept.
    Raises `CheckpointError` where there is no mask."""
    if mask is None:
        raise CheckpointError(
            f"{net.path.name} is for inpainting and takes a mask. Choose the module inpaint_global_harmonious, and "
            "paint a mask."
        )
    latents = model.encode(values * (1.0 - mask) - mask)
    kept = 1.0 - F.interpolate(mask, size=latents.shape[-2:])
    return Hint(torch.cat([latents, kept.to(latents)], dim=1))


def placed(values: Any, net: Auxiliary) -> Any:
    """Tensors of a call where a network computes."""
    return None if values is None else values.to(net.device, net.dtype)


def spread(count: int, blocks: int, first: int, is_repeated: bool = False) -> list[list[int]]:
    """Which of `blocks` blocks, counted from `first`, each of `count` outputs goes to: neighbours share one, or with
    `is_repeated` they take turns."""
    found: list[list[int]] = [[] for _ in range(count)]
    share = -(-blocks // count) if count else 1
    for block in range(blocks if count else 0):
        found[block % count if is_repeated else block // share].append(first + block)
    return found


def tokens_of(hint: Tensor, patch: int) -> Tensor:
    """Latents [rows,C,h,w] as [rows,tokens,patch * patch * C]; odd sides are continued by their last row or column."""
    hint = F.pad(hint, (0, -hint.shape[3] % patch, 0, -hint.shape[2] % patch), mode="replicate")
    return F.pixel_unshuffle(hint, patch).flatten(2).transpose(1, 2)


def for_all(output: Tensor, x: Tensor) -> Tensor:
    """An output for the tokens of a denoiser's input: nothing for those behind the image that is made."""
    output = output.to(x.device, x.dtype)
    return F.pad(output, (0, 0, 0, x.shape[1] - output.shape[1])) if output.shape[1] < x.shape[1] else output


def blocks_of(names: Iterable[str], level: str) -> int:
    """Return how many blocks a file has of a level."""
    return len({name.split(".")[1] for name in names if name.startswith(level)})
