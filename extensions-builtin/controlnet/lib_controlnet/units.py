"""A unit: what one control asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy.typing as npt

from lib_controlnet.files import Kind
from lib_controlnet.preprocessors import Module
from lib_controlnet.resize_mode import ResizeMode
from modules.errors import InvalidValueError

NO_MODEL = "None"
HIRES_FIELD = "Hr Option"
"""The field of infotexts that says in which pass a unit takes part; the reference UI does not write it."""


class ControlMode(Enum):
    BALANCED = "Balanced"
    PROMPT = "My prompt is more important"
    CONTROL = "ControlNet is more important"


class HiresOption(Enum):
    BOTH = "Both"
    LOW = "Low res only"
    HIGH = "High res only"


class InputMode(Enum):
    """How a unit uses its images: the one that it has, one after the other, or all at once."""

    SIMPLE = "simple"
    BATCH = "batch"
    MERGE = "merge"


UNION_TYPES = (*("OpenPose", "Depth", "Soft Edge", "Hard Edge", "Normal Map", "Segmentation", "Tile", "Inpaint"),)
"""In the order in which union networks number them."""
UNKNOWN_TYPE = "Unknown"
UNION_TAGS = {
    "OpenPose": "OpenPose",
    "Depth": "Depth",
    "SoftEdge": "Soft Edge",
    "Scribble": "Soft Edge",
    "Canny": "Hard Edge",
    "Lineart": "Hard Edge",
    "MLSD": "Hard Edge",
    "NormalMap": "Normal Map",
    "Segmentation": "Segmentation",
    "Tile": "Tile",
    "Inpaint": "Inpaint",
}
"""The type of control that a union network takes for the maps of a module, by the module's tag."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Given:
    """An image of a caller [H,W,C], and the mask that came with it [H,W]."""

    image: Array
    mask: Array | None = None

    def check(self, name: str) -> None:
        """Raise `InvalidValueError` for a mask that has not the size of its image; `name` is for the message."""
        if self.mask is None or self.mask.shape == self.image.shape[:2]:
            return
        sizes = ["x".join(map(str, each.shape[1::-1])) for each in (self.mask, self.image)]
        raise InvalidValueError(
            f"{name}: the mask has {sizes[0]} pixels, and the image {sizes[1]}. Give both in the same size."
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Unit:
    """One control, as it counts. `images` is empty where the start image of img2img is meant; several are of an
    IP-adapter, or of another `input_mode`. Numbers of the module are already in its range."""

    module: Module
    module_name: str  # as the caller said it
    model: str = NO_MODEL
    weight: float = 1.0
    images: tuple[Given, ...] = ()
    input_mode: InputMode = InputMode.SIMPLE
    resize_mode: ResizeMode = ResizeMode.CROP
    processor_res: float = 512
    threshold_a: float = 0.5
    threshold_b: float = 0.5
    guidance_start: float = 0.0
    guidance_end: float = 1.0
    pixel_perfect: bool = False
    control_mode: ControlMode = ControlMode.BALANCED
    inpaint_crop: bool = True
    hires: HiresOption = HiresOption.BOTH
    saves_map: bool = True
    layer_weights: tuple[float, ...] | None = None
    region: Array | None = None
    union_type: str = UNKNOWN_TYPE
    embeddings: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def needs_model(self) -> bool:
        return not self.module.is_model_free

    @property
    def is_batch(self) -> bool:
        """Whether its images count one after the other, each for its own images of the job."""
        return self.input_mode is InputMode.BATCH

    def one_of_batch(self, place: int) -> Unit:
        """The unit with this one of its images alone."""
        return replace(self, images=(self.images[place],), input_mode=InputMode.SIMPLE)

    def unmerged(self) -> tuple[Unit, ...]:
        """A unit for each of the images that count at once, which share the weight; an IP-adapter takes all itself."""
        if self.input_mode is not InputMode.MERGE or self.module.averages_images:
            return (self,)
        count = len(self.images)
        weights = self.layer_weights
        shared = replace(
            self,
            weight=self.weight / count,
            layer_weights=None if weights is None else tuple(weight / count for weight in weights),
            input_mode=InputMode.SIMPLE,
        )
        return tuple(replace(shared, images=(image,)) for image in self.images)

    def for_job(self, has_second_pass: bool) -> Unit:
        """Return the unit as it counts in a job: in all of it where there is no second pass."""
        return self if has_second_pass else replace(self, hires=HiresOption.BOTH)

    def infotext(self, key: str, model_title: str) -> dict[str, str]:
        """Return what images record of it, by fields that begin with `key`."""
        fields = {
            "Module": self.module_name,
            "Model": model_title,
            "Weight": self.weight,
            "Resize Mode": self.resize_mode.value,
            "Processor Res": self.processor_res,
            "Threshold A": self.threshold_a,
            "Threshold B": self.threshold_b,
            "Guidance Start": self.guidance_start,
            "Guidance End": self.guidance_end,
            "Pixel Perfect": self.pixel_perfect,
            "Control Mode": self.control_mode.value,
        }
        found = {key: ", ".join(f"{name}: {value}" for name, value in fields.items())}
        return found if self.hires is HiresOption.BOTH else found | {f"{key} {HIRES_FIELD}": self.hires.value}


def check_use(unit: Unit, kind: Kind | None, name: str) -> None:
    """Raise `InvalidValueError` for what a unit asks for and its model, of this kind (None: it has none), ignores."""
    what = kind.value if kind is not None else f"the module {unit.module.label}"
    if unit.embeddings and not (kind and kind.is_ip):
        raise InvalidValueError(
            f"{name}: ipadapter_input holds what an IP-adapter sees of images, and the unit has {what}. Give an image."
        )
    if unit.embeddings and unit.images:
        raise InvalidValueError(f"{name} has both image and ipadapter_input; give one of them.")
    if unit.region is not None and kind is None:
        raise InvalidValueError(
            f"{name}: effective_region_mask counts for control models, and {what} works without one. Leave it out."
        )
    if unit.region is not None and kind is Kind.FLUX_LORA:
        raise InvalidValueError(f"{name}: {what} changes the whole image. Leave effective_region_mask out.")
    if unit.layer_weights is not None and kind in (None, Kind.LLLITE, Kind.ANIMA_LLLITE, Kind.FLUX_LORA, Kind.FLUX_IP):
        raise InvalidValueError(f"{name}: advanced_weighting is not for {what}; set weight instead.")


INFOTEXT_FIELDS = {
    "Module": "module",
    "Model": "model",
    "Weight": "weight",
    "Resize Mode": "resize_mode",
    "Processor Res": "processor_res",
    "Threshold A": "threshold_a",
    "Threshold B": "threshold_b",
    "Guidance Start": "guidance_start",
    "Guidance End": "guidance_end",
    "Pixel Perfect": "pixel_perfect",
    "Control Mode": "control_mode",
    HIRES_FIELD: "hr_option",
}


def unit_of_infotext(parsed: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Return a unit as callers give it, of what an image records in fields that begin with `key`; without its image,
    which no infotext has. None where there are no such fields."""
    if not parsed.get(key):
        return None
    found: dict[str, Any] = {}
    for part in (*str(parsed[key]).split(", "), f"{HIRES_FIELD}: {parsed.get(f'{key} {HIRES_FIELD}', '')}"):
        name, _, value = part.partition(": ")
        field_name = INFOTEXT_FIELDS.get(name)
        if field_name is not None and value:
            found[field_name] = value == "True" if field_name == "pixel_perfect" else _plain(value)
    return found


def check_layer_weights(unit: Unit, count: int, name: str, is_exact: bool = False) -> None:
    """Raise `InvalidValueError` for a unit with fewer weights than its model has outputs, or with `is_exact` more."""
    given = len(unit.layer_weights) if unit.layer_weights is not None else count
    if given < count or (is_exact and given > count):
        raise InvalidValueError(f"{name}: advanced_weighting has {given} weights, and the model takes {count}.")


def _plain(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
