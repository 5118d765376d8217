"""Normalized attention guidance: a negative prompt that counts at a CFG scale of 1, in models of few steps too.

Chen et al. 2025 (arXiv:2505.21179): where the tokens of the image attend to the prompt, they attend to the negative
prompt as well; what they got is led away from that, becomes at most `tau` times as long as it was, and is mixed with
it. Where text is attended to apart (UNets), only that attention is computed twice. Where image and text attend to all
tokens at once, the denoiser computes a row with each text, and the image's tokens stay the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.memory.hook_chain import HookOrder
from modules.processing.request.model_use import INSIDE, rows_of_context
from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.processing.request.model_use import ConditionedDenoise, ModelUse

TITLE = "Normalized Attention Guidance"
STREAMS = (
    *(("transformer_blocks", "attn"), ("single_transformer_blocks", "attn"), ("layers", "attention")),
    ("layers", "self_attention"),
)
"""Lists of blocks whose attention is over image and text together, and what it is called in them."""
IMAGE_FIRST = "layers"
IMAGE_EMBEDDERS = ("noise_refiner.0", "x_embedder", "img_in", "x_embedders.image")
"""Modules that give as many tokens as the image has."""
REFERENCE_EMBEDDER = "x_embedders.image_cond"
"""A module that gives as many tokens as references have, which follow the image's."""
NEVER_ZERO = 1e-7


class NormalizedAttention(FieldScript):
    """The script."""

    rows = (
        switch("nag"),
        Field(
            name="scale", label="Scale", default=5.0, elem_id="nag_scale", low=1.0, high=100.0, slider_high=20.0,
            step=0.1, infotext="nag_scale",
        ),
        Field(
            name="tau", label="Tau", default=2.5, elem_id="nag_tau", low=1.0, high=10.0, step=0.1,
            infotext="nag_tau",
        ),
        portion("alpha", "Alpha", 0.25, "nag_alpha", infotext="nag_alpha"),
        portion("start", "Start", 0.0, "nag_start", infotext="nag_start"),
        portion("end", "End", 1.0, "nag_end", infotext="nag_end"),
    )  # fmt: skip
    infotext_switch = "nag_enabled"
    other_titles = ("NAG",)

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"nag_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None or values["scale"] == 1 or values["alpha"] == 0:
            return
        negated = Negated(use, values)
        if not (negated.put_on_cross_attention() or negated.put_on_streams()):
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its denoiser has no layers for it.")


