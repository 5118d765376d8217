"""Writing with a language model that otherwise reads: token by token, greedily or drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modules.models.libraries import library_name
from modules.models.names.component import Component, Header
from modules.models.text_encoders.llm_layers import Context, run_layers
from modules.models.text_encoders.tokenizers import QWEN_PAD, QWEN_SPECIAL
from modules.prompting.writing import WriteOptions

ENDS = (QWEN_PAD, QWEN_PAD + QWEN_SPECIAL.index("<|im_end|>"))
ANSWER = "<|im_start|>assistant\n"
NO_THOUGHTS = "<think>\n\n</think>\n\n"
"""What models that think aloud first are given, so that they answer at once."""


@dataclass(frozen=True)
class Writing:
    """How the language model of a family writes. `head` makes what it does so with and reading does without; `style`
    says what its prompts are like, for the model itself to read. `answer`: what it goes on from."""

    head: Callable[[Header], Component]
    style: str
    answer: str = ANSWER


@torch.no_grad()
def tokens(model: Any, head: Any, context: Context, device: torch.device, options: WriteOptions) -> Iterator[int]:
    """Yield the tokens with which `model` and `head` go on from a text, until the answer ends, or there are as many as
    the options say."""
    cache = library_name("transformers.DynamicCache")()
    generator = torch.Generator().manual_seed(options.seed)
    layers = [*model.layers, *head.layers]
    x, places = context.embedded(model.embed_tokens, device), context.places
    for number in range(options.max_tokens):
        *_, x = run_layers(model, layers, x, places, None if number else context, cache)
        logits = head.lm_head(head.norm(model.norm(x[:, -1:])))[0, -1]
        token = choose(logits.float().cpu(), options, generator)
        if token in ENDS:
            return
        yield token
        x = model.embed_tokens(torch.tensor([[token]], device=device))
        places = torch.full((3, 1, 1), context.next_place + number)


def choose(logits: Tensor, options: WriteOptions, generator: torch.Generator) -> int:
    """Choose a token by its logits [vocabulary], float32 on the CPU."""
    if options.temperature == 0:
        return int(logits.argmax())
    scores = logits / options.temperature
    if options.top_k:
        least = scores.topk(min(options.top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    ordered, places = scores.sort(descending=False)
    unlikely = ordered.softmax(-1).cumsum(-1) <= 1 - options.top_p
    unlikely[-1] = False
    scores[places[unlikely]] = -torch.inf
    return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))
