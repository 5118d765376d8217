"""Kinds of model files, and the table of what has a name of its own: `kinds.txt`. Imports no torch."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Protocol

TABLE = Path(__file__).with_name("kinds.txt")


class Kind(StrEnum):
    """Kind of a model file, as tables and the API name it."""

    CHECKPOINT = "checkpoint"
    DENOISER = "denoiser"
    TEXT_ENCODER = "text encoder"
    IMAGE_ENCODER = "image encoder"
    VAE = "VAE"
    TINY_VAE = "tiny VAE"
    LORA = "LoRA"
    EMBEDDING = "embedding"
    HYPERNETWORK = "hypernetwork"
    CONTROLNET = "ControlNet"
    CONTROL_LORA = "control LoRA"
    T2I_ADAPTER = "T2I-adapter"
    IP_ADAPTER = "IP-adapter"
    PREPROCESSOR = "preprocessor"
    UPSCALER = "upscaler"
    FACE_RESTORER = "face restorer"
    DETECTOR = "detector"
    SEGMENTER = "segmentation model"
    BACKGROUND = "background remover"
    LANGUAGE_MODEL = "language model"
    MEDIA = "video or audio part"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """The kind with its article."""
        return f"{'an' if self[0] in 'aeiouI' else 'a'} {self}"


FOLDERS: Mapping[Kind, str] = {
    **dict.fromkeys((Kind.CHECKPOINT, Kind.DENOISER), "Stable-diffusion"),
    **{Kind.TEXT_ENCODER: "text_encoder", Kind.IMAGE_ENCODER: "clip_vision", Kind.VAE: "VAE"},
    **{Kind.TINY_VAE: "VAE-taesd", Kind.LORA: "Lora", Kind.EMBEDDING: "embeddings", Kind.HYPERNETWORK: "hypernetworks"},
    **dict.fromkeys((Kind.CONTROLNET, Kind.CONTROL_LORA, Kind.T2I_ADAPTER, Kind.IP_ADAPTER), "ControlNet"),
    **{Kind.PREPROCESSOR: "ControlNetPreprocessor", Kind.UPSCALER: "ESRGAN", Kind.FACE_RESTORER: "GFPGAN"},
    **{Kind.DETECTOR: "adetailer", Kind.SEGMENTER: "segmentation", Kind.BACKGROUND: "background_removal"},
}
"""Folders below `models/` (embeddings: the folder of embeddings); kinds that are not read have none."""
ADAPTERS = (Kind.CONTROL_LORA, Kind.CONTROLNET, Kind.IP_ADAPTER, Kind.MEDIA)
"""Groups of the table whose files lie among adapters."""
ASKED_ONLY = (Kind.LORA, Kind.UNKNOWN)
"""Groups that count only where they are asked for."""
HERE = "here"
TYPES = {
    "image": "which is not supported",
    "video": "a video model: only models of images are supported",
    "audio": "an audio model: only models of images are supported",
    "video VAE": "the VAE of a video model, which is not supported",
    "audio VAE": "the VAE of an audio model, which is not supported",
    "encoder": "with which no model of images here reads",
}
LEVEL = re.compile(
    r"^(?:model\.diffusion_model\.(?:net\.)?|diffusion_model\.|first_stage_model\.|language_model\.|"
    r"(?:net|model|module|_orig_mod|dit|transformer|unet|vae|text_encoder(?:_\d)?|params(?:_ema)?)\.)"
)
"""Prefixes that programs put before the names of a model."""


class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Row:
    """A row: the kind, the name of a model, what it is, how the names of its classes begin in diffusers, and its
    tensors: any of these lists, of which all are there."""

    group: Kind
    name: str
    type: str
    classes: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...]

    @property
    def is_read(self) -> bool:
        """Whether files of it are of use here."""
        return self.type.startswith(HERE)

    @property
    def folder(self) -> str:
        """The folder of files that are read, below `models/`."""
        return (self.type.partition(" ")[2] or FOLDERS[self.group]) if self.is_read else ""

    @property
    def family(self) -> str:
        """The family of the models that a file of it is for, where one is known."""
        return self.type.partition(" ")[0].partition(":")[2]

    @property
    def kind(self) -> Kind:
        """The kind of a file of it."""
        return Kind.MEDIA if self.type.startswith(("video", "audio")) else self.group

    @property
    def sentence(self) -> str:
        """Description of what is not read, to be put after "is"."""
        return f"{self.name}, {TYPES.get(self.type, self.type)}"


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the table."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            group, name, kind, classes, signs = (part.strip() for part in line.split("|"))
            lists = tuple(tuple(one.split()) for one in signs.split(";"))
            found.append(Row(Kind(group), name, kind, tuple(classes.split()), lists))
    return tuple(found)


class Names:
    """The names in a header without what programs put before them, prepared for `has`."""

    def __init__(self, header: Mapping[str, HasShape]) -> None:
        self._bare = {LEVEL.sub("", name): entry for name, entry in header.items()}
        self._order = sorted(self._bare)
        self._all = "\n".join(("", *self._order, ""))

    def has(self, sign: str) -> bool:
        """Return whether a sign of the table is there."""
        if sign.startswith("!"):
            return not self.has(sign[1:])
        if sign.startswith("*"):
            return (f"{sign[1:-1]}\n" if sign.endswith("$") else sign[1:]) in self._all
        if sign.endswith("."):
            at = bisect_left(self._order, sign)
            return at < len(self._order) and self._order[at].startswith(sign)
        name, _, width = sign.partition("=")
        return name in self._bare and (not width or self._bare[name].shape[-1:] == (int(width),))


def row_of(header: Mapping[str, HasShape], kinds: Iterable[Kind] = ()) -> Row | None:
    """Return the first row, of these kinds or of all, whose tensors a file has; None for other files."""
    names, wanted = Names(header), tuple(kinds)
    fitting = (row for row in rows() if (row.group in wanted if wanted else row.group not in ASKED_ONLY))
    return next((row for row in fitting if any(all(map(names.has, signs)) for signs in row.signs)), None)


def other_of(header: Mapping[str, HasShape], *kinds: Kind) -> Row | None:
    """Return the row of the model that is not read here, of these kinds or of all, which a file holds; None for other
    files."""
    row = row_of(header, kinds)
    return None if row is None or row.is_read else row


def other_of_class(name: str) -> Row | None:
    """Return the row of a class or a pipeline of diffusers; None for others. The longest beginning counts."""
    fitting = [(len(start), row) for row in rows() for start in row.classes if name.startswith(start)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
