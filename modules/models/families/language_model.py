"""Families whose only text encoder is a language model."""

from collections.abc import Callable
from functools import partial

from modules.models.families.family import ExternalTextEncoder, Texts
from modules.models.names.component import Component, Header
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.llm import ROPE_THETA, llm_component
from modules.models.text_encoders.llm_texts import LlmConditioner, LlmRecipe
from modules.models.text_encoders.vision import EDITED_PIXELS
from modules.models.text_encoders.writing import Writing


def read_by(
    recipe: LlmRecipe,
    encoder: ExternalTextEncoder,
    counting: TokenCounting,
    tokens: int = 64,
    width: Callable[[Header], int | None] | None = None,
    theta: float = ROPE_THETA,
    conditioner: Callable[[TextParts, TextRequest], LlmConditioner] | None = None,
    writing: Writing | None = None,
    tower: Callable[[Header], Component] | None = None,
    shown_pixels: Callable[[str, int], int] = lambda name, count: EDITED_PIXELS,
) -> Texts:
    """Return the texts of a family that reads with this encoder. `width`: how wide its tokens are for the denoiser in a
    header, where that is not what its need says; `theta`: see `llm_component`; `conditioner`: in place of the recipe's;
    `writing`, `tower` and `shown_pixels`: see `Texts`."""
    width_of = width or encoder.width
    return Texts(
        encoders=(
            lambda header, *_: llm_component(
                *(recipe.component, header, encoder.prefix, recipe.states, encoder.hint, width_of(header)), theta=theta
            ),
        ),
        conditioning=lambda parts: partial(conditioner or recipe.conditioner, parts),
        tokens=tokens,
        counting=counting,
        external=(encoder,),
        tower=tower,
        shown_pixels=shown_pixels,
        writing=writing,
    )
