"""Style align: the images of a batch look at each other, and so get one style.

Hertz et al. 2023 (arXiv:2312.02133), in the form of Forge's built-in: each self-attention works over the tokens of all
images of the batch, prompts and negative prompts for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modules.memory.hook_chain import HookOrder
from modules.scripts.fields import Field, FieldScript, portion

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.processing.request.model_use import ModelUse

TITLE, FORGE = "StyleAlign", "StyleAlign Integrated"
BLOCK = "BasicTransformerBlock"
"""Blocks whose `attn1` is self-attention over the tokens of the image."""


class StyleAlign(FieldScript):
    """The script."""

    rows = (
        Field(name="share", label="Share attention in batch", default=False, elem_id="style_align_share"),
        portion("strength", "Strength", 1.0, "style_align_strength", infotext="style_align_strength"),
    )
    infotext_switch = "style_align_strength"
    other_titles = (FORGE,)

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params["style_align_strength"] = values["strength"]

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None or values["strength"] == 0:
            return
        blocks = [m for m in use.model.unet.modules() if any(each.__name__ == BLOCK for each in type(m).__mro__)]
        if not blocks:
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its denoiser has no layers for it.")
        if len(use.facts.prompts) < 2:
            use.notice(f"{TITLE} has no effect on a batch of one image: raise the batch size.")
            return

        def attend(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            import torch

            tokens: Tensor = args[0] if args else kwargs.pop("hidden_states")
            kwargs.pop("encoder_hidden_states", None)
            call = use.call
            if len(call.images) != len(tokens):
                return inner(tokens, **kwargs)
            windows = call.windows or (None,) * len(tokens)
            keys = list(zip(call.is_negative, windows, strict=True))
            result = torch.empty_like(tokens)
            for key in dict.fromkeys(keys):
                rows = [row for row, own in enumerate(keys) if own == key]
                mine = tokens[rows]
                every = mine.reshape(1, -1, mine.shape[-1]).expand(len(rows), -1, -1)
                strength = values["strength"]
                with use.calling(call.rows(rows), is_inside=True):
                    shared = inner(mine, encoder_hidden_states=every, **kwargs)
                    result[rows] = shared if strength >= 1 else torch.lerp(inner(mine, **kwargs), shared, strength)
            return result

        for block in blocks:
            use.hook(block.get_submodule("attn1"), attend, HookOrder.PART)


StyleAlign().add_axes("strength")
