"""Models of other kinds, which are not read here, so that a sentence can call each by its name: the table `others.txt`.
Imports no torch."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

TABLE = Path(__file__).with_name("others.txt")
TYPES = {
    "image": "which is not supported",
    "video": "a video model: only models of images are supported",
    "audio": "an audio model: only models of images are supported",
    "video VAE": "the VAE of a video model, which is not supported",
    "audio VAE": "the VAE of an audio model, which is not supported",
    "encoder": "with which no model of images here reads",
}
ADAPTER, DENOISER, VAE, ENCODER = "adapter", "denoiser", "vae", "encoder"
LEVEL = re.compile(
    r"^(?:model\.diffusion_model\.(?:net\.)?|diffusion_model\.|first_stage_model\.|language_model\.|"
    r"(?:net|model|module|_orig_mod|dit|transformer|unet|vae|text_encoder(?:_\d)?)\.)"
)
"""What programs put before the names of a model."""


class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Other:
    """A row: the group of models, the name of one, what it is, how the names of its classes begin in diffusers, and its
    tensors: any of these lists, of which all are there."""

    group: str
    name: str
    type: str
    classes: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...]

    @property
    def sentence(self) -> str:
        """Return what the model is, to be read after "is"."""
        return f"{self.name}, {TYPES.get(self.type, self.type)}"


@cache
def others() -> tuple[Other, ...]:
    """Return the rows of the table."""
    rows = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            group, name, kind, classes, signs = (part.strip() for part in line.split("|"))
            lists = tuple(tuple(one.split()) for one in signs.split(";"))
            rows.append(Other(group, name, kind, tuple(classes.split()), lists))
    return tuple(rows)


def other_of(header: Mapping[str, HasShape], *groups: str) -> Other | None:
    """Return the row, of these groups or of all, of the model that the tensors of a file are; None for other files."""
    bare = {LEVEL.sub("", name): entry for name, entry in header.items()}
    order = sorted(bare)
    rows = (row for row in others() if not groups or row.group in groups)
    return next(
        (row for row in rows if any(all(_has(bare, order, sign) for sign in signs) for signs in row.signs)), None
    )


def other_of_class(name: str) -> Other | None:
    """Return the row of a class or a pipeline of diffusers; None for others. The longest beginning counts."""
    fitting = [(len(start), row) for row in others() for start in row.classes if name.startswith(start)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _has(header: Mapping[str, HasShape], order: list[str], sign: str) -> bool:
    if sign.endswith("."):
        at = bisect_left(order, sign)
        return at < len(order) and order[at].startswith(sign)
    if sign.startswith("!"):
        return sign[1:] not in header
    name, _, width = sign.partition("=")
    return name in header and (not width or header[name].shape[-1:] == (int(width),))
