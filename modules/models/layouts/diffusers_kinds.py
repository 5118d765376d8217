"""The kinds of models in the diffusers layout, one entry each: how it is told by its parts, what its networks' tensors
are called in the original layout, and how the settings beside them are held against the tensors.

Text models are named as `OpenClipLayout` presents them: one tensor for each projection.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.models.layouts.diffusers_config import check_text
from modules.models.layouts.diffusers_sd3 import T5_PART, TRANSFORMER, is_sd3, sd3_map
from modules.models.layouts.diffusers_sd3_config import check_t5, check_transformer
from modules.models.layouts.keymaps import clip_text
from modules.models.layouts.keymaps.keymap import KeyMap
from modules.models.layouts.keymaps.open_clip_text import open_clip_keymap
from modules.models.reading.tensor_file import TensorEntry

Header = Mapping[str, TensorEntry]
Parts = Mapping[str, Header]
"""By the name of a folder: "unet", "text_encoder" ..."""
Names = tuple[KeyMap, dict[str, str]]
"""A key map, and what it calls each tensor of the folder on our side."""
SIZES_EMBEDDING = "add_embedding."
LAYER = re.compile(r"^encoder\.layers\.(\d+)\.")
FIRST, SECOND = "text_encoder", "text_encoder_2"
SD1_TEXT, SD2_TEXT = clip_text.PREFIX, "cond_stage_model.model"
SDXL_FIRST, SDXL_SECOND, REFINER_TEXT = (
    "conditioner.embedders.0.transformer",
    "conditioner.embedders.1.model",
    "conditioner.embedders.0.model",
)
OPTIONAL_PARTS = (T5_PART,)
"""Folders that are opened only where they are asked for."""


@dataclass(frozen=True)
class FolderLayout:
    """`names` and `checks` are by part. `lacks_last_layer`: the first text model is without the layer that the original
    does not use."""

    detects: Callable[[Parts], bool]
    names: Mapping[str, Callable[[Header], Names]]
    checks: Mapping[str, Callable[[Path, str, Header], None]]
    is_flow: bool = False
    lacks_last_layer: bool = False


def kind_of(parts: Parts) -> FolderLayout:
    """The first of `KINDS` that has these parts."""
    return next(kind for kind in KINDS if kind.detects(parts))


def level_down(name: str) -> str:
    """A text model's name without the level `text_model`, which transformers has had and has not."""
    return name.removeprefix("text_model.")


def text_layers(header: Header) -> int:
    """How many layers a text model of these names has."""
    return len({match[1] for name in header if (match := LAYER.match(level_down(name)))})


def _clip(header: Header, prefix: str) -> Names:
    return clip_text.clip_text_keymap(prefix=prefix), {name: level_down(name) for name in header}


def _open_clip(header: Header, prefix: str) -> Names:
    keymap = open_clip_keymap(prefix, text_layers(header), with_projection=False)
    return keymap, {name: level_down(name) for name in header}


def _projected_open_clip(header: Header, prefix: str) -> Names:
    keymap = open_clip_keymap(prefix, text_layers(header), with_projection=True)
    inner = {name: level_down(name) for name in header}
    return keymap, {
        name: short if short.startswith("text_projection") else f"text_model.{short}" for name, short in inner.items()
    }


def _is_refiner(parts: Parts) -> bool:
    return SECOND in parts and FIRST not in parts


def _is_xl(parts: Parts) -> bool:
    return any(name.startswith(SIZES_EMBEDDING) for name in parts.get("unet", {}))


def _is_sd2(parts: Parts) -> bool:
    """SD2 has linear layers in its UNet where SD1 has 1x1 convolutions."""
    unet = parts.get("unet", {})
    return any(name.endswith(".proj_in.weight") and len(entry.shape) == 2 for name, entry in unet.items())


_CHECK_CLIP = partial(check_text, activation="quick_gelu")
_CHECK_OPEN_CLIP = partial(check_text, activation="gelu")
KINDS = (
    FolderLayout(
        is_sd3,
        {part: partial(sd3_map, part) for part in (TRANSFORMER, FIRST, SECOND, T5_PART)},
        {TRANSFORMER: check_transformer, FIRST: _CHECK_CLIP, SECOND: _CHECK_OPEN_CLIP, T5_PART: check_t5},
        is_flow=True,
    ),
    FolderLayout(_is_refiner, {SECOND: partial(_projected_open_clip, prefix=REFINER_TEXT)}, {SECOND: _CHECK_OPEN_CLIP}),
    FolderLayout(
        _is_xl,
        {FIRST: partial(_clip, prefix=SDXL_FIRST), SECOND: partial(_projected_open_clip, prefix=SDXL_SECOND)},
        {FIRST: _CHECK_CLIP, SECOND: _CHECK_OPEN_CLIP},
    ),
    FolderLayout(
        _is_sd2, {FIRST: partial(_open_clip, prefix=SD2_TEXT)}, {FIRST: _CHECK_OPEN_CLIP}, lacks_last_layer=True
    ),
    FolderLayout(lambda parts: True, {FIRST: partial(_clip, prefix=SD1_TEXT)}, {FIRST: _CHECK_CLIP}),
)
"""Tried in this order; SD1 is what none of the others is."""
