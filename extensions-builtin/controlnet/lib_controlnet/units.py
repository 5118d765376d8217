"""A unit: what one control asks for, and the forms in which callers give it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lib_controlnet.preprocessors import Module, module_of
from lib_controlnet.resize_mode import ResizeMode
from modules.errors import InvalidValueError

NO_MODEL = "None"
MAX_SIDE_PX = 16384
MAX_UNITS = 10


class ControlMode(Enum):
    BALANCED = "Balanced"
    PROMPT = "My prompt is more important"
    CONTROL = "ControlNet is more important"


class HiresOption(Enum):
    BOTH = "Both"
    LOW = "Low res only"
    HIGH = "High res only"


RESIZE_ALIASES = {
    "inner fit (scale to fit)": ResizeMode.CROP,
    "scale to fit (inner fit)": ResizeMode.CROP,
    "outer fit (shrink to fit)": ResizeMode.FILL,
    "envelope (outer fit)": ResizeMode.FILL,
}
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
LEGACY = {"input_image": "image", "lowvram": "low_vram", "guidance": "guidance_end", "mask_image": "mask"}
SIMPLE = "simple"
OTHER_MODES = {
    "batch": "one request does not follow several images or a folder (batch_images). Send a request for each, with the "
    "image in image; or use the tab Batch of img2img: there a unit without an image follows each image of the folder",
    "merge": "give the images of an IP-adapter in image, as a list of objects with image and mask",
}
"""What to do instead of what other programs do in other modes of input, by the mode."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Given:
    """An image of a caller [H,W,C], and the mask that came with it [H,W]."""

    image: Array
    mask: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Unit:
    """One control, as it counts. `images` is empty where the start image of img2img is meant; several are of an
    IP-adapter. Numbers of the module are already in its range."""

    module: Module
    module_name: str  # as the caller said it
    model: str = NO_MODEL
    weight: float = 1.0
    images: tuple[Given, ...] = ()
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

    def infotext(self, model_title: str) -> str:
        """What images record of it."""
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
        if self.hires is not HiresOption.BOTH:
            fields["Hr Option"] = self.hires.value
        return ", ".join(f"{name}: {value}" for name, value in fields.items())


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
    "Hr Option": "hr_option",
}


def unit_of_infotext(text: str) -> dict[str, Any]:
    """A unit as callers give it, of what an image records; without its image, which no infotext has."""
    found: dict[str, Any] = {}
    for part in text.split(", "):
        name, _, value = part.partition(": ")
        key = INFOTEXT_FIELDS.get(name)
        if key is not None:
            found[key] = value == "True" if key == "pixel_perfect" else _plain(value)
    return found


