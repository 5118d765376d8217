"""FLUX.1 in the diffusers layout: how it is known, and what its tensors are called in the original one."""

from collections.abc import Callable
from functools import partial

from modules.models.families.diffusers_config import check_text
from modules.models.families.flow_family import DENOISER
from modules.models.families.flux1.layout import CLIP_PREFIX, T5_PREFIX, TABLE
from modules.models.names.folder_layout import FIRST, SECOND, FolderLayout, Header, Names, Parts
from modules.models.text_encoders.clip import separate_clip_keymap
from modules.models.text_encoders.t5 import t5_file_keymap

TRANSFORMER = "transformer"
SIGNS = ("single_transformer_blocks.0.proj_mlp.weight", "time_text_embed.text_embedder.linear_1.weight")
"""Tensors that this transformer has, and no other known one has both of."""
GUIDANCE = "time_text_embed.guidance_embedder.linear_1.weight"
T5_TABLE = "shared.weight"


def _transformer_names(header: Header) -> Names:
    return TABLE.folder_names(header, DENOISER)


def clip_names(header: Header) -> Names:
    """Of CLIP-L, whose level `text_model` transformers has had and has not."""
    keymap = separate_clip_keymap(CLIP_PREFIX)
    return keymap, {name: name.removeprefix("text_model.") for name in header}


def t5_names(header: Header) -> Names:
    """Of T5."""
    return t5_file_keymap(T5_PREFIX), {name: name for name in header}


def folder(title: str, is_guided: bool) -> FolderLayout:
    """Of the models that take the distilled guidance as an input, or of those that do not."""
    return FolderLayout(
        title=title,
        detects=_detector(is_guided),
        names={TRANSFORMER: _transformer_names, FIRST: clip_names, SECOND: t5_names},
        checks={FIRST: partial(check_text, activation="quick_gelu")},
        denoiser=TRANSFORMER,
        signs=(*SIGNS, GUIDANCE) if is_guided else SIGNS,
        is_flow=True,
        text_signs={SECOND: T5_TABLE},
    )


def _detector(is_guided: bool) -> Callable[[Parts], bool]:
    def detects(parts: Parts) -> bool:
        header = parts.get(TRANSFORMER, {})
        return all(sign in header for sign in SIGNS) and (GUIDANCE in header) == is_guided

    return detects
