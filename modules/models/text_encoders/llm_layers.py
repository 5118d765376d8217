"""The layers of a language model called one by one: for texts with images in them, whose tokens have a row and a
column, and token by token, with what they attend to kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from modules.models.text_encoders.tokenizers import QWEN_PAD, QWEN_SPECIAL
from modules.models.text_encoders.vision import Sight

IMAGE_TOKEN = QWEN_PAD + QWEN_SPECIAL.index("<|image_pad|>")
QWEN2_SECTIONS = (16, 24, 24)
"""Of Qwen2.5-VL: frequencies that turn with the number of an image, with its rows, and with its columns."""


class Context:
    """Tokens of a text, `ids` [T], with images in it: each sight takes the place of one image token. `places` [3,1,T]
    are where the tokens are: texts count up on all axes, and go on behind the longest side of an image."""

    def __init__(self, ids: Sequence[int], sights: Sequence[Sight] = ()) -> None:
        self.sights = tuple(sights)
        self.ids: list[int] = []
        self.starts: list[int] = []  # of the sights
        places: list[Tensor] = []
        left, self.next_place = iter(self.sights), 0
        for token in ids:
            sight = next(left, None) if token == IMAGE_TOKEN else None
            if sight is None:
                self.ids.append(token)
                places.append(torch.full((3, 1), self.next_place))
                self.next_place += 1
                continue
            self.starts.append(len(self.ids))
            self.ids += [IMAGE_TOKEN] * len(sight.tokens)
            sides = torch.meshgrid(torch.arange(sight.rows), torch.arange(sight.columns), indexing="ij")
            grid = torch.stack([torch.zeros_like(sides[0]), *sides]).flatten(1)
            places.append(grid + self.next_place)
            self.next_place += max(sight.rows, sight.columns)
        self.places = torch.cat(places, dim=1)[:, None]

    def embedded(self, table: Any, device: torch.device) -> Tensor:
        """The first states [1,T,width]."""
        x: Tensor = table(torch.tensor([self.ids], device=device))
        return self._put(x, [sight.tokens for sight in self.sights], adds=False)

    def deepened(self, x: Tensor, number: int) -> Tensor:
        """The states behind layer `number` (0 is the first), with what images add there."""
        deep = [sight.deep[number] for sight in self.sights if number < len(sight.deep)]
        return self._put(x, deep, adds=True) if deep else x

    def _put(self, x: Tensor, rows: Sequence[Tensor], adds: bool) -> Tensor:
        for start, values in zip(self.starts, rows, strict=True):
            x = x.clone()
            at, values = slice(start, start + len(values)), values.to(x)
            x[0, at] = x[0, at] + values if adds else values
        return x


def run_layers(
    model: Any, layers: Sequence[Any], x: Tensor, places: Tensor, context: Context | None = None, cache: Any = None
) -> Iterator[Tensor]:
    """Yield the states [1,T,width] behind each layer of `model`, for tokens at `places` [3,1,T], as transformers
    records them: the last alone has what its layer adds of images. `context`: the text with the images that they are
    of; `cache`: what they attend to besides, and are added to."""
    turns = _turns(model, x, places.to(x.device))
    for number, layer in enumerate(layers):
        x = layer(x, attention_mask=None, position_embeddings=turns, past_key_values=cache)
        deeper = x if context is None else context.deepened(x, number)
        yield deeper if number == len(layers) - 1 else x
        x = deeper


def _turns(model: Any, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [1,T,head_width], each frequency by the axis that it is of."""
    found: list[Tensor] = []
    for values in model.rotary_emb(x, places):
        width = values.shape[-1]
        axes = torch.tensor(_axes(width // 2, model.config.model_type == "qwen2") * 2, device=x.device)
        found.append(values[axes, 0, :, torch.arange(width, device=x.device)].T[None])
    return found[0], found[1]


def _axes(half: int, is_qwen2: bool) -> list[int]:
    """The axis of each frequency: in sections (Qwen2.5-VL), or by turns up to a fifteenth sixteenth (Qwen3-VL)."""
    if is_qwen2:
        return [axis for axis, count in enumerate(QWEN2_SECTIONS) for _ in range(count)]
    return [number % 3 if number < half * 5 // 16 * 3 else 0 for number in range(half)]
