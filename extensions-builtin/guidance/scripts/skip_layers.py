"""Skip-layer guidance: away from what the model predicts without some of its layers.

After "Guiding a diffusion model with a bad version of itself" (Karras et al. 2024, arXiv:2406.02507), in the form that
was published with Stable Diffusion 3.5, whose layers 7, 8, 9 are the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import nn

    from modules.processing.request.model_use import Guided, ModelUse

TITLE = "Skip-Layer Guidance"
BLOCK = "BasicTransformerBlock"


class SkipLayers(FieldScript):
    """The script."""

    rows = (
        switch("slg"),
        Field(name="layers", label="Layers", default="7, 8, 9", elem_id="slg_layers", infotext="slg_layers"),
        Field(
            name="scale", label="Scale", default=3.0, elem_id="slg_scale", low=0.0, high=20.0, step=0.1,
            infotext="slg_scale",
        ),
        portion("start", "Start", 0.01, "slg_start", infotext="slg_start"),
        portion("end", "End", 0.15, "slg_end", infotext="slg_end"),
    )  # fmt: skip
    infotext_switch = "slg_enabled"

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            numbers_of(values["layers"])
            p.extra_generation_params |= {f"slg_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        blocks = transformer_blocks(use.model.unet)
        wanted = [number for number in numbers_of(values["layers"]) if number < len(blocks)]
        if not wanted:
            label = use.model.family.label
            use.notice(f"{TITLE} has no effect on {label}: it has the layers 0 to {len(blocks) - 1}.")
            return
        is_skipping = False

        def skip(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if not is_skipping:
                return inner(*args, **kwargs)
            tokens = args[0] if args else kwargs["hidden_states"]
            if is_joint(module):
                return args[1] if len(args) > 1 else kwargs["encoder_hidden_states"], tokens
            return tokens

        def guide(guided: Guided) -> None:
            nonlocal is_skipping
            if not values["start"] <= guided.progress <= values["end"] or values["scale"] == 0:
                return
            is_skipping = True
            try:
                skipped = guided.predict(guided.x, False)
            finally:
                is_skipping = False
            assert guided.denoised is not None
            guided.denoised = guided.denoised + (guided.cond - skipped) * values["scale"]

        for number in wanted:
            use.hook(blocks[number], skip, HookOrder.OBSERVE)
        use.after_guidance.append(guide)


def numbers_of(text: str) -> list[int]:
    """The numbers of layers, separated by commas. Raises `InvalidValueError`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise InvalidValueError(f"{TITLE}: the layers are {text!r}; write whole numbers with commas, as 7, 8, 9.")
    return [int(part) for part in parts]


def is_joint(block: Any) -> bool:
    """Whether a block gives the tokens of the text besides those of the image."""
    return not any(each.__name__ == BLOCK for each in type(block).__mro__)


def transformer_blocks(denoiser: Any) -> list[Any]:
    """List those of a transformer, or of a UNet in their order."""
    own = getattr(denoiser, "transformer_blocks", None)
    if own is not None:
        return list(own)
    return [module for module in denoiser.modules() if not is_joint(module)]


SkipLayers().add_axes("layers", "scale", "start", "end")
