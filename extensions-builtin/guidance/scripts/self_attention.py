"""Self-attention guidance: away from a prediction that is blurred where the model looks most.

Hong et al. 2023 (arXiv:2210.00939): the map is the attention in the middle block, for the negative prompt. Arguments
are those of Forge's built-in, or the three of the extension sd_webui_SAG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from modules.memory.hook_chain import HookOrder
from modules.scripts.fields import Field, FieldScript, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.processing.request.model_use import Guided, ModelUse

TITLE, FORGE = "Self-Attention Guidance", "SelfAttentionGuidance Integrated (SD 1.x, SD 2.x, SDXL)"
EXTENSION, EXTENSIONS_BLUR = "Self Attention Guidance", 1.0
KERNEL = 9


class SelfAttention(FieldScript):
    """The script."""

    rows = (
        switch("sag"),
        Field(
            name="scale", label="Scale", default=0.5, elem_id="sag_scale", low=-2.0, high=10.0, step=0.01,
            infotext="sag_scale",
        ),
        Field(
            name="blur_sigma", label="Blur sigma", default=2.0, elem_id="sag_blur_sigma", low=0.01, high=10.0,
            step=0.01, infotext="sag_blur_sigma",
        ),
        Field(
            name="threshold", label="Threshold", default=1.0, elem_id="sag_threshold", low=0.0, high=4.0,
            step=0.01, infotext="sag_threshold",
        ),
    )  # fmt: skip
    infotext_switch = "sag_enabled"
    other_titles = (FORGE, EXTENSION)

    def title(self) -> str:
        return TITLE

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """The extension's switch, scale and threshold; or this script's own."""
        if title.lower() == EXTENSION.lower() and len(args) == 3:
            is_on, scale, threshold = args
            return self.checked((is_on, scale, EXTENSIONS_BLUR, threshold), title)
        return super().read_args(args, title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"sag_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        middle = getattr(use.model.unet, "mid_block", None)
        layers = [] if middle is None else [each for name, each in middle.named_modules() if name.endswith(".attn1")]
        if not layers:
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its denoiser has no attention in a middle.")
            return
        use.needs_uncond, use.is_replayable = True, False
        seen: dict[int, Tensor] = {}  # by image: how much each token of the middle is looked at
        is_watching = True

        def watch(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            tokens, call = args[0] if args else kwargs["hidden_states"], use.call
            if is_watching and call.windows is None and len(tokens) == len(call.images):
                for row, image in enumerate(call.images):
                    if call.is_negative[row]:
                        seen[image] = looked_at(module, tokens[row : row + 1])[0]
            return inner(*args, **kwargs)

        def guide(guided: Guided) -> None:
            nonlocal is_watching
            if len(seen) < len(guided.x) or min(guided.x.shape[-2:]) <= KERNEL // 2:
                return
            import torch

            maps = torch.stack([seen[image] for image in range(len(guided.x))])
            degraded = blurred_where(guided.uncond, maps, values["blur_sigma"], values["threshold"])
            is_watching = False
            try:
                found = guided.predict(guided.x + degraded - guided.uncond, True)
            finally:
                is_watching = True
                seen.clear()
            assert guided.denoised is not None
            guided.denoised = guided.denoised + (degraded - found) * values["scale"]

        use.hook(layers[0], watch, HookOrder.OBSERVE)
        use.after_guidance.append(guide)


def looked_at(module: Any, tokens: Tensor) -> Tensor:
    """For tokens [N,T,C] how much attention each gets: the mean over heads, summed over those who look, [N,T]."""
    query, key = (
        part.unflatten(-1, (module.heads, -1)).transpose(1, 2).float()
        for part in (module.to_q(tokens), module.to_k(tokens))
    )
    attention = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(dim=-1)
    found: Tensor = attention.mean(1).sum(1)
    return found


def blurred_where(x: Tensor, maps: Tensor, sigma: float, threshold: float) -> Tensor:
    """A prediction [B,C,h,w], blurred where the map [B,T] of a smaller grid exceeds the threshold."""
    import torch
    from torch.nn import functional

    height, width = x.shape[-2:]
    ratio = 2 ** round(math.log2(max(math.sqrt(height * width / maps.shape[1]), 1)))
    rows, columns = math.ceil(height / ratio), math.ceil(width / ratio)
    if rows * columns != maps.shape[1]:
        return x
    mask = (maps > threshold).reshape(len(x), 1, rows, columns).to(x.dtype)
    mask = functional.interpolate(mask, (height, width))
    place = torch.arange(KERNEL, dtype=torch.float32, device=x.device) - KERNEL // 2
    bell = torch.exp(-((place / sigma) ** 2) / 2)
    kernel = torch.outer(bell, bell) / bell.sum() ** 2
    channels, border = x.shape[1], KERNEL // 2
    padded = functional.pad(x, (border,) * 4, mode="reflect")
    blurred = functional.conv2d(padded, kernel.to(x.dtype).expand(channels, 1, KERNEL, KERNEL), groups=channels)
    found: Tensor = blurred * mask + x * (1 - mask)
    return found


SelfAttention().add_axes("scale", "blur_sigma", "threshold")
