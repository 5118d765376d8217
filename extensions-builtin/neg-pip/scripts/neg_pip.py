"""NegPiP: negative weights in a prompt, (hat:-1.2), as a negative prompt inside of the prompt.

Such words are taken out of the text and encoded for themselves; every cross-attention sees them behind the others, with
their values negated, so that what would be added is taken away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.scripts.fields import FieldScript, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.processing.request.model_use import ModelUse

TITLE = "NegPiP"
NEGATIVE = re.compile(r"\(([^()]*):\s*-\s*([0-9]*\.?[0-9]+)\s*\)")
BLOCK = "BasicTransformerBlock"
"""Blocks whose `attn2` is attention over the prompt."""
MAX_TOKENS = 75  # of one such part


@dataclass(frozen=True)
class Divided:
    """A prompt without its negative parts, and those with their weights made positive."""

    text: str
    parts: tuple[tuple[str, str], ...]  # the words, and what is encoded

    @classmethod
    def of(cls, prompt: str) -> Divided:
        """Take (words:-weight) out of a prompt."""
        parts = tuple((words, f"({words}:{weight})") for words, weight in NEGATIVE.findall(prompt))
        return cls(NEGATIVE.sub("", prompt), parts)


class NegPip(FieldScript):
    """The script."""

    rows = (switch("negpip"),)
    infotext_switch = "NegPiP"

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        if self.values(p, args) is not None:
            p.extra_generation_params["NegPiP"] = "Active"

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        if self.values(p, args) is None:
            return
        prompts = [Divided.of(text) for text in use.facts.prompts]
        negatives = [Divided.of(text) for text in use.facts.negative_prompts]
        if not any(each.parts for each in (*prompts, *negatives)):
            return
        named = [module for module in use.model.unet.modules() if _is_block(module)]
        layers = [module.attn2 for module in named if module.attn2 is not None]
        if not layers:
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its denoiser has no cross-attention.")
            return
        Negated(use, prompts, negatives).put_on(layers)


def _is_block(module: Any) -> bool:
    return any(each.__name__ == BLOCK for each in type(module).__mro__)


class Negated:
    """The negative parts of a batch's texts on a model, for one pass."""

    def __init__(self, use: ModelUse, prompts: list[Divided], negatives: list[Divided]) -> None:
        self._use = use
        self._prompts, self._negatives = prompts, negatives
        self._parts: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._negated = 0  # tokens at the end of the context whose values are negated now
        self._encode = encode = use.encode
        self._encoded = encode([each.text for each in prompts], [each.text for each in negatives])

        def without_parts(prompts: Sequence[str], negatives: Sequence[str]) -> Any:
            return encode(*([Divided.of(text).text for text in texts] for texts in (prompts, negatives)))

        use.encode = without_parts  # for those who divide these texts further

    def put_on(self, layers: list[Any]) -> None:
        """Raises `InvalidValueError` for a part that is too long."""
        from modules.prompting.tokens import ClipTokenizer

        tokenizer = ClipTokenizer.standard()
        parts = list(dict.fromkeys(part for each in (*self._prompts, *self._negatives) for part in each.parts))
        for words, text in parts:
            count = len(tokenizer.encode(words))
            if count > MAX_TOKENS:
                raise InvalidValueError(f"{TITLE}: {words[:40]!r}... has {count} tokens; at most {MAX_TOKENS} may be.")
            self._counts[text] = count
        texts = [text for _, text in parts]
        self._parts = dict(zip(texts, self._encode(texts, [""]).prompts, strict=True))
        self._use.before_call.append(self._without_parts)
        for layer in layers:
            self._use.hook(layer, self._attend, HookOrder.PART)
            self._use.hook(layer.to_v, self._negate, HookOrder.PART)

    def _without_parts(self, inputs: Any) -> None:
        """The texts of a step, encoded without their negative parts; of a length that fits those of the batch."""
        import torch

        cond = [item.crossattn for each in self._encoded.prompts for item, _ in each.at(inputs.step)]
        uncond = [each.at(inputs.step).crossattn for each in self._encoded.negatives]
        for name, found in (("text_cond", cond), ("text_uncond", uncond)):
            before = getattr(inputs, name)
            if len(found) == len(before) and len({item.shape for item in found}) == 1:
                setattr(inputs, name, torch.stack(found).to(before))

    def _extra(self, image: int, is_negative: bool, step: int) -> Tensor | None:
        """The tokens of an image's negative parts, [T,C]."""
        import torch

        parts = (self._negatives if is_negative else self._prompts)[image].parts
        found = [self._parts[text].at(step)[0][0].crossattn[1 : 1 + self._counts[text]] for _, text in parts]
        return torch.cat(found) if found else None

    def _attend(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        import torch

        tokens: Tensor = args[0] if args else kwargs.pop("hidden_states")
        context: Any = args[1] if len(args) > 1 else kwargs.pop("encoder_hidden_states", None)
        call = self._use.call
        if context is None or len(call.images) != len(tokens):
            return inner(tokens, context, *args[2:], **kwargs)
        result: list[Tensor] = []
        for row, (image, is_negative) in enumerate(zip(call.images, call.is_negative, strict=True)):
            extra, own = self._extra(image, is_negative, call.step), context[row : row + 1]
            if extra is not None:
                own = torch.cat([own, extra[None].to(own)], dim=1)
            self._negated = 0 if extra is None else len(extra)
            try:
                with self._use.calling(call.rows([row]), is_inside=True):
                    result.append(inner(tokens[row : row + 1], own, *args[2:], **kwargs))
            finally:
                self._negated = 0
        return torch.cat(result)

    def _negate(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        values = inner(*args, **kwargs)
        if not self._negated:
            return values
        values = values.clone()
        values[:, -self._negated :] *= -1
        return values