class Negated:
    """The negative prompts of a pass in the attention of a model."""

    def __init__(self, use: ModelUse, values: dict[str, Any]) -> None:
        self._use, self._values = use, values
        self._texts: tuple[Tensor, Tensor | None] | None = None  # of the negative prompts, and their mask
        self._kept: Tensor | None = None  # what the tokens got from the negative prompts
        self._guided: list[int] = []  # rows that are led away from it
        self._rows = 0  # of the denoiser's call with a row for each text; 0: no such call is made
        self._image_tokens = 0
        self._is_told = False
        use.reads_uncond = True
        use.before_call.append(self._remember)

    def _remember(self, inputs: Any) -> None:
        self._texts = inputs.text_uncond, inputs.mask_uncond

    def _now(self) -> list[int]:
        """Return the rows of the present call that are guided."""
        call, values = self._use.call, self._values
        if self._texts is None or not values["start"] <= call.progress < max(values["end"], NEVER_ZERO):
            return []
        return [row for row, is_negative in enumerate(call.is_negative) if not is_negative]

    def _away(self, positive: Tensor, negative: Tensor) -> Tensor:
        return away(positive, negative, self._values["scale"], self._values["tau"], self._values["alpha"])

    # -- attention over the text alone --------------------------------------------------------------------------------

    def put_on_cross_attention(self) -> bool:
        """Hook the layers whose blocks have self-attention apart; False where there are none."""
        modules = list(self._use.model.unet.modules())
        layers = [module.attn2 for module in modules if hasattr(module, "attn1") and hasattr(module, "attn2")]
        layers = [layer for layer in layers if layer is not None]
        for layer in layers:
            self._use.hook(layer, self._attend, HookOrder.PART)
            self._use.hook(layer.to_out[0], self._project, HookOrder.PART)
        return bool(layers)

    def _attend(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tokens: Tensor = args[0] if args else kwargs.pop("hidden_states")
        context: Any = args[1] if len(args) > 1 else kwargs.pop("encoder_hidden_states", None)
        call = self._use.call
        rows = self._now() if context is not None and len(call.images) == len(tokens) else []
        if not rows:
            return inner(tokens, context, *args[2:], **kwargs)
        assert self._texts is not None
        negatives = self._texts[0][[call.images[row] for row in rows]].to(context)
        try:
            with self._use.calling(call.rows(rows), is_inside=True):
                inner(tokens[rows], negatives, *args[2:], **kwargs)  # `_project` keeps what it got
            self._guided = rows
            return inner(tokens, context, *args[2:], **kwargs)
        finally:
            self._kept, self._guided = None, []

    def _project(self, module: nn.Module, inner: Callable[..., Any], /, features: Tensor) -> Any:
        if not self._guided:
            self._kept = features
            return inner(features)
        assert self._kept is not None
        features = features.clone()
        features[self._guided] = self._away(features[self._guided], self._kept)
        return inner(features)

    # -- attention over text and image --------------------------------------------------------------------------------

    def put_on_streams(self) -> bool:
        """Have the denoiser compute a row with each text, and hook its blocks; False where there are none."""
        unet, use = self._use.model.unet, self._use
        found = [(name, getattr(block, part)) for name, part in STREAMS
                 for block in getattr(unet, name, None) or () if hasattr(block, part)]  # fmt: skip
        for name, layer in found:
            out = getattr(layer, "to_out", None)
            is_image_only = getattr(layer, "add_k_proj", None) is not None
            merge = self._merging(is_image_only, name == IMAGE_FIRST, getattr(layer, "inner_dim", None))
            if out is None:  # the block projects what it gives
                use.hook(layer, _on_output(merge), HookOrder.PART)
            else:
                use.hook(out[0] if hasattr(out, "__getitem__") else out, _on_input(merge), HookOrder.PART)
        known = dict(unet.named_modules()) if found else {}
        for name in [name for name in IMAGE_EMBEDDERS if name in known][:1]:
            use.hook(known[name], self._count, HookOrder.OBSERVE)
        if REFERENCE_EMBEDDER in known:
            use.hook(known[REFERENCE_EMBEDDER], self._count_more, HookOrder.OBSERVE)
        if found:
            use.around_denoiser(self._around, INSIDE)
        return bool(found)

    def _count(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        self._image_tokens = output.shape[1]
        return output

    def _count_more(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        self._image_tokens += output.shape[1]
        return output

    def _around(self, denoise: ConditionedDenoise) -> ConditionedDenoise:
        def twice(x: Tensor, sigma: Tensor, context: Any) -> Tensor:
            rows, call = self._now(), self._use.call
            if not rows:
                return denoise(x, sigma, context)
            assert self._texts is not None
            every = [*range(len(x)), *rows]
            negatives, mask = (
                None if each is None else each[[call.images[row] for row in rows]] for each in self._texts
            )
            texts, masks = joined(context.crossattn, context.mask, negatives, mask)
            both = replace(rows_of_context(context, every, len(x)), crossattn=texts, mask=masks)
            self._guided, self._rows = rows, len(every)
            try:
                with self._use.calling(call.rows(every)):
                    return denoise(x[every], sigma[every], both)[: len(x)]
            finally:
                self._guided, self._rows = [], 0

        return twice

    def _merging(self, is_image_only: bool, is_image_first: bool, width: int | None) -> Callable[[Tensor], Tensor]:
        def merge(features: Tensor) -> Tensor:
            """Lead the image's tokens away; all rows of an image go on with the same."""
            if not self._rows:
                return features
            if len(features) != self._rows:
                if not self._is_told:
                    self._use.notice(f"{TITLE} was left out where prompt and negative prompt were computed apart.")
                self._is_told = True
                return features
            count = features.shape[1] if is_image_only else self._image_tokens
            part = slice(count) if is_image_first else slice(features.shape[1] - count, None)
            features = features.clone()
            image = features[:, part, :width]
            first = self._rows - len(self._guided)
            led = self._away(image[self._guided], image[first:])
            image[self._guided], image[first:] = led, led
            return features

        return merge


def _on_input(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda module, inner, features, *args, **kwargs: inner(change(features), *args, **kwargs)


def _on_output(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda module, inner, *args, **kwargs: change(inner(*args, **kwargs))


def away(positive: Tensor, negative: Tensor, scale: float, tau: float, alpha: float) -> Tensor:
    """Lead features [N,T,C] away from others. The length of a token's features is the sum of their absolute values."""
    first, second = positive.float(), negative.float()
    led = first * scale - second * (scale - 1)
    ratio = led.abs().sum(-1, keepdim=True) / (first.abs().sum(-1, keepdim=True) + NEVER_ZERO)
    led = led * (tau / ratio.clamp_min(tau))
    return (led * alpha + first * (1 - alpha)).to(positive)


def joined(
    texts: Tensor, mask: Tensor | None, negatives: Tensor | None, negative_mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return both texts [N,tokens,width] behind each other, in the length of the longer ones: padding is masked, and
    without a mask the last token is repeated."""
    import torch

    assert negatives is not None
    length = max(texts.shape[1], negatives.shape[1])

    def padded(each: Tensor) -> Tensor:
        return torch.cat([each, each[:, -1:].expand(-1, length - each.shape[1], *each.shape[2:])], dim=1)

    if mask is None or negative_mask is None:
        return torch.cat([padded(texts), padded(negatives.to(texts))]), None
    masks = [torch.nn.functional.pad(each, (0, length - each.shape[1])) for each in (mask, negative_mask.to(mask))]
    return torch.cat([padded(texts), padded(negatives.to(texts))]), torch.cat(masks)


NormalizedAttention().add_axes("scale", "tau", "alpha", "start", "end")
