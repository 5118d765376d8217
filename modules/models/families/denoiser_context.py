"""The inputs of a denoiser."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

Extra = Tensor | tuple[Tensor, ...]
REFERENCE, END = "reference", "end"
"""In `ModelInputs.extra`: scaled latents of images that are shown next to the one that is made, see
`stacked_references`; and the noise levels [N] to which a step leads."""
CLEAN_REFERENCE, ISOLATED_REFERENCE = "clean_reference", "isolated_reference"
"""Instead of `REFERENCE`, for adapters that were trained with references at time 0, which see everything or one another
alone."""


def stacked_references(latents: Sequence[Tensor]) -> Tensor:
    """Scaled latents [N,C,h,w] of one image as they are. Those of several as [N,images * (C + 1),H,W]: each at the top
    left of the largest size, and behind it a channel that is 1 where it is."""
    if len(latents) == 1:
        return latents[0]
    height, width = (max(each.shape[axis] for each in latents) for axis in (-2, -1))
    marked = [torch.cat([each, torch.ones_like(each[:, :1])], dim=1) for each in latents]
    return torch.cat([F.pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in marked], dim=1)


def single_references(stacked: object, channels: int) -> list[Tensor]:
    """Return the latents [N,C,h,w] of each image in `stacked_references`, and nothing for None; `channels`: C."""
    if not isinstance(stacked, Tensor):
        return []
    if stacked.shape[1] == channels:
        return [stacked]
    found = []
    for part in torch.split(stacked, channels + 1, dim=1):
        there = part[0, channels].bool()
        found.append(part[:, :channels, : int(there[:, 0].sum()), : int(there[0].sum())])
    return found


@dataclass(frozen=True, eq=False)
class DenoiserContext:
    """The inputs of a denoiser besides the noisy latents and the timestep, in rows of the batch.

    `crossattn` [N,tokens,width] is attended to, where `mask` [N,tokens], on the CPU, is True (None: everywhere): from
    the first token to the last of a text, and padding follows. `vector` [N,V] is
    added to the time embedding, in families that have one; `image` [N,C,h,w] is put behind the latents on the channel
    axis (inpainting models); `extra` is passed to the denoiser by the names of its own arguments (residuals of a
    control model, for one).
    """

    crossattn: Tensor
    vector: Tensor | None = None
    image: Tensor | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """One call of a denoiser, on its device and in its dtype: `x` [N,C,h,w] with all channels, `timesteps` [N], and
    the rest as in `DenoiserContext`; `mask` on the CPU."""

    x: Tensor
    timesteps: Tensor
    crossattn: Tensor
    vector: Tensor | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)
    mask: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All on the device, always in the same order."""
        extra = [
            tensor for value in self.extra.values() for tensor in ([value] if isinstance(value, Tensor) else value)
        ]
        return [self.x, self.timesteps, self.crossattn, *([] if self.vector is None else [self.vector]), *extra]

    @property
    def kind(self) -> Hashable:
        """Return what else a call depends on; inputs with equal keys have tensors for the same."""
        extra = tuple((name, None if isinstance(value, Tensor) else len(value)) for name, value in self.extra.items())
        mask = None if self.mask is None else (tuple(self.mask.shape), tuple(self.mask.flatten().tolist()))
        return self.vector is None, extra, mask

    def with_tensors(self, tensors: Sequence[Tensor]) -> ModelInputs:
        """Return the inputs with other tensors instead of `tensors`."""
        left = iter(tensors)
        x, timesteps, crossattn = next(left), next(left), next(left)
        vector = None if self.vector is None else next(left)
        extra = {
            name: next(left) if isinstance(value, Tensor) else tuple(next(left) for _ in value)
            for name, value in self.extra.items()
        }
        return replace(self, x=x, timesteps=timesteps, crossattn=crossattn, vector=vector, extra=extra)


def text_lengths(inputs: ModelInputs) -> list[int]:
    """How many tokens of each row's text are no padding. The GPU is not asked: it would have to be waited for."""
    if inputs.mask is None:
        return [inputs.crossattn.shape[1]] * len(inputs.crossattn)
    lengths: list[int] = inputs.mask.sum(1).tolist()
    return lengths


def rows_by_length(inputs: ModelInputs) -> Iterator[tuple[Tensor, ModelInputs]]:
    """The numbers [n] of rows whose texts are equally long and their inputs without padding and mask, from the shortest
    on: for denoisers in which padding would move what follows, or be seen."""
    lengths = text_lengths(inputs)
    for length in sorted(set(lengths)):
        rows = torch.tensor([row for row, own in enumerate(lengths) if own == length], device=inputs.x.device)
        extra = {
            name: value.index_select(0, rows) if isinstance(value, Tensor) and len(value) == len(inputs.x) else value
            for name, value in inputs.extra.items()
        }
        vector = None if inputs.vector is None else inputs.vector[rows]
        texts = inputs.crossattn[rows, :length]
        yield rows, ModelInputs(inputs.x[rows], inputs.timesteps[rows], texts, vector, extra)
