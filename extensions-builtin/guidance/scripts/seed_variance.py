"""Seed variance: noise on what the first steps read of the prompt, so that the images of distilled models, which look
alike with every seed, differ again. The steps after these read the prompt as it is.

The noise follows from the seed of each image, and is as large as the text's values deviate, times `strength`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.processing.request.model_use import OUTSIDE
from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import ConditionedDenoise, ModelUse

TITLE = "Seed Variance"
APART = 2**40
"""How far its seeds are from those of the latents, whose noise would be the same otherwise."""


class SeedVariance(FieldScript):
    """The script."""

    rows = (
        switch("seed_variance"),
        Field(
            name="strength", label="Strength", default=0.5, elem_id="seed_variance_strength", low=0.0, high=10.0,
            slider_high=2.0, step=0.05, infotext="seed_variance_strength",
        ),
        portion("share", "Share", 0.5, "seed_variance_share", infotext="seed_variance_share"),
        portion("end", "End", 0.25, "seed_variance_end", infotext="seed_variance_end"),
    )  # fmt: skip
    infotext_switch = "seed_variance_enabled"

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"seed_variance_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None or values["strength"] == 0 or values["share"] == 0:
            return
        seeds: Sequence[int] = list(p.seeds)

        def around(denoise: ConditionedDenoise) -> ConditionedDenoise:
            def varied(x: Tensor, sigma: Tensor, context: Any) -> Tensor:
                call = use.call
                if call.progress >= values["end"]:
                    return denoise(x, sigma, context)
                texts = context.crossattn.clone()
                for row, (image, is_negative) in enumerate(zip(call.images, call.is_negative, strict=True)):
                    if not is_negative:
                        count = texts.shape[1] if context.mask is None else int(context.mask[row].sum())
                        texts[row, :count] += noise_for(texts[row, :count], seeds[image], values)
                return denoise(x, sigma, replace(context, crossattn=texts))

            return varied

        use.around_denoiser(around, OUTSIDE)


def noise_for(text: Tensor, seed: int, values: dict[str, Any]) -> Tensor:
    """Return what is added to a text [tokens,width]: the same for a seed on every device."""
    import torch

    generator = torch.Generator().manual_seed((seed + APART) % 2**63)
    noise = torch.randn(text.shape, generator=generator)
    chosen = torch.rand(text.shape, generator=generator) < values["share"]
    added: Tensor = (noise * chosen).to(text) * (text.float().std() * values["strength"]).to(text)
    return added


SeedVariance().add_axes("strength", "share", "end")
