"""Perturbed-attention guidance: away from what the model predicts when it cannot see how places belong together.

Ahn et al. 2024 (arXiv:2403.17377): in one more call the self-attention in the middle of the denoiser is replaced by the
identity. Arguments are those of Forge's built-in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.scripts.fields import Field, FieldScript, portion, switch, truths

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import nn

    from modules.processing.request.model_use import Guided, ModelUse

TITLE, FORGE = "Perturbed-Attention Guidance", "PerturbedAttentionGuidance Integrated"


INCANTATIONS = "Incantations"
"""An extension of several kinds of guidance, by whose arguments this script is asked as well."""
BEFORE_PAG = (0, 4)  # where the switches of the parts before it stand
FIRST_OF_PAG, ALL_STEPS = 12, 150


class PerturbedAttention(FieldScript):
    """The script."""

    rows = (
        switch("pag"),
        Field(
            name="scale", label="Scale", default=3.0, elem_id="pag_scale", low=0.0, high=100.0, slider_high=20.0,
            step=0.1, infotext="pag_scale",
        ),
        Field(
            name="attenuation", label="Attenuation (% of scale)", default=0.0, elem_id="pag_attenuation",
            low=0.0, high=100.0, step=0.1, infotext="pag_attenuation",
        ),
        portion("start", "Start", 0.0, "pag_start", infotext="pag_start"),
        portion("end", "End", 1.0, "pag_end", infotext="pag_end"),
    )  # fmt: skip
    infotext_switch = "pag_enabled"
    other_titles = (FORGE, INCANTATIONS)

    def title(self) -> str:
        return TITLE

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """Read those of Incantations, of which perturbed attention is made here; or this script's own."""
        if title.lower() != INCANTATIONS.lower():
            return super().read_args(args, title)
        given = truths(args)
        enabled, scale, first, last = [*given[FIRST_OF_PAG:], *[None] * 4][:4]
        if any(given[place : place + 1] == [True] for place in BEFORE_PAG):
            raise InvalidValueError(
                f"{title}: of its parts Perturbed Attention Guidance alone is made here. For another kind of guidance "
                "name the script Self-Attention Guidance, or one of the forms of CFG."
            )
        if first not in (None, 0) or (last is not None and last < ALL_STEPS):
            raise InvalidValueError(
                f"{title}: steps {first} to {last}. Name {TITLE!r}, whose start and end are portions of the run."
            )
        return self.checked((bool(enabled), scale), title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"pag_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        layers = middle_attentions(use.model.unet)
        if not layers:
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its middle has no attention to replace.")
            return
        is_perturbed = False

        def attend(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if not is_perturbed:
                return inner(*args, **kwargs)
            tokens = args[0] if args else kwargs["hidden_states"]
            own: Any = module
            alone = own.to_out[1](own.to_out[0](own.to_v(tokens)))
            if getattr(own, "add_v_proj", None) is None:
                return alone
            return (alone, *inner(*args, **kwargs)[1:])  # the tokens of the text attend as ever

        def guide(guided: Guided) -> None:
            nonlocal is_perturbed
            if not values["start"] <= guided.progress < max(values["end"], 1e-9) or values["scale"] == 0:
                return
            is_perturbed = True
            try:
                perturbed = guided.predict(guided.x, False)
            finally:
                is_perturbed = False
            scale = values["scale"] * (1 - values["attenuation"] / 100 * guided.progress)
            assert guided.denoised is not None
            guided.denoised = guided.denoised + (guided.cond - perturbed) * scale

        for layer in layers:
            use.hook(layer, attend, HookOrder.PART)
        use.after_guidance.append(guide)


def middle_attentions(denoiser: Any) -> list[Any]:
    """The self-attentions of a UNet's middle block, or the joint attention of a transformer's middle block."""
    middle = getattr(denoiser, "mid_block", None)
    if middle is not None:
        return [module for name, module in middle.named_modules() if name.endswith(".attn1")]
    blocks = getattr(denoiser, "transformer_blocks", None)
    attention = None if not blocks else getattr(blocks[len(blocks) // 2], "attn", None)
    return [] if attention is None or not hasattr(attention, "to_v") else [attention]


PerturbedAttention().add_axes("scale", "attenuation", "start", "end")
