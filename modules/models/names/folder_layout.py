"""How a family's models are read in the diffusers layout; and its text models' names there.

Text models are named as `unfused` presents them: one tensor for each projection.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.models.detection.families import TRANSFORMER
from modules.models.files.tensor_file import TensorEntry
from modules.models.names import clip_text
from modules.models.names.clip_text import open_clip_keymap
from modules.models.names.keymap import KeyMap

Header = Mapping[str, TensorEntry]
Parts = Mapping[str, Header]
"""By the name of a folder: "unet", "text_encoder" ..."""
Names = tuple[KeyMap, dict[str, str]]
"""A key map, and what it calls each tensor of the folder on our side."""
LAYER = re.compile(r"^encoder\.layers\.(\d+)\.")
FIRST, SECOND = "text_encoder", "text_encoder_2"
TOKENS = "embeddings.token_embedding.weight"
"""The tensor by which CLIP's text model is known."""


@dataclass(frozen=True)
class FolderLayout:
    """The diffusers layout of a family. `title` is for people. `names` and `checks` are by part.

    `left_out_layer` is the prefix of a text model that the folder has without the last layer, which the original does
    not use. `unused_if_identity` are original names of projections that change nothing where they are the identity,
    and what they are called where they are not. `optional_parts` are opened only where they are asked for.
    `text_signs`: by part, a tensor by which a text encoder is known that is no CLIP. `marks`: by a setting of the
    denoiser, the empty tensor that an original file has where it is true.
    """

    title: str
    names: Mapping[str, Callable[[Header], Names]]
    checks: Mapping[str, Callable[[Path, str, Header], None]] = field(default_factory=dict)
    left_out_layer: str | None = None
    unused_if_identity: Mapping[str, str] = field(default_factory=dict)
    optional_parts: tuple[str, ...] = ()
    text_signs: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def text_parts(self) -> tuple[str, ...]:
        """The text encoders' folders, from the first on."""
        return tuple(part for part in self.names if part != TRANSFORMER)

    def is_text_part(self, part: str, header: Header) -> bool:
        """Whether a file with this header holds a text encoder of the kind that `part` is."""
        sign = self.text_signs.get(part)
        if sign is not None:
            return sign in header
        return any(level_down(key) == TOKENS for key in header)


def level_down(name: str) -> str:
    """A text model's name without the level `text_model`, which transformers has had and has not."""
    return name.removeprefix("text_model.")


def text_layers(header: Header) -> int:
    """How many layers a text model of these names has."""
    return len({match[1] for name in header if (match := LAYER.match(level_down(name)))})


def clip_names(header: Header, prefix: str) -> Names:
    """Return the names of a CLIP text model that is at `prefix` in the original layout."""
    return clip_text.clip_text_keymap(prefix=prefix), {name: level_down(name) for name in header}


def open_clip_names(header: Header, prefix: str) -> Names:
    """Return the names of OpenCLIP's text model, without a projection."""
    keymap = open_clip_keymap(prefix, text_layers(header), with_projection=False)
    return keymap, {name: level_down(name) for name in header}


def projected_open_clip_names(header: Header, prefix: str) -> Names:
    """Return the names of OpenCLIP's text model, with its projection."""
    keymap = open_clip_keymap(prefix, text_layers(header), with_projection=True)
    inner = {name: level_down(name) for name in header}
    return keymap, {
        name: short if short.startswith("text_projection") else f"text_model.{short}" for name, short in inner.items()
    }
