"""SD3's text encoders in the original layout (`text_encoders.*`) and as transformers' classes: nearly the same names,
one behind another beginning."""

from collections.abc import Iterator

from modules.models.layouts.keymaps.clip_text import PARTS, clip_text_keymap
from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair
from modules.models.layouts.keymaps.mmdit import CLIP_G_PREFIX, CLIP_L_PREFIX, T5_PREFIX

CLIP_L_PROJECTION = f"{CLIP_L_PREFIX}.pooled_projection"
"""A projection of CLIP-L's pooled output, which original files never apply (they may hold one all the same, called
`text_projection`): folders of diffusers can have one that does something."""


def clip_l_keymap(with_projection: bool = False) -> KeyMap:
    """CLIPTextModel, or CLIPTextModelWithProjection where the pooled output is projected."""
    if not with_projection:
        return clip_text_keymap(prefix=CLIP_L_PREFIX)
    return KeyMap((*_level_deeper(CLIP_L_PREFIX), ModulePair(CLIP_L_PROJECTION, "text_projection")))


def clip_g_keymap() -> KeyMap:
    """CLIPTextModelWithProjection."""
    return KeyMap(
        (*_level_deeper(CLIP_G_PREFIX), ModulePair(f"{CLIP_G_PREFIX}.text_projection", "text_projection")),
    )


def t5_keymap() -> KeyMap:
    """T5EncoderModel, whose table of tokens is the encoder's own."""
    return KeyMap(
        (ModulePair(f"{T5_PREFIX}.shared", "encoder.embed_tokens"), ModulePair(f"{T5_PREFIX}.encoder", "encoder"))
    )


def _level_deeper(prefix: str) -> Iterator[ModulePair]:
    for part in PARTS:
        yield ModulePair(f"{prefix}.text_model.{part}", f"text_model.{part}")
