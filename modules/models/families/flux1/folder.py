"""FLUX.1 in the diffusers layout: what its tensors are called in the original one."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import T5_TABLE
from modules.models.families.diffusers_config import check_text
from modules.models.families.flux1.layout import CLIP_PREFIX, T5_PREFIX, TABLE
from modules.models.names.folder_layout import FIRST, SECOND, FolderLayout, Header, Names
from modules.models.text_encoders.clip import separate_clip_keymap
from modules.models.text_encoders.t5 import t5_file_keymap


def _transformer_names(header: Header) -> Names:
    return TABLE.folder_names(header, PREFIX)


def clip_names(header: Header) -> Names:
    """Of CLIP-L, whose level `text_model` transformers has had and has not."""
    keymap = separate_clip_keymap(CLIP_PREFIX)
    return keymap, {name: name.removeprefix("text_model.") for name in header}


def t5_names(header: Header) -> Names:
    """Of T5."""
    return t5_file_keymap(T5_PREFIX), {name: name for name in header}


def folder(title: str) -> FolderLayout:
    """Return the layout of one of the two families."""
    return FolderLayout(
        title=title,
        names={TRANSFORMER: _transformer_names, FIRST: clip_names, SECOND: t5_names},
        checks={FIRST: partial(check_text, activation="quick_gelu")},
        text_signs={SECOND: T5_TABLE},
    )