def _plain(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def read_units(text: str) -> list[Mapping[str, Any]]:
    """The units of a job, in the form of callers, of the script's own argument; those that are on."""
    if not text:
        return []
    return [unit for unit in json.loads(text) if unit.get("enabled", True)]


def checked_list(args: Sequence[Any], title: str) -> list[Mapping[str, Any]]:
    """What a caller gives as the script's arguments. Raises `InvalidValueError` for what is no list of units."""
    found: list[Mapping[str, Any]] = []
    for number, value in enumerate(args):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise InvalidValueError(
                f"{title}: unit {number} is {type(value).__name__} {str(value)[:40]!r}; a unit is an object such as "
                '{"module": "canny", "model": "...", "image": "BASE64"}.'
            )
        unit = dict(value)
        if "mask" in unit and unit["mask"] is not None and unit.get("mask_image") is not None:
            raise InvalidValueError(f"{title}: unit {number} has both mask and mask_image; give one of them.")
        for guess in ("guessmode", "guess_mode"):
            if unit.pop(guess, False) and unit.get("control_mode") is None:
                unit["control_mode"] = ControlMode.CONTROL.value
        for old, new in LEGACY.items():
            if unit.get(old) is not None and unit.get(new) is None:
                unit[new] = unit[old]
            unit.pop(old, None)
        found.append(unit)
    if len(found) > MAX_UNITS:
        raise InvalidValueError(f"{title}: {len(found)} units were given; allowed are {MAX_UNITS}.")
    return found


def read_unit(given: Mapping[str, Any], name: str) -> Unit:
    """A unit of a caller's object; `name` is for messages. Raises `InvalidValueError` and `UnknownNameError`."""
    read = _Reader(given, name)
    read.check_input_mode()
    module = module_of(str(given.get("module") or "none"))
    first, second = module.numbers
    resolution = module.resolution or module.hidden_resolution
    start, end = read.number("guidance_start", 0.0, 0.0, 1.0), read.number("guidance_end", 1.0, 0.0, 1.0)
    if start > end:
        raise InvalidValueError(f"{name}: guidance_start {start:g} is after guidance_end {end:g}.")
    return Unit(
        module=module,
        module_name=str(given.get("module") or "none"),
        model=str(given.get("model") or NO_MODEL),
        weight=read.number("weight", 1.0, 0.0, 2.0),
        images=read.images(),
        resize_mode=read.member("resize_mode", ResizeMode, ResizeMode.CROP, RESIZE_ALIASES),
        processor_res=resolution.read(read.number("processor_res", -1)),
        threshold_a=first.read(read.number("threshold_a", -1)),
        threshold_b=second.read(read.number("threshold_b", -1)),
        guidance_start=start,
        guidance_end=end,
        pixel_perfect=read.flag("pixel_perfect", False),
        control_mode=read.member("control_mode", ControlMode, ControlMode.BALANCED),
        inpaint_crop=read.flag("inpaint_crop_input_image", True),
        hires=read.member("hr_option", HiresOption, HiresOption.BOTH),
        saves_map=read.flag("save_detected_map", True),
        layer_weights=read.numbers("advanced_weighting"),
        region=read.mask("effective_region_mask"),
        union_type=read.name_in("union_control_type", (*UNION_TYPES, UNKNOWN_TYPE), UNKNOWN_TYPE),
        embeddings=read.files("ipadapter_input"),
    )


@dataclass(frozen=True)
class _Reader:
    given: Mapping[str, Any]
    name: str

    def _wrong(self, key: str, wanted: str) -> InvalidValueError:
        return InvalidValueError(f"{self.name}: {key} is {str(self.given.get(key))[:60]!r}; {wanted}.")

    def number(self, key: str, usual: float, low: float = -1e6, high: float = 1e6) -> float:
        value = self.given.get(key)
        if value is None:
            return usual
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise self._wrong(key, "it takes a number") from error
        if not low <= number <= high:
            raise self._wrong(key, f"allowed is {low:g} to {high:g}")
        return int(value) if isinstance(value, int) and not isinstance(value, bool) and key[:1] in "pt" else number

    def check_input_mode(self) -> None:
        """Raises `InvalidValueError` where callers ask for other than one image in `image`."""
        mode = str(self.given.get("input_mode") or SIMPLE).rpartition(".")[2].strip().lower()
        if mode != SIMPLE:
            raise self._wrong("input_mode", OTHER_MODES.get(mode, f"it takes {SIMPLE}: one image, in image"))

    def numbers(self, key: str) -> tuple[float, ...] | None:
        value = self.given.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self._wrong(key, "it takes a list of numbers, one for each block")
        return tuple(float(item) for item in value)

    def flag(self, key: str, usual: bool) -> bool:
        value = self.given.get(key)
        if value is None:
            return usual
        if isinstance(value, str):
            return value.strip().lower() in ("true", "1")
        return bool(value)

    def member(self, key: str, kind: type[Enum], usual: Any, aliases: Mapping[str, Any] | None = None) -> Any:
        """A member of an enum by its value in any case, an alias, or its number."""
        value = self.given.get(key)
        if value is None:
            return usual
        members = list(kind)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < len(members):
            return members[int(value)]
        by_name = {member.value.lower(): member for member in members} | dict(aliases or {})
        found = by_name.get(str(value).strip().lower())
        if found is None:
            raise self._wrong(key, f"it takes one of: {', '.join(member.value for member in members)}")
        return found

    def name_in(self, key: str, names: Sequence[str], usual: str) -> str:
        """One of these names, in any case."""
        value = str(self.given.get(key) or usual).strip().lower()
        for name in names:
            if name.lower() == value:
                return name
        raise self._wrong(key, f"it takes one of: {', '.join(names)}")

    def images(self) -> tuple[Given, ...]:
        """Of `image` in all its forms, with `mask`."""
        value, mask = self.given.get("image"), self.mask("mask")
        if value is None or value == "":
            return ()
        if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
            value = [{"image": value[0], "mask": value[1]}]
        found = []
        for item in value if isinstance(value, list) else [value]:
            own = mask
            if isinstance(item, Mapping):
                if item.get("mask"):
                    if mask is not None:
                        raise InvalidValueError(f"{self.name}: a mask is given twice, in image and as mask.")
                    own = self._gray(item["mask"], "mask")
                item = item.get("image")
            if item:
                found.append(Given(self._pixels(item, "image"), own))
        return tuple(found)

    def mask(self, key: str) -> Array | None:
        value = self.given.get(key)
        return None if value is None or value == "" else self._gray(value, key)

    def files(self, key: str) -> tuple[bytes, ...]:
        value = self.given.get(key)
        if not value:
            return ()
        return tuple(self._bytes(item, key) for item in (value if isinstance(value, list) else [value]))

    def _gray(self, value: Any, key: str) -> Array:
        pixels = self._pixels(value, key)
        found: Array = pixels if pixels.ndim == 2 else pixels[:, :, 0]
        return found

    def _bytes(self, value: Any, key: str) -> bytes:
        text = str(value)
        try:
            return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=False)
        except (binascii.Error, ValueError) as error:
            raise self._wrong(key, "it takes a file as base64") from error

    def _pixels(self, value: Any, key: str) -> Array:
        try:
            image = Image.open(BytesIO(self._bytes(value, key)))
            if max(image.size) > MAX_SIDE_PX:
                raise self._wrong(key, f"its sides may have {MAX_SIDE_PX} pixels, not {image.width}x{image.height}")
            kept = (
                image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGBA" if "A" in image.mode else "RGB")
            )
            if image.mode == "P" and "transparency" in image.info:
                kept = image.convert("RGBA")
            return np.asarray(kept)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise self._wrong(key, "it takes an image as base64 or data URL") from error
