"""The divide mode "Prompt" of Regional Prompter: where in the image words of the base prompt are, by what its
cross-attention looks at. What was seen in the steps so far, over all layers and heads, divides the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

CHUNK, WORDS_OF_CHUNK = 77, 75
"""Tokens of a chunk of the prompt, and those of them that are not its start and end."""


def places_of(target: str, base: str, title: str) -> list[int]:
    """The tokens of the encoded base prompt that are the words of `target`, each time that they stand there. Raises
    `InvalidValueError` where they do not."""
    from modules.prompting.attention import is_break, parse_attention
    from modules.prompting.tokens import ClipTokenizer

    tokenizer = ClipTokenizer.standard()
    ids = [token for piece in parse_attention(base) if not is_break(piece) for token in tokenizer.encode(piece[0])]
    wanted = list(tokenizer.encode(target))
    starts = [at for at in range(len(ids) - len(wanted) + 1) if wanted and ids[at : at + len(wanted)] == wanted]
    if not starts:
        raise InvalidValueError(
            f"{title}: {target!r} does not stand in the base prompt {base!r}. In the divide mode Prompt each region "
            "ends with a comma and words of the base prompt: a girl with a hat BREAK a red hat, hat."
        )
    places = [place for at in starts for place in range(at, at + len(wanted))]
    return [place // WORDS_OF_CHUNK * CHUNK + 1 + place % WORDS_OF_CHUNK for place in places]


@dataclass
class SeenWords:
    """Attention of one image: what it saw of each region's words so far: [R,h,w] over the latents, summed up."""

    places: Sequence[Sequence[int]]
    thresholds: Sequence[float]
    later_covers: bool
    """Of regions that overlap the later one counts; else they share."""
    total: Any = None
    _weights: Any = None
    _step: int = -1

    def look(
        self, module: nn.Module, tokens: Tensor, context: Tensor, shape: tuple[int, int], size: tuple[int, int]
    ) -> None:
        """Add what a cross-attention of `tokens` [T,C], a map of `shape`, sees of `context` [K,C], both of one image;
        `size` is that of the latents."""
        import torch
        from torch.nn import functional as F

        attention: Any = module
        query, key = attention.to_q(tokens[None]), attention.to_k(context[None])
        query, key = (part.unflatten(2, (attention.heads, -1)).transpose(1, 2)[0].float() for part in (query, key))
        shares = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(dim=2).mean(0)  # [T,K]
        seen = torch.stack([shares[:, list(places)].sum(1).reshape(shape) for places in self.places])
        seen = F.interpolate(seen[None], size, mode="bilinear")[0]
        self.total = seen if self.total is None else self.total + seen

    def weights(self, step: int, height: int, width: int) -> Tensor | None:
        """[R,height,width] in 0 to 1: where each region's words were seen more, before this step, than their threshold
        says, of the most that they were seen anywhere; None in the first step."""
        from torch.nn import functional as F

        if step != self._step:
            self._step, self._weights = step, None if self.total is None else self._divided()
        if self._weights is None:
            return None
        found: Tensor = F.interpolate(self._weights[None], (height, width), mode="area")[0]
        return found

    def _divided(self) -> Tensor:
        """[R,h,w] over the latents."""
        import torch

        most: Tensor = self.total.amax((1, 2), keepdim=True).clamp_min(1e-12)
        limits = torch.tensor(self.thresholds, device=self.total.device)[:, None, None]
        inside: Tensor = (self.total / most > limits).float()
        if self.later_covers:
            for region in range(len(inside) - 1):
                inside[region] *= 1 - inside[region + 1 :].amax(0)
        else:
            inside = inside / inside.sum(0, keepdim=True).clamp_min(1)
        return inside
